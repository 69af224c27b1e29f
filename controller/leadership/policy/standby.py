"""Decide of which followed shards a daemon keeps the state in memory. Pure.

A shard whose state is kept is *warm*: a new term reads only the chunks of the last second. The daemon follows
only the terms of the others, and a new term begins with the newest snapshot.
`controller.leadership.policy.successors` decides which daemons would take a shard over.

Rules:

1. The states of warm shards fit into the limit together.
2. Only shards that this daemon may take over are warm: so followers do not read what every other one reads.
3. Shards that it takes over next come first: it is the first one behind their leader in the queue, their first
   successor, or was nominated for a transfer a short while ago. Then those of which it is another successor.
4. A warm shard of which it is no successor any more stays for `LINGER_SECONDS`, behind the others: a daemon that
   restarts changes the successors twice.
5. Among equals, those that are warm already come first, so that nothing is read again without a gain; then the lower
   number.
6. A shard that does not fit is left out, and smaller ones behind it may still fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from shard.state.shard_state import ShardState

LINGER_SECONDS: Final = 60.0


class Use(IntEnum):
    """Why a daemon would keep the state of a shard; the lower, the more important."""

    NEXT = 0
    """It takes the shard over next."""
    SUCCESSOR = 1
    """It takes the shard over if others are lost as well."""
    FORMER = 2
    """It was one of these until a short while ago."""
    NONE = 3


@dataclass(frozen=True, slots=True)
class FollowedShard:
    """A shard that another daemon leads."""

    shard: int
    size_bytes: int
    """The size of its state when that was last in memory; 0: it never was."""
    use: Use = Use.SUCCESSOR
    warm: bool = False


def warm_shards(followed: Iterable[FollowedShard], limit_bytes: int) -> frozenset[int]:
    useful = [each for each in followed if each.use < Use.FORMER or (each.use is Use.FORMER and each.warm)]
    chosen: set[int] = set()
    left_bytes = limit_bytes
    for each in sorted(useful, key=lambda each: (each.use, not each.warm, each.shard)):
        if each.size_bytes <= left_bytes:
            left_bytes -= each.size_bytes
            chosen.add(each.shard)
    return frozenset(chosen)


PRODUCER_BYTES: Final = 1500
"""With a few finished batches; 500 without any, 18,000 with a full window."""
SEGMENT_BYTES: Final = 600
POSITION_BYTES: Final = 200
"""One segment of one subscription."""
CONSUMER_BYTES: Final = 1000


def estimated_bytes(state: ShardState) -> int:
    """Return about how much memory ``state`` needs; 0 if it is empty. Costs some microseconds a topic.

    From counts: it needs not be exact. The bytes of each part were measured with tracemalloc, after a restore.
    """
    size = len(state.producers) * PRODUCER_BYTES
    for topic in state.topics.values():
        segments = len(topic.layout.segments)
        size += segments * (SEGMENT_BYTES + len(topic.subscriptions) * POSITION_BYTES)
        size += sum(len(each.consumers) for each in topic.subscriptions.values()) * CONSUMER_BYTES
    return size
