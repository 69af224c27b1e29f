"""A leader refuses a consumer that has read another history than its own."""

import pytest

from headgate.model import entries as e
from headgate.protocol.requests import Heartbeat, RegisterConsumer, SeekSubscription
from shard.requests.verdicts import judge_history
from shard.state.shard_state import ShardState

OWN = {(1, 11), (2, 11), (3, 22), (4, 22)}
"""Points of the leader's history: chunk, and the id of the term that wrote it."""


@pytest.fixture
def state() -> ShardState:
    state = ShardState(0)
    terms = {1: e.TermStarted(leader_epoch=1, instance="a", term_id=11)}
    terms[3] = e.TermStarted(leader_epoch=2, instance="b", term_id=22)
    for chunk in range(1, 5):
        state.apply_all([terms[chunk]] if chunk in terms else [], chunk=chunk, at_ms=0)
    return state


@pytest.mark.parametrize("term_id", [0, 11, 22, 33])
@pytest.mark.parametrize("chunk", range(1, 6))
def test_only_points_of_the_own_history_are_accepted(state: ShardState, chunk: int, term_id: int) -> None:
    """One foreign point is enough, and the refusal waits for a barrier."""
    where = {"topic": "orders", "subscription": "billing", "history": [(1, 11), (chunk, term_id)]}
    for request in (Heartbeat(**where, consumer="c", incarnation=1, held=[]), SeekSubscription(**where, token="t")):
        refusal = judge_history(request, state)

        assert (refusal is None) == ((chunk, term_id) in OWN)
        assert refusal is None or (refusal.verdict, refusal.after_barrier) == ("other_history", True)


@pytest.mark.parametrize(("topic_id", "refused"), [(7, True), (8, False)], ids=["the present topic", "one before it"])
def test_positions_of_a_deleted_topic_are_refused_as_such(state: ShardState, topic_id: int, refused: bool) -> None:
    """It may have been on another shard, whose history they name."""
    state.apply_all([e.TopicCreated(topic_id=7, topic="orders", segments=1, token="t")], chunk=5, at_ms=0)
    request = RegisterConsumer(
        topic="orders",
        subscription="billing",
        consumer="c",
        incarnation=1,
        history=[(465, 99)],
        subscription_type=e.SubscriptionType.CHECKPOINT,
        start="earliest",
        positions=[(0, 3)],
        positions_topic_id=topic_id,
    )

    assert refused == (judge_history(request, state) is not None)
    state.apply(e.TopicDeleted(topic_id=7, token="d"))
    assert judge_history(request, state) is None
