"""What a daemon registers about itself in ZooKeeper. Pure.

A record of another version may have other fields. What is missing has its default, and data that is no record is an
empty one: such a daemon gets no shards, and has no address.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from controller.leadership.policy.readiness import Readiness


class InstanceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str = ""
    """Where its HTTP API listens."""
    version: str = ""
    settled: bool = False
    """It has been live for long enough to get shards by the spread."""
    leaving: bool = False
    """It is stopping."""
    loads: dict[int, Annotated[int, Meta(ge=0)]] = {}
    """Shard → load in bytes per second, for the shards that it leads (`controller.leadership.policy.shard_load`)."""
    readiness: Readiness = "ready"
    """Whether it can do a leader's work, or which server it lacks."""


def encode_record(record: InstanceRecord) -> bytes:
    return msgspec.json.encode(record)


def read_record(data: bytes) -> InstanceRecord:
    try:
        return msgspec.json.decode(data, type=InstanceRecord)
    except msgspec.DecodeError:
        return InstanceRecord()
