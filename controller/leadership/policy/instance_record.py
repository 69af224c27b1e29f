"""What ZooKeeper stores about a daemon: what it registers about itself, and its maintenance. Pure.

A record of another version may have other fields. What is missing has its default, and data that is no record is an
empty one: such a daemon gets no shards, and has no address.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from controller.leadership.policy.readiness import Readiness
from headgate.model.text import UNREADABLE_JSON


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
