"""The election service that headgate needs: it decides which daemon may *try* to lead a shard.

The ledger decides which one leads. Losing contact with the service ends no term (see
`transitions`). One contract suite tests all implementations.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from controller.leadership.policy.queue_order import SeenQueue
from controller.leadership.policy.transitions import Event
from headgate.errors import HeadgateError


@dataclass(frozen=True, slots=True)
class LockEvent:
    """A change of the queue of a shard.

    * LOCK_ACQUIRED: this daemon is first.
    * LOCK_LOST: it was first and has lost its queue node without withdrawing. While it contends, it queues again
      automatically, at the end.
    * NOMINATED: the holder of the lock intends to pass it on to this daemon.
    * SUCCESSOR_READY, SUCCESSOR_LEFT: the contender that this daemon has nominated is prepared, or has left the queue.

    The last three are reported once for each nomination.
    """

    shard: int
    event: Event


@dataclass(frozen=True, slots=True)
class HolderChanged:
    """``instance`` is first in the queue of a shard that this daemon contends for; it may be this daemon."""

    shard: int
    instance: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """Contact is lost. The queue nodes may be gone already; there is no way to know."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Contact exists: for the first time, again, or under a new session after `Lost`."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session and its queue nodes have expired. A LOCK_LOST precedes it for each acquired shard."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The service refuses this client: its certificates, its user, or its rights to a node. It tries again."""

    problem: str | None
    """What is refused and what to do, in a sentence; None: nothing any more."""


@dataclass(frozen=True, slots=True)
class ForeignNodeFound:
    """A node in the cluster's folders that none of its daemons created. It is reported once, and ignored."""

    node: str


class ElectionsUnreachableError(HeadgateError):
    """The election service cannot be reached at present."""


class ElectionClientError(HeadgateError):
    """The client of the election service has ended, and does not come back."""


ElectionEvent = LockEvent | HolderChanged | Suspended | Connected | Lost | Refused | ForeignNodeFound
EventHandler = Callable[[ElectionEvent], None]
"""Called on the event loop. Must not block and must not raise."""


class Registry(Protocol):
    """What a session with the election service knows of its cluster beside the queues."""

    registered: asyncio.Event
    """Set once `register_instance` has registered this instance, or only a foreign node is in its way."""

    async def register_instance(self, name: str, data: bytes) -> None:
        """Register this instance as live, from the next contact on, while the session exists.

        Returns at once. A name that another session holds is registered once that session has
        ended. Another call replaces the data.
        """

    async def maintenance(self) -> frozenset[str] | None:
        """Return the names of the instances in maintenance, live or not; None without contact."""

    async def set_maintenance(self, name: str, *, on: bool, token: str, new: bool = True) -> bool:
        """Store permanently whether an instance is in maintenance.

        A ``token`` that was used for this instance before changes nothing: it is a late copy. Without ``new`` nothing
        is stored of an instance that never was in maintenance: False. Raises ElectionsUnreachableError.
        """

    async def instances(self) -> dict[str, bytes] | None:
        """Return the live instances with their data, at most a few seconds after a change; None without contact."""

    async def cluster_config(self, default: dict[str, Any] | None) -> dict[str, Any]:
        """Return the cluster's config: the first ``default`` ever given. Waits for contact without limit.

        Without ``default`` nothing is stored; empty: there is none yet.

        Raises ConfigError: the stored data is not a config.
        """

    async def config(self) -> dict[str, Any] | None:
        """Return the cluster's config as it is now; None without contact, or if it is damaged."""

    async def clusters_on(self, ledger_id: str) -> list[str]:
        """Return the nodes of other clusters whose live daemons use a ledger, as far as they may be read."""

    async def change_config(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Store what ``change`` makes of the config; None: nothing. It is called again if another daemon was faster.

        Raises ElectionsUnreachableError.
        """

    async def claim_ledger(self, ledger_id: str, **more: Any) -> str:
        """Return ``ledger_id`` in the cluster's config, which is this one from now on if there was none, with ``more``.

        Requires that `cluster_config` has returned. Waits for contact without limit.

        Raises ConfigError: the stored data is not a config.
        """


class Elections(Protocol):
    """A session with the election service, maintained while open. Events go to an `EventHandler`."""

    @property
    def registry(self) -> Registry: ...

    def contend(self, shard: int) -> None:
        """Queue for a shard until `withdraw`, again whenever the queue node is lost. Does not wait."""

    def withdraw(self, shard: int) -> None:
        """Leave the queue of a shard. Does not wait, and produces no LOCK_LOST.

        The queue node is deleted once the service is reachable, at the latest when the session ends.
        """

    def queue(self, shard: int) -> SeenQueue | None:
        """Return the queue of a shard that this daemon contends for; None: it has not seen it yet."""

    def nominate(self, shard: int, instance: str) -> None:
        """Ask a contender behind this daemon, which is first, to prepare. Does not wait.

        SUCCESSOR_READY follows if it is prepared, SUCCESSOR_LEFT if it leaves the queue. A later nomination replaces
        this one, and `withdraw` ends it.
        """

    def confirm(self, shard: int) -> None:
        """Report that this daemon is prepared for the shard for which it was nominated last. Does not wait."""

    def pass_on(self, shard: int, *, fixed: bool = False) -> None:
        """Withdraw, and make the nominated contender the first in the queue. Does not wait.

        If that contender has left the queue, or contact is lost, the lock passes as after `withdraw`. ``fixed`` is
        stored, and `SeenQueue` shows it while that contender holds the lock.
        """

    def pass_over(self, shard: int, instance: str) -> None:
        """Make the contender behind ``instance`` the first in the queue, if ``instance`` is that. Does not wait.

        Requires that this daemon contends. Without contact it has no effect.
        """

    def place_next(self, shard: int, instance: str) -> None:
        """Have a contender follow this daemon, which is first, before all others in the queue. Does not wait.

        It changes nothing while another contender is nominated, and ends when this daemon is no longer first, or when
        that contender leaves: a daemon that comes back has not read the ledger. A later call replaces this one.
        `SeenQueue.next` shows it.
        """

    def keep(self, shard: int) -> None:
        """Store that an operator wants the lock at this daemon, which is first. Does not wait.

        `SeenQueue.fixed` shows it. Nothing is stored if this daemon is not first by then.
        """

    async def watch(self) -> NoReturn:
        """Wait until the client of the service has ended; requires that this is open. Raises what a bug raised.

        Raises ElectionClientError: it has. Only a new process can connect again.
        """

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Leave all queues and end the session. Takes a few seconds at most, even without contact.

        With contact, the locks that were passed on get to their successors before.
        """
