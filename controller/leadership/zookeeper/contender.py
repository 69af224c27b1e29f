"""What `ZooKeeperElections` knows about this daemon's place in one queue, and about leaving it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller.leadership.policy.queue_order import QueueOrder, SeenQueue


@dataclass(slots=True, eq=False)
class Contender:
    shard: int
    folder: str
    prefix: str
    """Of its queue node."""
    wakeup: asyncio.Event
    """Triggers a reconciliation."""
    watcher: Callable[[object], None]
    task: asyncio.Task[None] | None = None
    joined: bool = False
    node: str = ""
    """Its queue node, as it was seen last."""
    seen: SeenQueue | None = None
    nominated: int | None = None
    """Version of the order that names this daemon as the successor; None: none does."""
    confirmed: int | None = None
    """The version for which it is prepared."""
    confirmation_written: int | None = None
    wanted_successor: str = ""
    """The instance to nominate."""
    successor: str = ""
    """Its queue node, once it is nominated."""
    version: int = 0
    """Of the order with that nomination."""
    successor_reported: bool = False
    wanted_next: str = ""
    """The instance to place behind this one; empty: the order stays as it is."""
    placed_next: str = ""
    """Its queue node, once it is behind this one."""
    keeps: bool = False
    """An operator wants the lock to stay at this daemon; not written yet."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The order to write when the queue is left, while the session exists."""

    order: QueueOrder
    version: int
    """Of the order that it replaces."""
    session: int
