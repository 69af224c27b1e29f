"""What has changed, for people: one ledger entry each."""

import msgspec


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    shard: int
    leader_epoch: int
    chunk: int
    event: str
    """The type of the entry, as in docs/ledger.md."""
    topic: str | None
    subscription: str | None
    text: str


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[LedgerEvent, ...]
    next: int | None
    """All events from this time on are here: give it as ``before_ms`` to find older ones. None: there are none."""
