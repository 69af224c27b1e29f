"""The order of a shard's queue in ZooKeeper. Pure.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

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
