"""Passes the lock of a shard on to a successor, keeps it where an operator wants it, and places who is next.

To pass a lock on, its holder writes the node of a contender as the successor into the folder of the queue. That
contender writes the version of this data into its own node when it is prepared. Then the holder writes it as the first
node, and deletes its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
from kazoo.exceptions import BadVersionError, NoNodeError

from controller.leadership.election import EventHandler, LockEvent
from controller.leadership.policy.queue_order import QueueOrder, SeenQueue, newest_node
from controller.leadership.policy.transitions import Event
from controller.leadership.zookeeper.connection import ZooKeeperConnection


@dataclass(slots=True, eq=False)
class Nomination:
    """How the holder of the lock nominates this daemon. Versions are those of the order that names it as successor."""

    version: int | None = None
    """The newest; None: this daemon is not nominated."""
    confirmed: int | None = None
    """The one for which it is prepared."""
    written: int | None = None
    """The confirmation that is in its queue node."""


@dataclass(slots=True, eq=False)
class Successor:
    """Whom this daemon, which has the lock, wants to pass it on to."""

    instance: str
    node: str = ""
    """Its queue node, once it is nominated."""
    version: int = 0
    """The version of the order with that nomination."""
    reported: bool = False
    """Whether it was reported that it is prepared, or has left."""


@dataclass(slots=True, eq=False)
class Wishes:
    """What this daemon, which has the lock, writes about the rest of the queue. They end with the lock."""

    successor: Successor | None = None
    next: str = ""
    """The instance to place behind this one; empty: the order stays as it is."""
    placed: str = ""
    """Its queue node, once it is behind this one."""
    keeps: bool = False
    """An operator wants the lock to stay at this daemon; not written yet."""


@dataclass(slots=True, eq=False)
class Contender:
    """What `ZooKeeperElections` knows about this daemon's place in one queue."""

    shard: int
    folder: str
    prefix: str
    wakeup: asyncio.Event
    watcher: Callable[[object], None]
    task: asyncio.Task[None] | None = None
    session: int = -1
    """The session in which the queue was seen last."""
    joined: bool = False
    """Whether this daemon had a node in the queue then."""
    acquired: bool = False
    """Whether that node was the first one."""
    holder: str = ""
    """The instance that was the first one."""
    owned: dict[str, bool] = field(default_factory=dict)
    """Node in the queue → whether a session owns it. Asked once: names are not used again."""
    node: str = ""
    """Its queue node, as it was seen last."""
    seen: SeenQueue | None = None
    nomination: Nomination = field(default_factory=Nomination)
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True)
class Grant:
    """The order to write when the queue is left, while the session exists."""

    order: QueueOrder
    version: int
    """The version of the order that it replaces."""
    session: int


class ZooKeeperSuccession:
    """What contenders write and read beside their places in a queue. All methods raise what the connection raises."""

    def __init__(self, connection: ZooKeeperConnection, on_event: EventHandler) -> None:
        self._connection = connection
        self._on_event = on_event

    async def arrange(
        self, contender: Contender, mine: str, queue: list[str], order: QueueOrder, version: int
    ) -> QueueOrder:
        """Write who is behind this daemon, which has the lock, and that an operator wants it to stay; return the order.

        ``version`` is that of ``order``. While a successor is nominated the lock is about to move: both have to wait.
        """
        wishes = contender.wishes
        if wishes.successor is not None:
            return order
        if wishes.placed and wishes.placed not in queue:
            wishes.next = wishes.placed = ""
        behind = wishes.placed or newest_node(wishes.next, queue[1:]) or ""
        wishes.placed = behind
        fixed = wishes.keeps or (order.fixed and order.first == mine)
        wanted = QueueOrder(first=mine, fixed=fixed, next=behind or order.next)
        if (wishes.keeps and (order.first, order.fixed) != (mine, True)) or (behind and queue[1] != behind):
            try:
                await self._connection.call("set", contender.folder, msgspec.json.encode(wanted), version=version)
            except BadVersionError:
                return order  # Another client changed it, which wakes the contender.
            order = wanted
        wishes.keeps = False
        return order

    async def nominate(self, contender: Contender, mine: str, queue: list[str]) -> None:
        """Write the wanted nomination, and report once that the successor is prepared, or has left."""
        successor = contender.wishes.successor
        if successor is None or successor.reported:
            return
        if not successor.node:
            node = newest_node(successor.instance, queue[1:])
            if node is None:
                return
            fixed = contender.seen is not None and contender.seen.fixed
            order = msgspec.json.encode(QueueOrder(first=mine, fixed=fixed, successor=node, next=node))
            stat = await self._connection.call("set", contender.folder, order)
            successor.node, successor.version = node, stat.version
        event = Event.SUCCESSOR_READY
        try:
            path = f"{contender.folder}/{successor.node}"
            data, _ = await self._connection.call("get", path, watch=contender.watcher)
            if data != b"%d" % successor.version:
                return
        except NoNodeError:
            event = Event.SUCCESSOR_LEFT
        if contender.wishes.successor is successor:  # Otherwise another one is wanted, and the contender is awake.
            successor.reported = True
            self._on_event(LockEvent(contender.shard, event))

    async def be_nominated(self, contender: Contender, mine: str, version: int) -> None:
        """Report a new nomination, and write the confirmation of the present one."""
        nomination = contender.nomination
        if nomination.version != version:
            nomination.version = version
            self._on_event(LockEvent(contender.shard, Event.NOMINATED))
        if nomination.confirmed == version and nomination.written != version:
            await self._connection.call("set", f"{contender.folder}/{mine}", b"%d" % version)
            nomination.written = version

    async def write_grant(self, folder: str, grant: Grant) -> None:
        """Make the successor the first one, unless the order has changed since its nomination."""
        with suppress(BadVersionError):
            await self._connection.call("set", folder, msgspec.json.encode(grant.order), version=grant.version)
