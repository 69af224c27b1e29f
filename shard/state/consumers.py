"""The consumers of one subscription: those that are registered, and those that may not come back. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from headgate.model import entries as e

REMOVED_CONSUMER_RETENTION_MS = 600_000
"""How long a removed consumer is remembered: much longer than a broker can delay a message."""
MAX_REMOVED_CONSUMERS = 1000


@dataclass(frozen=True, slots=True)
class RegisteredConsumer:
    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Start of its grace period; None while it is connected."""
    supports_bucket_ranges: bool = False
    """Whether it can read a bucket range of a segment. Clients of the first version cannot."""
    capacity: int = 100
    """Capacity in percent of a standard consumer. Used when balancing by load."""
    host: str = ""
    """Where it runs, as it says."""
    version: str = ""
    """Version of its library, as it says."""
    registered_at_ms: int | None = None
    """When this instance joined."""
    stalled_at_ms: int | None = None
    """When it lost a segment because it made no progress; None: it has made some since, or asked for records."""


@dataclass(frozen=True, slots=True)
class RemovedConsumer:
    """A consumer instance that left, was replaced or evicted by a command, or whose subscription was deleted."""

    consumer: str
    incarnation: int
    client_id: str
    at_ms: int
    evicted: bool = False
    """A command has removed it."""


def find_removed(
    consumers: Iterable[RemovedConsumer], consumer: str, incarnation: int, client_id: str
) -> RemovedConsumer | None:
    """Return exactly this consumer instance, if ``consumers`` include it."""
    wanted = (consumer, incarnation, client_id)
    return next((each for each in consumers if (each.consumer, each.incarnation, each.client_id) == wanted), None)


class Consumers(dict[str, RegisteredConsumer]):
    """Name → the consumer that is registered under it."""

    removed: list[RemovedConsumer]
    """The latest last. A delayed copy of a registration must not bring a removed consumer back."""
    unused_since_ms: int | None
    """Since when there has been no consumer; None while there is one."""

    def __init__(
        self,
        registered: Mapping[str, RegisteredConsumer] = MappingProxyType({}),
        removed: Iterable[RemovedConsumer] = (),
        unused_since_ms: int | None = None,
    ) -> None:
        super().__init__(registered)
        self.removed = list(removed)
        self.unused_since_ms = unused_since_ms

    def snapshot(self) -> Consumers:
        return Consumers(self, self.removed, self.unused_since_ms)

    def find_removed(self, consumer: str, incarnation: int, client_id: str) -> RemovedConsumer | None:
        """Return exactly this consumer instance, if it left, was replaced or was evicted by a command recently."""
        return find_removed(self.removed, consumer, incarnation, client_id)

    def known(self, at_ms: int) -> list[RemovedConsumer]:
        """Return all removed and registered consumers: none may come back if this is deleted at ``at_ms``."""
        registered = [
            RemovedConsumer(known.consumer, known.incarnation, known.client_id, at_ms) for known in self.values()
        ]
        return self.removed + registered

    def register(self, entry: e.ConsumerRegistered, at_ms: int) -> None:
        known = self.get(entry.consumer)
        same = known is not None and (known.incarnation, known.client_id) == (entry.incarnation, entry.client_id)
        self[entry.consumer] = RegisteredConsumer(
            entry.consumer,
            entry.incarnation,
            entry.client_id,
            supports_bucket_ranges=entry.supports_bucket_ranges,
            capacity=entry.capacity,
            host=entry.host,
            version=entry.version,
            registered_at_ms=known.registered_at_ms if known is not None and same else at_ms,
        )
        self.unused_since_ms = None

    def set_disconnected(self, consumer: str, at_ms: int | None) -> None:
        self[consumer] = replace(self[consumer], disconnected_at_ms=at_ms, stalled_at_ms=None)

    def set_stalled(self, consumer: str, at_ms: int | None) -> None:
        if self[consumer].stalled_at_ms != at_ms:
            self[consumer] = replace(self[consumer], stalled_at_ms=at_ms)

    def remove(self, entry: e.ConsumerRemoved, at_ms: int) -> None:
        gone = self.pop(entry.consumer)
        recent = [known for known in self.removed if at_ms - known.at_ms < REMOVED_CONSUMER_RETENTION_MS]
        by_command = bool(entry.token)
        if by_command or entry.reason in ("left", "failed", "replaced"):
            recent.append(RemovedConsumer(gone.consumer, gone.incarnation, gone.client_id, at_ms, evicted=by_command))
        self.removed = recent[-MAX_REMOVED_CONSUMERS:]
        self.unused_since_ms = None if self else at_ms
