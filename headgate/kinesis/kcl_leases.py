"""What the tables of a KCL application say about each shard, and whether they are of this stream. Pure.

The same rows are written by KCL 1 to 3. A multi-stream application prefixes the shard with account, stream and creation
time of the stream. A checkpoint is a sequence number with a sub-sequence number, which counts records that were packed
into one from 0, and is 0 for others.

Shards of all streams have the same names. So a finished lease is believed only in a table that names the stream: by
such a prefix, by the id of the stream (KCL 3), or by a sequence number, because Kinesis refuses one of another stream.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headgate.client.source_listing import ExternalLayout
from headgate.errors import HeadgateError
from headgate.kinesis.position import Position
from headgate.model.text import listed
from headgate.protocol.requests import SegmentImport

FINISHED: Final = "SHARD_END"
_OLDEST: Final = "TRIM_HORIZON"
_MULTI_STREAM_PARTS: Final = 4


class Lease(NamedTuple):
    checkpoint: str | None
    """`FINISHED`, the checkpoint that continues there, or None: the shard was not begun."""
    names_stream: bool
    parents: frozenset[str]
    """None where the row has none."""
    hashes: tuple[str, str] | None
    """As Kinesis lists them. KCL stores them since 2.3."""

    @property
    def shows_stream(self) -> bool:
        """Whether it is of the stream, provided that Kinesis accepts its checkpoint."""
        return self.names_stream or self.checkpoint not in (None, FINISHED)

    def contradicts(self, shard: SegmentImport) -> bool:
        return bool(self.parents and shard.parents and self.parents.isdisjoint(shard.parents)) or (
            self.hashes is not None and shard.hashes is not None and self.hashes != shard.hashes
        )


def read_leases(items: Iterable[Mapping[str, Any]], stream: str, created: str, stream_id: str = "") -> dict[str, Lease]:
    """Return shard → its lease.

    ``items``: as Scan returns them. ``created``: when the stream was, in seconds since 1970: an earlier one of its name
    had shards of the same names. ``stream_id``: of the stream, if Kinesis says it. Raises HeadgateError: a lease has no
    exact position, none is of ``stream``, or the rows are of an earlier one.
    """
    found: dict[str, Lease] = {}
    ids: set[str] = set()
    for item in items:
        row = {name: next(iter(value.values())) for name, value in item.items()}
        key = str(row.get("leaseKey", row.get("key", "")))
        parts = key.split(":")
        if key == stream and "streamId" in row:
            ids.add(row["streamId"])
        if len(parts) == _MULTI_STREAM_PARTS and parts[1:3] != [stream, created]:
            continue
        checkpoint = row.get("checkpoint")
        if checkpoint is None:
            continue  # KCL 3 may keep other rows in the table.
        shard = parts[-1]
        if checkpoint in (FINISHED, _OLDEST):
            position = FINISHED if checkpoint == FINISHED else None
        elif checkpoint.isdecimal():
            position = Position(checkpoint, int(row.get("checkpointSubSequenceNumber", "0"))).checkpoint
        else:
            raise HeadgateError(
                f"the lease of {shard} is at {checkpoint}, so KCL has handled no record of it: let a worker store a "
                "checkpoint, or delete the row to read the shard from its oldest record"
            )
        hashes = (row["startingHashKey"], row["endingHashKey"]) if "endingHashKey" in row else None
        named = len(parts) == _MULTI_STREAM_PARTS
        found[shard] = Lease(position, named, frozenset(row.get("parentShardId", ())), hashes)
    if not found:
        raise HeadgateError(f"the table has no lease of a shard of stream {stream}: is it that of another application?")
    if stream_id and ids - {stream_id}:
        raise HeadgateError(f"the table is of an earlier stream {stream}, whose id was {', '.join(sorted(ids))}")
    return {
        shard: lease._replace(names_stream=lease.names_stream or stream_id in ids) for shard, lease in found.items()
    }


def positions(leases: Mapping[str, Lease], layout: ExternalLayout, *, trusted: bool = False) -> dict[str, str]:
    """Return shard → `FINISHED` or its checkpoint, for the shards of ``layout`` that were begun.

    KCL deletes the lease of a finished shard once its children were begun, while Kinesis still lists the shard. So one
    without a lease was finished if a descendant has one. Raises HeadgateError: the leases are not of this stream, or
    shards were finished and nothing shows that they are of it, unless ``trusted``.
    """
    shards = {each.segment: each for each in layout.segments}
    followed: set[str] = set()
    waiting = [parent for shard in leases.keys() & shards for parent in shards[shard].parents]
    while waiting:
        if (shard := waiting.pop()) not in followed:
            followed.add(shard)
            waiting += shards[shard].parents if shard in shards else ()
    own = {each: leases[each] for each in shards if each in leases}
    known = {each: FINISHED for each in shards if each in followed and each not in own}
    known |= {each: lease.checkpoint for each, lease in own.items() if lease.checkpoint is not None}
    finished = [each for each in shards if known.get(each) == FINISHED]
    if others := [each for each in finished if not shards[each].sealed]:
        raise HeadgateError(f"{listed(others)} is open, and a finished lease: of another stream, or of an earlier one")
    newest = max(map(_number, shards))
    others = [each for each, lease in own.items() if lease.contradicts(shards[each])]
    if others := others + [each for each in leases if each not in shards and _number(each) > newest]:
        raise HeadgateError(f"the stream never had the {listed(others)} of the leases: of another or an earlier stream")
    if finished and not trusted and not any(each.shows_stream for each in own.values()):
        raise HeadgateError(
            f"{listed(finished)} would be passed unread, and nothing shows that the table is of this stream: no lease "
            "has a sequence number. If the application was configured for it, repeat the command with --trust-table"
        )
    return known


def _number(shard: str) -> int:
    """Return the number of a shard. It rises from parents to children."""
    digits = shard.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0
