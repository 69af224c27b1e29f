"""What ZooKeeper stores about a daemon: what it registers about itself, and its maintenance. Pure.

A record of another version may have other fields. What is missing has its default, and data that is no record is an
empty one: such a daemon gets no shards, and has no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headgate.model.text import UNREADABLE_JSON

Readiness = Literal["ready", "doubtful", "no_broker", "no_store"]

LACKS: Final = {"no_broker": "does not reach the broker", "no_store": "cannot write to the store"}
"""What a daemon lacks that gives its shards away."""

BROKER_LOST_SECONDS: Final = 2.5
STORE_LOST_SECONDS: Final = 25.0
"""Longer than it takes others to see that one is not ready, to try a write, and to register that it failed."""
STABLE_SECONDS: Final = 6.0
"""Longer than an attempt to connect that gets no answer (3 s), and the pause after it."""


@dataclass(slots=True)
class Contact:
    """Whether a server works for this daemon, and since when."""

    works: bool
    since: float

    def note(self, *, works: bool, now: float) -> None:
        if works != self.works:
            self.works, self.since = works, now


@dataclass(frozen=True, slots=True)
class Servers:
    broker: Contact
    store: Contact


def readiness(servers: Servers, now: float) -> Readiness:
    """Decide whether a daemon can do a leader's work, as the spread of shards sees it.

    A leader needs the broker, and a store that accepts its writes.

    1. ``no_broker``, ``no_store``: the daemon has lacked it for `BROKER_LOST_SECONDS` or `STORE_LOST_SECONDS`. It
       gives its shards away. The first is longer than the pauses between its attempts to connect, and much shorter
       than ``ingest.unreachable_seconds``, which ends its terms.
    2. ``ready``: it has had both for `STABLE_SECONDS`. After a restart of the broker the daemons connect one after
       the other, and none of them is there for the shards of one that is a little later.
    3. ``doubtful``: neither.

    While one daemon is not ready the others often try a write. So within `STORE_LOST_SECONDS` they find out whether
    the store fails for all of them: then no shard moves.
    """
    broker, store = servers.broker, servers.store
    if not broker.works and now - broker.since >= BROKER_LOST_SECONDS:
        return "no_broker"
    if not store.works and now - store.since >= STORE_LOST_SECONDS:
        return "no_store"
    stable = all(each.works and now - each.since >= STABLE_SECONDS for each in (broker, store))
    return "ready" if stable else "doubtful"


class InstanceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str = ""
    """Where its HTTP API listens."""
    version: str = ""
    levels: tuple[int, int] = (1, 1)
    """First and last feature level that its version supports (`controller.leadership.policy.feature_levels`)."""
    settled: bool = False
    """It has been live for long enough to get shards by the spread."""
    leaving: bool = False
    loads: dict[int, Annotated[int, Meta(ge=0)]] = {}
    """Shard → load in bytes per second, for the shards that it leads (`controller.leadership.policy.shard_load`)."""
    readiness: Readiness = "ready"
    """Whether it can do a leader's work, or which server it lacks."""


def encode_record(record: InstanceRecord) -> bytes:
    return msgspec.json.encode(record)


def read_record(data: bytes) -> InstanceRecord:
    try:
        return msgspec.json.decode(data, type=InstanceRecord)
    except UNREADABLE_JSON:
        return InstanceRecord()


MAX_TOKENS: Final = 64
"""Commands remembered per daemon, the latest ones."""


class MaintenanceRecord(msgspec.Struct, frozen=True):
    """Whether the daemon is in maintenance, and the tokens of the commands that were executed, latest last.

    The record outlives terms and leaders, and any leader changes it. So it remembers the commands itself: a late copy
    of one must not undo what was commanded since.
    """

    on: bool = False
    tokens: tuple[str, ...] = ()

    def after(self, token: str, *, on: bool) -> MaintenanceRecord | None:
        """Return the record after a command; None if it was executed before."""
        return None if token in self.tokens else MaintenanceRecord(on, (*self.tokens, token)[-MAX_TOKENS:])


def read_maintenance(data: bytes) -> MaintenanceRecord:
    """Return the record in ``data``. What is no record counts as maintenance: the daemon then leads nothing."""
    try:
        return msgspec.json.decode(data, type=MaintenanceRecord)
    except UNREADABLE_JSON:
        return MaintenanceRecord(on=True)
