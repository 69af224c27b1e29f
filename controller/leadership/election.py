"""What headgate needs of an election service, in its own words.

`Elections` is implemented by controller.leadership.zookeeper over ZooKeeper and by tests/support/zookeeper.py in
memory; one contract suite runs against both. It tells who may *try* to lead a shard. It does not say who leads: the
ledger does, and losing contact here ends no reign (see controller.leadership.transitions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class Acquired:
    """We are first in the queue for a shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class Released:
    """We were first in the queue for a shard, and no longer are, without having withdrawn: our place is gone.

    While contending goes on, we queue again by ourselves, at the end.
    """

    shard: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """We are out of contact. Our places may be gone already; nobody can tell us."""


@dataclass(frozen=True, slots=True)
class Connected:
    """We are in contact: for the first time, again, or after `Lost` under a new session."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session has expired, our places with it. A `Released` for each shard we were first for came before."""


ElectionEvent = Acquired | Released | Suspended | Connected | Lost
EventHandler = Callable[[ElectionEvent], None]
"""Called on the loop. Must not block and must not raise."""


class Elections(Protocol):
    """One session with the election service, kept up for as long as it is open. Built with an `EventHandler`."""

    def contend(self, shard: int) -> None:
        """Queue for a shard, and again whenever our place is lost, until `withdraw`. Does not wait."""

    def withdraw(self, shard: int) -> None:
        """Leave the queue of a shard, and whoever is next gets its turn. Does not wait, and tells no `Released`.

        Our place is given up as soon as the service can be reached, at the latest when the session ends.
        """

    async def register_instance(self, name: str, data: bytes) -> None:
        """List this instance among the live ones, from the next contact on, for as long as the session stands.

        Returns at once. A name that another session holds is taken over once that session is gone.
        """

    async def live_instances(self) -> dict[str, bytes]:
        """Return the data of the live instances by name. Waits for contact, without limit."""

    async def cluster_config(self, default: dict[str, Any]) -> dict[str, Any]:
        """Return the cluster's config, which is the first ``default`` anybody gave. Waits for contact, without limit.

        Raises:
            ConfigError: what is kept there is not a config.

        """

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Give up all places and end the session; takes a few seconds at most, also out of contact."""
