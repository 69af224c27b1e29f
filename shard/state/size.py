"""Estimate the memory of a shard's state. Pure.

An estimate, from counts: it decides which states a standby keeps, and needs not be exact. The bytes of each part were
measured with tracemalloc, after a restore.
"""

from typing import Final

from shard.state.shard_state import ShardState

PRODUCER_BYTES: Final = 1500
"""With a few finished batches; 500 without any, 18,000 with a full window."""
SEGMENT_BYTES: Final = 600
POSITION_BYTES: Final = 200
"""One segment of one subscription."""
CONSUMER_BYTES: Final = 1000


def estimated_bytes(state: ShardState) -> int:
    """Return about how much memory ``state`` needs; 0 if it is empty. Costs some microseconds a topic."""
    size = len(state.producers) * PRODUCER_BYTES
    for topic in state.topics.values():
        segments = len(topic.layout.segments)
        size += segments * (SEGMENT_BYTES + len(topic.subscriptions) * POSITION_BYTES)
        size += sum(len(each.consumers) for each in topic.subscriptions.values()) * CONSUMER_BYTES
    return size
