"""What `tests.support.fakes.zookeeper` stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller.leadership.policy.instance_record import MaintenanceRecord

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
    owner: str | None = None
    """The user whose nodes they are; None: they are open."""
    config: dict[str, Any] | None = None
    sharing: tuple[str, ...] = ()
    """Nodes of other clusters whose daemons use the same ledger."""
    queues: dict[int, list[Session]] = field(default_factory=dict)
    """The sessions in their order: one to which the lock was passed on is first."""
    nominations: dict[int, Nomination] = field(default_factory=dict)
    fixed: dict[int, Session] = field(default_factory=dict)
    """Shard → the session to which an operator had its lock passed on."""
    instances: dict[str, tuple[Session, bytes]] = field(default_factory=dict)
    maintenance: dict[str, MaintenanceRecord] = field(default_factory=dict)
    """One for each instance that has ever been in maintenance."""

    @property
    def in_maintenance(self) -> frozenset[str]:
        return frozenset(name for name, record in self.maintenance.items() if record.on)

    def place_behind(self, shard: int, first: Session, second: Session) -> None:
        """Move ``second`` behind ``first`` in a queue."""
        queue = self.queues[shard]
        queue.remove(second)
        queue.insert(queue.index(first) + 1, second)


@dataclass
class NextWishes:
    """Whom a client wants behind itself. A wish ends with the place of that client in the queue."""

    _wanted: dict[int, str] = field(default_factory=dict)
    """Shard → instance."""
    _placed: dict[int, Session] = field(default_factory=dict)
    """Shard → its place, once it was found."""

    def want(self, shard: int, instance: str) -> None:
        if self._wanted.get(shard) != instance:
            self._placed.pop(shard, None)
            self._wanted[shard] = instance

    def end(self, shard: int) -> None:
        self._wanted.pop(shard, None)
        self._placed.pop(shard, None)

    def resolve(self, shard: int, queue: list[Session]) -> Session | None:
        """Return the place of the wanted client, if there is one."""
        if shard in self._placed and self._placed[shard] not in queue:
            self.end(shard)
        if shard not in self._placed and shard in self._wanted:
            found = place_of(self._wanted[shard], queue)
            if found is None:
                return None
            self._placed[shard] = found
        return self._placed.get(shard)


def place_of(instance: str, queue: list[Session]) -> Session | None:
    """Return the first place of a client behind the holder of the lock."""
    return next((each for each in queue[1:] if each.owner.instance == instance), None)
