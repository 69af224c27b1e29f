"""The estimate grows with everything that a state has many of."""

import tracemalloc

from controller.leadership.policy.standby import estimated_bytes
from controller.snapshots.format import decode_steps, encode_snapshot
from headgate.model import entries as e
from shard.state.shard_state import ShardState
from shard.steps import complete

PRODUCERS, SEGMENTS = 2000, 1000


def shard(producers: int, segments: int) -> ShardState:
    state = ShardState(0)
    state.begin_chunk(1, 0)
    for number in range(producers):
        state.apply(e.ProducerOpened(producer_id=number + 1, producer_epoch=0, token=f"token-{number}"))
    if segments:
        state.apply(e.TopicCreated(topic_id=1, topic="orders", segments=segments, token="t"))
        positions = dict.fromkeys(range(segments), 1000)
        ids, kind = {"topic_id": 1, "subscription_id": 2}, {"subscription_type": "STREAM", "order": "strict"}
        state.apply(e.SubscriptionCreated(**ids, **kind, subscription="billing", positions=positions))
    return state


def restored_bytes(state: ShardState) -> int:
    """Return what the state needs after a restore."""
    data = encode_snapshot(state, written_at_ms=0)
    tracemalloc.start()
    try:
        restored = complete(decode_steps(data, shard=0, chunk=state.chunk))
        assert restored.chunk == state.chunk
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_an_empty_state_is_estimated_as_nothing() -> None:
    assert estimated_bytes(ShardState(0)) == 0


def test_the_estimate_is_about_what_a_restored_state_needs() -> None:
    """Between half and four times as much, on every Python."""
    for state in (shard(PRODUCERS, 0), shard(0, SEGMENTS)):
        assert 0.5 < estimated_bytes(state) / restored_bytes(state) < 4


def test_each_consumer_adds_to_its_subscription() -> None:
    state = shard(0, 1)
    state.apply(e.ConsumerRegistered(topic_id=1, subscription_id=2, consumer="ada", incarnation=1, client_id="c"))
    assert estimated_bytes(state) == 800 + 1000


def test_each_producer_adds_to_the_estimate() -> None:
    assert estimated_bytes(shard(3, 0)) == 3 * 1500


def test_a_subscription_adds_to_its_segments() -> None:
    assert estimated_bytes(shard(0, SEGMENTS)) == SEGMENTS * 800
