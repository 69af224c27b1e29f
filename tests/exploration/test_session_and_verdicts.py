"""All interleavings of a producer session with its leaders, and bugs that the search must find."""

from collections.abc import Callable

import pytest

from headgate.protocol.requests import ProduceBatch
from shard.access.rules import AccessRules
from shard.requests.verdicts import Accept, Duplicate, Judgement
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal
from tests.exploration.search import StoryError, explore
from tests.exploration.session_and_verdicts import Budget, Judge, SessionAndVerdicts, judge

pytestmark = pytest.mark.simulation

DEPTH = 7
"""Beyond the start. Two batches, their commit and both replies take seven steps without any fault."""
LATE_PIPELINE = ("offer", "offer", "pass time", "pass time")
"""Two batches are late, and the first one has been sent again."""
UNANSWERED_DOUBLE = ("offer", "double request", "deliver request", "commit", "lose reply")
"""A copy is stored, and another one is late."""
ENVIRONMENTS: dict[str, tuple[Budget, tuple[str, ...]]] = {
    "a loss, a double and a new term": (Budget(losses=1, doubles=1, terms=1), ()),
    "a disconnection, an overtaking and a new term": (Budget(losses=0, doubles=0, overtakings=1, disconnections=1), ()),
    "two doubles and two terms": (Budget(losses=0, doubles=2, terms=2), ()),
    "a late pipeline, a topic that is deleted and created again": (
        Budget(losses=0, doubles=0, terms=0, overtakings=1, topic_changes=2),
        (*LATE_PIPELINE, "delete topic"),
    ),
    "a late pipeline, a right that is withdrawn and given back": (
        Budget(losses=0, doubles=0, terms=0, overtakings=1, right_changes=2),
        (*LATE_PIPELINE, "withdraw the right"),
    ),
    "a late pipeline, a topic that is deleted, and a new term": (
        Budget(losses=1, doubles=0, overtakings=1, topic_changes=2),
        (*LATE_PIPELINE, "delete topic", "overtake request"),
    ),
    "a late copy, and a producer that is forgotten": (
        Budget(losses=1, doubles=1, terms=1, forgettings=1),
        UNANSWERED_DOUBLE,
    ),
    "an idle producer that is forgotten": (Budget(losses=1, doubles=1, terms=0, forgettings=1), ()),
}


def world(budget: Budget, story: tuple[str, ...] = (), judge: Judge = judge) -> Callable[[], SessionAndVerdicts]:
    return lambda: SessionAndVerdicts(budget, judge, warm=True, story=story)


@pytest.mark.parametrize(("budget", "story"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_no_interleaving_breaks_a_promise(budget: Budget, story: tuple[str, ...]) -> None:
    explored = explore(world(budget, story), depth=DEPTH)

    assert explored.states > 500, "fewer choices than these environments have"


def test_the_first_batch_and_its_identity_are_part_of_the_search() -> None:
    explored = explore(lambda: SessionAndVerdicts(Budget(batches=2), warm=False), depth=DEPTH)

    assert explored.states > 1000, "fewer choices than this environment has"


def stores_twice(batch: ProduceBatch, state: ShardState, durable: int, rules: AccessRules) -> Judgement:
    judgement = judge(batch, state, durable, rules)
    return Accept() if isinstance(judgement, Duplicate) else judgement


def accepts_gaps(batch: ProduceBatch, state: ShardState, durable: int, rules: AccessRules) -> Judgement:
    judgement = judge(batch, state, durable, rules)
    return Accept() if isinstance(judgement, Refusal) and judgement.verdict == "out_of_order" else judgement


def answers_too_early(batch: ProduceBatch, state: ShardState, durable: int, rules: AccessRules) -> Judgement:
    judgement = judge(batch, state, durable, rules)
    return Duplicate(0, judgement.placements, judgement.topic_id) if isinstance(judgement, Duplicate) else judgement


BUGS: dict[str, tuple[Judge, str]] = {
    "a repeated batch is accepted again (row 10)": (stores_twice, "is not the next one"),
    "a batch is accepted before its predecessor (row 7)": (accepts_gaps, "is not the next one"),
    "a reply does not wait for the chunk (row 10)": (answers_too_early, "is not durable"),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("bug", "promise"), BUGS.values(), ids=BUGS.keys())
def test_a_planted_bug_is_found(bug: Judge, promise: str) -> None:
    def found() -> None:
        for budget, story in ENVIRONMENTS.values():
            explore(world(budget, story, bug), depth=DEPTH)

    with pytest.raises(StoryError, match=promise):
        found()
