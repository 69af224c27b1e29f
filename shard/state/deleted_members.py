"""The consumers of deleted subscriptions and topics, so that a late registration brings none of them back.

A broker may deliver a copy of a registration after the subscription was deleted, even after its
topic was created again. Ids do not help: a first registration names none. Part of the fold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shard.state.consumers import REMOVED_CONSUMER_RETENTION_MS, RemovedConsumer
from shard.state.subscription import Subscription

MAX_DELETED_MEMBERS: Final = 10_000
"""Per shard; beyond it, the earliest are forgotten. About 200 bytes each."""


@dataclass(slots=True)
class DeletedMembers:
    members: list[tuple[str, str, RemovedConsumer]] = field(default_factory=list)
    """(topic, subscription, consumer), latest last; names, because ids are not used again."""

    def add(self, subscriptions: Iterable[Subscription], at_ms: int) -> None:
        """Add the consumers of ``subscriptions``, which are deleted at ``at_ms``, and forget those of long ago."""
        earliest_ms = at_ms - REMOVED_CONSUMER_RETENTION_MS
        members = [member for member in self.members if member[2].at_ms > earliest_ms]
        for deleted in subscriptions:
            members += [(deleted.topic, deleted.name, consumer) for consumer in deleted.consumers.known(at_ms)]
        self.members = members[-MAX_DELETED_MEMBERS:]

    def of(self, topic: str, subscription: str) -> list[RemovedConsumer]:
        """Return the consumers of all deleted subscriptions of that name in topics of that name."""
        return [consumer for *names, consumer in self.members if names == [topic, subscription]]
