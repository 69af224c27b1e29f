"""Decide which shards a daemon leaves to others before it has begun to restore them. Pure.

After a stop of all daemons, the first one that starts gets nearly every lock, and restores one state after the other
while the others wait. No client notices who begins a term that has not begun, so none of the limits of a transfer hold.

Rules:

1. A shard is left only if this daemon has its lock, would have to restore it, and has not begun to. The last in line is
   left first.
2. It is left to the daemon that is next in its queue, which gets the lock; never to one that gives its own shards away.
3. It is left only to a daemon with at least two locks fewer. Each step makes the difference smaller, so that no shard
   comes back again and again, whatever the others decide from the same view.
4. A shard that an operator has transferred stays.
5. A daemon that gives its shards away leaves all of them, also those that it has begun to restore: its store may hang,
   and it would keep the lock. It leaves them to a daemon that is ready; those before that one in the queue do the same.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from controller.leadership.policy.queue_order import SeenQueue
from controller.leadership.policy.spread import LiveDaemon

LEAST_DIFFERENCE: Final = 2


def left_to_others(
    instance: str, in_line: Iterable[int], queues: Mapping[int, SeenQueue], daemons: Iterable[LiveDaemon]
) -> list[int]:
    """Return the shards that ``instance`` leaves now; ``in_line``: those that it may leave, in order."""
    live = {each.name: each for each in daemons}
    leaves_all = instance in live and live[instance].gives_away
    takers = (each for each in live.values() if not each.gives_away)
    able = {each.name for each in takers if each.readiness == "ready" or not leaves_all}
    locks = Counter(queue.holder for queue in queues.values())
    left = []
    for shard in reversed(list(in_line)):
        queue = queues.get(shard)
        if queue is None or queue.holder != instance or not able & (queue.waiting if leaves_all else {queue.next}):
            continue
        if leaves_all or (not queue.fixed and locks[instance] - locks[queue.next] >= LEAST_DIFFERENCE):
            locks[instance] -= 1
            locks[queue.next] += 1
            left.append(shard)
    return left
