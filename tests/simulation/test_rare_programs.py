"""Each rare program is drawn in some worlds, makes its situation, and breaks no promise."""

from dataclasses import replace

import pytest

from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import SITUATIONS, SPARSE, Step, plan_of
from tests.simulation.play import play

pytestmark = pytest.mark.simulation


def played(*programs: str, seed: int = 1, operation: str = "split") -> InvariantChecker:
    """Play a small world with these programs."""
    steps = tuple(Step(number, 40.0 * number, 0.5, 2, operation, number) for number in (1, 2, 3))
    plan = replace(plan_of(seed, SPARSE), programs=("producer-0", "stream-0", "stream-1", *programs), steps=steps)
    return play(plan)


def rows(checker: InvariantChecker, what: str) -> int:
    """Return how many rows of the story contain ``what``."""
    return sum(what in row.what for row in checker.story.rows)


@pytest.mark.parametrize("program", sorted(SITUATIONS))
def test_each_is_drawn_in_some_worlds(program: str) -> None:
    seeds = [seed for seed in range(1, 1000) if program in plan_of(seed).programs]

    assert 1 <= len(seeds) < 60
    if program == "inspector":
        assert all(seed % 2 for seed in seeds), "others prune nothing"
    if program == "cut_producer":
        assert all("import" in plan_of(seed).programs for seed in seeds), "nothing else opens many producers"


def test_an_inspector_leaves_its_subscription_without_a_consumer() -> None:
    checker = played("inspector")
    topic = checker.states[0].topics["orders"]

    assert rows(checker, "is away") > 0
    assert topic.subscriptions["inspection"].unused_since_ms is not None
    assert checker.ever_delivered["orders", "inspection"]


def test_records_are_stored_although_pushes_are_late() -> None:
    checker = played("late_pushes", operation="seek")

    assert rows(checker, "delays and doubles pushes") == 1
    assert checker.stored["orders"]


def test_a_producer_is_cut_until_the_leader_has_forgotten_it() -> None:
    checker = played("import", "cut_producer")

    assert rows(checker, "loses the broker") > 0
    assert checker.rules.producers.forgotten > 0


def test_newcomers_send_although_messages_were_lost_when_they_started() -> None:
    checker = played("newcomers")

    assert {b"newcomer-0", b"newcomer-1"} <= {record.key for record in checker.stored["orders"]}


def test_a_slow_contender_finds_the_number_of_its_term_taken() -> None:
    checker = played("slow_contender")

    assert rows(checker, "its session expires, and other daemons are slow") > 0
    assert checker.leadership.epoch(0) > 1
