"""What `tests.support.fakes.zookeeper` stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.fakes.zookeeper import FakeElections


@dataclass(eq=False, slots=True)
class Session:
    owner: FakeElections
    user: str | None = None
    alive: bool = True
    expiry: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class Nomination:
    """What the holder of a shard has written about its successor."""

    holder: Session
    successor: Session
    confirmed: bool = False


@dataclass(slots=True)
class ServiceState:
    """The stored state of the service."""

    owner: str | None = None
    """The user whose nodes they are; None: they are open."""
    config: dict[str, Any] | None = None
    queues: dict[int, list[Session]] = field(default_factory=dict)
    """The sessions in their order: one to which the lock was passed on is first."""
    nominations: dict[int, Nomination] = field(default_factory=dict)
    fixed: dict[int, Session] = field(default_factory=dict)
    """Shard → the session to which an operator had its lock passed on."""
    instances: dict[str, tuple[Session, bytes]] = field(default_factory=dict)
    maintenance: set[str] = field(default_factory=set)
