"""What the lease table of a KCL application says about each shard. Pure.

The same rows are written by KCL 1 to 3. A multi-stream application prefixes the shard with account, stream and creation
time of the stream. A checkpoint is a sequence number with a sub-sequence number, which counts records that were packed
into one from 0, and is 0 for others.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headgate.client.source_listing import ExternalLayout
from headgate.errors import HeadgateError
from headgate.kinesis.position import Position
from headgate.model.short_list import listed

FINISHED: Final = "SHARD_END"
_OLDEST: Final = "TRIM_HORIZON"
_MULTI_STREAM_PARTS: Final = 4


def read_leases(items: Iterable[Mapping[str, Any]], stream: str, created: str) -> dict[str, str | None]:
    """Return shard → `FINISHED`, the checkpoint that continues there, or None: it was not begun.

    ``items``: as Scan returns them. ``created``: when the stream was, in seconds since 1970: an earlier one of its name
    had shards of the same names. Raises HeadgateError: a lease has no exact position, or none is of ``stream``.
    """
    found: dict[str, str | None] = {}
    for item in items:
        parts = item.get("leaseKey", {}).get("S", "").split(":")
        if len(parts) == _MULTI_STREAM_PARTS and parts[1:3] != [stream, created]:
            continue
        checkpoint = item.get("checkpoint", {}).get("S")
        if checkpoint is None:
            continue  # KCL 3 may keep other rows in the table.
        shard = parts[-1]
        if checkpoint in (FINISHED, _OLDEST):
            found[shard] = FINISHED if checkpoint == FINISHED else None
        elif checkpoint.isdecimal():
            found[shard] = Position(
                checkpoint, int(item.get("checkpointSubSequenceNumber", {}).get("N", "0"))
            ).checkpoint
        else:
            raise HeadgateError(
                f"the lease of {shard} is at {checkpoint}, so KCL has handled no record of it: let a worker store a "
                "checkpoint, or delete the row to read the shard from its oldest record"
            )
    if not found:
        raise HeadgateError(f"the table has no lease of a shard of stream {stream}: is it that of another application?")
    return found


def positions(leases: Mapping[str, str | None], layout: ExternalLayout) -> dict[str, str]:
    """Return shard → `FINISHED` or its checkpoint, for the shards of ``layout`` that were begun.

    KCL deletes the lease of a finished shard once its children were begun, while Kinesis still lists the shard. So one
    without a lease was finished if a descendant has one. Raises HeadgateError: one that was finished is open.
    """
    parents = {each.segment: each.parents for each in layout.segments}
    followed: set[str] = set()
    waiting = [parent for shard in leases for parent in parents.get(shard, ())]
    while waiting:
        if (shard := waiting.pop()) not in followed:
            followed.add(shard)
            waiting += parents.get(shard, ())
    known = {shard: leases.get(shard) if shard in leases or shard not in followed else FINISHED for shard in parents}
    if others := [each.segment for each in layout.segments if known[each.segment] == FINISHED and not each.sealed]:
        raise HeadgateError(f"{listed(others)} is open, and a finished lease: of another stream, or of an earlier one")
    return {shard: found for shard, found in known.items() if found is not None}
