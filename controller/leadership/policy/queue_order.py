"""The order of a shard's queue in ZooKeeper, and which locks a daemon leaves to others after a cold start. Pure.

Rules:

1. Queue nodes are ordered by the number that ZooKeeper gave them when they were created.
2. The data of the queue's folder may name one node as the first one, as long as it exists: the
   previous holder passed the lock on to it. Names of nodes are not used again, so old data is harmless.
3. The data may also name the next one, with which it is behind the first one, or in front if that has left: the
   previous holder chose who takes over when it is lost.
4. The data may also name a successor: the holder asks it to read the ledger. That changes no order.
5. Data that is not an order is ignored.
6. The previous holder may pass over the one that it made the first: then the one behind it is first.
7. An instance that contends again may still have its previous node, which it is about to delete: the newest counts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from controller.leadership.policy.spread import LiveDaemon
from headgate.model.text import UNREADABLE_JSON

_CONTENDER: Final = re.compile(r"-[0-9a-f]{8}-\d{10}$")
"""The end of a queue node's name, behind the instance."""


class QueueOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a queue's folder. The names are those of queue nodes; empty: none."""

    first: str = ""
    fixed: bool = False
    """An operator transferred the shard to ``first``, or wants it to stay there."""
    successor: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """The queue of a shard as a contender has last seen it, some seconds ago at most."""

    holder: str
    """The instance that is first."""
    waiting: frozenset[str]
    """The instances behind it."""
    fixed: bool = False
    """An operator had the lock passed on to the holder, or kept there."""
    next: str = field(default="", compare=False)
    """The first of those behind it; empty: none is."""


def read_order(data: bytes) -> QueueOrder:
    """Return the order in the data of a folder (rule 5)."""
    try:
        return msgspec.json.decode(data, type=QueueOrder)
    except UNREADABLE_JSON:
        return QueueOrder()


def instance_of(node: str) -> str:
    return _CONTENDER.sub("", node)


def newest_node(instance: str, nodes: Iterable[str]) -> str | None:
    """Return the node with which ``instance`` waits among ``nodes``, in any order (rule 7); None: it does not."""
    return max((node for node in nodes if instance_of(node) == instance), key=_number, default=None)


def queue_nodes(names: Iterable[str]) -> list[str]:
    """Return the names of queue nodes, by number; other names are left out."""
    return sorted((name for name in names if _CONTENDER.search(name)), key=_number)


def in_order(nodes: Iterable[str], order: QueueOrder) -> list[str]:
    """Return ``nodes``, which are ordered by number, in the order of the queue (rules 2 and 3)."""
    return sorted(nodes, key=lambda node: (node != order.first, node != order.next))


def passing_over(queue: Sequence[str], instance: str) -> QueueOrder | None:
    """Return the order without ``instance`` at the front of ``queue`` (rule 6); None: it is not there, or alone."""
    return QueueOrder(first=queue[1]) if len(queue) > 1 and instance_of(queue[0]) == instance else None


def _number(node: str) -> int:
    return int(node[-10:])


LEAST_DIFFERENCE: Final = 2


def left_to_others(
    instance: str, in_line: Iterable[int], queues: Mapping[int, SeenQueue], daemons: Iterable[LiveDaemon]
) -> list[int]:
    """Decide which shards a daemon leaves to others before it has begun to restore them.

    After a stop of all daemons, the first one that starts gets nearly every lock, and restores one state after the
    other while the others wait. No client notices who begins a term that has not begun, so none of the limits of a
    transfer hold.

    1. A shard is left only if this daemon has its lock, would have to restore it, and has not begun to. The last in
       line is left first.
    2. It is left to the daemon that is next in its queue, which gets the lock; never to one that gives its own shards
       away.
    3. It is left only to a daemon with at least two locks fewer. Each step makes the difference smaller, so that no
       shard comes back again and again, whatever the others decide from the same view.
    4. A shard that an operator has transferred stays.
    5. A daemon that gives its shards away leaves all of them, also those that it has begun to restore: its store may
       hang, and it would keep the lock. It leaves them to a daemon that is ready; those before that one in the queue
       do the same.

    Return the shards that ``instance`` leaves now; ``in_line``: those that it may leave, in order.
    """
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
