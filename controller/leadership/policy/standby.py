"""Decide of which followed shards a daemon keeps the state in memory. Pure.

A shard whose state is kept is *warm*: a new term reads only the chunks of the last second. The daemon follows
only the terms of the others, and a new term begins with the newest snapshot.
`successors` decides which daemons would take a shard over.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from controller.leadership.policy.spread import LiveDaemon, ShardQueue, plan
from shard.state.shard_state import ShardState

Successors = Mapping[int, tuple[str, ...]]
"""Shard → its successors, the first one first."""


def successors(daemons: Iterable[LiveDaemon], queues: Iterable[ShardQueue], replicas: int) -> Successors:
    """Decide which daemons keep the state of a shard ready, in the order in which they would take it over.

    All daemons compute the same from the same view, as in `controller.leadership.policy.spread`. The leader of a
    shard has the first successor placed behind itself in the queue, so the lock passes to it when the leader is lost.

    1. A successor waits in the shard's queue, and keeps its shards. Each shard has as many as there are, up to a
       number. Those that lack the broker or the store come last: while all lack it, they keep the states that they
       have.
    2. The daemon to which the spread moves the shard comes first.
    3. Next is the daemon that would get the shard if its leader, after all planned moves, stopped. So the shards of a
       leader are divided among the others, whether it stops, is drained or is lost.
    4. The others are in an order by digest, those that have settled first: a daemon that comes or goes changes few of
       them.
    """
    live = {each.name: each for each in daemons}
    queues = list(queues)
    preferred = plan(live.values(), queues).preferred
    moved = [_moved(each, preferred.get(each.shard)) for each in queues]
    without = {name: plan(_leaving(live, name), moved).preferred for name in sorted(set(preferred.values()))}

    def ranked(queue: ShardQueue) -> tuple[str, ...]:
        able = {name for name in queue.waiting if name in live and live[name].stays}
        order = sorted(
            able, key=lambda name: (live[name].lacks_server, not live[name].settled, _digest(queue.shard, name))
        )
        holder = preferred.get(queue.shard)
        first = [] if holder is None else [holder, without[holder][queue.shard]]
        return tuple(name for name in dict.fromkeys([*first, *order]) if name in able)[:replicas]

    return {each.shard: ranked(each) for each in queues}


def _moved(queue: ShardQueue, holder: str | None) -> ShardQueue:
    if holder is None or queue.holder is None or holder == queue.holder:
        return queue
    return replace(queue, holder=holder, waiting=(queue.waiting | {queue.holder}) - {holder})


def _leaving(live: Mapping[str, LiveDaemon], name: str) -> list[LiveDaemon]:
    return [replace(each, leaving=each.leaving or each.name == name) for each in live.values()]


@lru_cache(maxsize=1 << 15)
def _digest(shard: int, name: str) -> bytes:
    return blake2b(f"{shard}/{name}".encode(), digest_size=8).digest()


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
