"""Each rare fault is played, holds all invariants, and is shown to matter by a planted bug that it finds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import controller.leader.follower
import controller.snapshots.restore
import coordinator.assignment_reconciler
import coordinator.drain_monitor
from headgate.errors import LedgerError
from headgate.ledger.ledger import Ledger
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.failure import failure_of
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import SPARSE, Plan, Step, plan_of
from tests.simulation.play import play

pytestmark = pytest.mark.simulation
SEEDS = 40
"""A planted bug must be found within this number of seeds."""


def plan_with(operation: str, seed: int) -> Plan:
    """Return the plan of a sparse world in which every second operation is ``operation``."""
    plan = plan_of(seed, SPARSE)
    steps = [replace(step, operation=operation) if step.number % 2 else step for step in plan.steps]
    return replace(plan, steps=tuple(steps))


def plan_of_one(operation: str, seed: int = 1) -> Plan:
    """Return the plan of a small world in which nothing but ``operation`` happens."""
    plan = plan_of(seed, SPARSE)
    return replace(
        plan, programs=("producer-0", "stream-0", "maintenance"), steps=(Step(1, 20, 0.5, 2, operation, seed),)
    )


def rows(checker: InvariantChecker, what: str) -> list[str]:
    """Return the rows of a story whose text contains ``what``."""
    texts = (f"{row.actor} {row.what}: {row.result}".removesuffix(": ") for row in checker.story.rows)
    return [each for each in texts if what in each]


def first_violation(plans: Callable[[int], Plan], first: int = 1) -> str:
    """Play seeds until one violates an invariant, and return how. A planted bug may also fail in other ways."""
    failures = (failure_of(plans(seed)) for seed in range(first, first + SEEDS))
    causes = (failure.cause for failure in failures if failure is not None)
    found = next((cause for cause in causes if isinstance(cause, BrokenPromiseError)), None)
    assert found is not None, f"not found within {SEEDS} seeds"
    return str(found)


def damaged_in(checker: InvariantChecker) -> str:
    """Return the path of the only damaged object of a run, which was repaired."""
    (repaired,) = rows(checker, "is repaired")
    return repaired.split()[1].removesuffix(":")


def test_a_damaged_chunk_stops_its_shard_until_it_is_repaired_and_nothing_else_does() -> None:
    """A daemon that has to read it names it. No manifest and no compacted object stops a leader."""
    played = [play(plan_of_one("damaged_object", seed)) for seed in range(1, 9)]
    # A run may end before there is an object to damage.
    stories = {damaged_in(story): story for story in played if rows(story, "is repaired")}

    stopped = {path for path, story in stories.items() if rows(story, "cannot be read")}
    assert stopped
    assert stories.keys() - stopped
    for path in stopped:
        assert path.startswith(("chunks/", "snapshots/"))
        assert all(path in row for row in rows(stories[path], "cannot be read"))


def test_a_lost_chunk_stops_its_shard_until_it_is_back() -> None:
    stories = [play(plan_with("damaged_object", seed)) for seed in (3, 9)]

    assert all(rows(story, "is lost") for story in stories)
    for reason in ("no snapshot can replace it", "the ledger has a gap"):
        assert any(reason in row for story in stories for row in rows(story, "cannot be read"))


@pytest.mark.nightly
def test_a_damaged_chunk_that_is_skipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a daemon folds the chunks that it can read, and leads without the others."""

    async def skipping(ledger: Ledger, state: ShardState) -> int:
        before = state.chunk
        while await ledger.exists(number := state.chunk + 1):
            try:
                chunk = await ledger.read(number)
            except LedgerError:
                state.apply_all((), chunk=number, at_ms=state.at_ms)
            else:
                state.apply_all(chunk.entries, chunk=number, at_ms=chunk.header.at_ms)
        return state.chunk - before

    for module in (controller.snapshots.restore, controller.leader.follower):
        monkeypatch.setattr(module, "apply_new_chunks", skipping)

    assert first_violation(lambda seed: plan_with("damaged_object", seed), first=7)


def test_a_power_failure_loses_what_was_not_durable_and_nothing_else() -> None:
    """All daemons and consumers end with what they had not made durable, and everything is delivered in the end."""
    stories = [play(plan_of_one("power_failure", seed)) for seed in range(1, 6)]

    assert all(rows(story, "loses power") for story in stories)
    assert any(rows(story, "loses power: chunks/shard=0000/") for story in stories)


def test_daemons_whose_clocks_run_fast_or_slow_keep_every_promise() -> None:
    """Sessions, terms, deadlines, grace periods and the time of the ledger hold with clocks of their own."""
    stories = [play(plan_with("clock_drift", seed)) for seed in (1, 3)]

    rates = [float(row.rpartition(" ")[2]) for story in stories for row in rows(story, "its clock runs at")]
    assert min(rates) < 1 < max(rates)
    assert all(story.fastest_clock > 1 for story in stories)


def test_messages_of_other_versions_are_understood() -> None:
    """Unknown fields are ignored in every message."""
    stories = [play(plan_with("other_versions", seed)) for seed in (1, 3)]

    assert all(rows(story, "are of a later version") for story in stories)
    assert all(story.stored["orders"] for story in stories)


def test_retained_messages_have_no_effect_on_later_leaders() -> None:
    """Sessions of MQTT 5 get no copies of them."""
    stories = [play(plan_with("retained_messages", seed)) for seed in (1, 4)]

    assert all(rows(story, "retains requests") for story in stories)
    assert [0, 0] == [story.device_rejections["retained"] for story in stories]


def test_a_reader_that_is_revoked_while_it_delivers_compacted_records_leaves_nothing_open() -> None:
    """asyncio would have closed its generator after the garbage collector found it."""
    play(plan_of(912266250))


def test_an_external_topic_is_read_to_its_end_and_children_after_their_parents() -> None:
    stories = [play(plan_with("external_topic", seed)) for seed in (1, 3)]

    assert all(rows(story, "importer imported a, al, ar") for story in stories)


def test_an_external_segment_may_be_pruned_before_there_is_a_subscription() -> None:
    """The broker was away from the import until the segment's retention had passed."""
    play(plan_of(2389971263))


def test_a_false_answer_of_a_drain_check_opens_no_gate_because_of_the_veto_of_the_leader(monkeypatch) -> None:
    plan = plan_of(87, SPARSE)
    assert play(plan).backlogs.claimed_falsely
    monkeypatch.setattr(coordinator.drain_monitor, "contradiction", lambda *_: None)

    assert "counts as drained at" in first_violation(lambda seed: plan_of(seed, SPARSE), first=87)
