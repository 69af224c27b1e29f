"""All interleavings of a producer session with its leaders, and bugs that the search must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.decisions.verdicts import Accept, Duplicate, Judgement
from controller.state.shard_state import ShardState
from coordinator.decisions.refusal import Refusal
from headgate.protocol import messages as m
from tests.exploration.search import StoryError, explore
from tests.exploration.session_and_verdicts import Budget, Judge, SessionAndVerdicts, judge

pytestmark = pytest.mark.simulation

DEPTH = 7
"""Beyond the start. Two batches, their commit and both replies take seven steps without any fault."""
ENVIRONMENTS = {
    "a loss, a double and a new term": Budget(losses=1, doubles=1, terms=1),
    "a disconnection, an overtaking and a new term": Budget(losses=0, doubles=0, overtakings=1, disconnections=1),
    "two doubles and two terms": Budget(losses=0, doubles=2, terms=2),
}


def world(budget: Budget, judge: Judge = judge) -> Callable[[], SessionAndVerdicts]:
    return lambda: SessionAndVerdicts(budget, judge, warm=True)


@pytest.mark.parametrize("budget", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_no_interleaving_breaks_a_promise(budget: Budget) -> None:
    explored = explore(world(budget), depth=DEPTH)

    assert explored.states > 1000, "fewer choices than these environments have"


def test_the_first_batch_and_its_identity_are_part_of_the_search() -> None:
    explored = explore(lambda: SessionAndVerdicts(Budget(batches=2), warm=False), depth=DEPTH)

    assert explored.states > 1000, "fewer choices than this environment has"


def stores_twice(batch: m.ProduceBatch, state: ShardState, durable: int) -> Judgement:
    judgement = judge(batch, state, durable)
    return Accept() if isinstance(judgement, Duplicate) else judgement


def accepts_gaps(batch: m.ProduceBatch, state: ShardState, durable: int) -> Judgement:
    judgement = judge(batch, state, durable)
    return Accept() if isinstance(judgement, Refusal) and judgement.verdict == "out_of_order" else judgement


def answers_too_early(batch: m.ProduceBatch, state: ShardState, durable: int) -> Judgement:
    judgement = judge(batch, state, durable)
    return Duplicate(0, judgement.placements, judgement.topic_id) if isinstance(judgement, Duplicate) else judgement


def refuses_every_copy(batch: m.ProduceBatch, state: ShardState, durable: int) -> Judgement:
    judgement = judge(batch, state, durable)
    return Refusal("invalid", "a copy") if isinstance(judgement, Duplicate) else judgement


BUGS: dict[str, tuple[Judge, str]] = {
    "a repeated batch is accepted again (row 10)": (stores_twice, "is not the next one"),
    "a batch is accepted before its predecessor (row 7)": (accepts_gaps, "is not the next one"),
    "a reply does not wait for the chunk (row 10)": (answers_too_early, "is not durable"),
    "a repeated batch is refused (row 10)": (refuses_every_copy, "and is stored|is stored, and was reported"),
}


@pytest.mark.parametrize(("bug", "promise"), BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(bug: Judge, promise: str) -> None:
    def found() -> None:
        for budget in ENVIRONMENTS.values():
            explore(world(budget, bug), depth=DEPTH)

    with pytest.raises(StoryError, match=promise):
        found()
