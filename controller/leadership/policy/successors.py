"""Decide which daemons keep the state of a shard ready, in the order in which they would take it over. Pure.

All daemons compute the same from the same view, as in `controller.leadership.policy.spread`. The leader of a shard has
the first successor placed behind itself in the queue, so the lock passes to it when the leader is lost.

Rules:

1. A successor waits in the shard's queue, and keeps its shards. Each shard has as many as there are, up to a number.
   Those that lack the broker or the store come last: while all lack it, they keep the states that they have.
2. The daemon to which the spread moves the shard comes first.
3. Next is the daemon that would get the shard if its leader, after all planned moves, stopped. So the shards of a
   leader are divided among the others, whether it stops, is drained or is lost.
4. The others are in an order by digest, those that have settled first: a daemon that comes or goes changes few of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b

from controller.leadership.policy.spread import LiveDaemon, ShardQueue, plan

Successors = Mapping[int, tuple[str, ...]]
"""Shard → its successors, the first one first."""


def successors(daemons: Iterable[LiveDaemon], queues: Iterable[ShardQueue], replicas: int) -> Successors:
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
    """Return the queue after the planned move."""
    if holder is None or queue.holder is None or holder == queue.holder:
        return queue
    return replace(queue, holder=holder, waiting=(queue.waiting | {queue.holder}) - {holder})


def _leaving(live: Mapping[str, LiveDaemon], name: str) -> list[LiveDaemon]:
    return [replace(each, leaving=each.leaving or each.name == name) for each in live.values()]


@lru_cache(maxsize=1 << 15)
def _digest(shard: int, name: str) -> bytes:
    return blake2b(f"{shard}/{name}".encode(), digest_size=8).digest()
