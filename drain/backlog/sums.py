"""What counting adds up, and what a sum says: the words that drain.backlog.plans's plans and this process share.

A *place* is (shard, topic, subscription, segment, key bucket, seek generation). Sums without a bucket are about all
buckets, without a subscription about a segment, without a segment about a subscription, with neither about a topic. The
generation is part of the place because only drain.backlog.merge, which sees all of a subscription, can say which
generations still count. What a fact says about its place is its *part*, a number:

* of a segment, from 0: a record, by its mark (drain.backlog.timestamp_index), so that the last record of each mark is known: some sixty
  numbers a segment, from which the age of any backlog follows;
* of a subscription in a segment, from 0: acknowledged from this offset on; 0 is a cumulative acknowledgement;
* below 0: one of POSITION, PRESENT, REMOVED, SEALED, NOTHING.

All are whole numbers without nulls, a type of subscription too: drain.backlog.plans says why. Here is no Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from drain.backlog.merge import MergedRow, StateRow, joined
from drain.backlog.timestamp_index import mark_of
from drain.spark.schemas import MERGED

NONE: Final = -1
"""Stands in a place for "none"; ids, segments and buckets count from 0."""
POSITION, PRESENT, REMOVED, SEALED, NOTHING = -1, -2, -3, -4, -5
"""Parts: begun at an offset, or moved there by a seek; exists; is gone; ends at an offset; no fact."""
TYPES: Final = ("", "CHECKPOINT", "QUEUE", "STREAM")
"""Types of subscriptions, each told by its place in here. Of several that were told, the highest counts."""

PLACE: Final = ("shard", "topic_id", "subscription_id", "segment", "bucket", "seek_generation")
SUMS: Final = (*PLACE, "part", "records", "size_bytes", "reach", "timestamp_ms")
"""Columns of a sum. ``records``: how many facts were added up; in a part that is a mark, how many records. ``reach``:
the highest offset of a record, the end of a range or of a sealed segment, a position, or the number of a type.
``timestamp_ms``: that of the record at ``reach``. Null where nothing was added up."""


def merged_rows(sums: pa.Table) -> Mapping[int, list[MergedRow]]:
    """Return what sums (SUMS) say, by shard."""
    found: dict[int, list[MergedRow]] = defaultdict(list)
    for shard, row in _rows(sums):
        found[shard].append(row)
    return found


def merged_table(sums: pa.Table) -> pa.Table:
    """Return what sums (SUMS) say as schemas.MERGED."""
    return pa.Table.from_pylist([_columns(shard, row) for shard, row in _rows(sums)], schema=MERGED)


def merged_row(row: Mapping[str, Any]) -> MergedRow:
    """Return a row of schemas.MERGED, given as column → value, as a value."""
    marked = row["mark"] is not None
    (_, position), *above = joined(
        [(0, row["position"]), *((part["first_offset"], part["end_offset"]) for part in row["above"])]
    )
    state = StateRow(
        topic_id=row["topic_id"],
        subscription_id=row["subscription_id"],
        segment=row["segment"],
        bucket=row["bucket"],
        seek_generation=row["seek_generation"],
        subscription_type=row["subscription_type"],
        records=row["records"],
        size_bytes=row["size_bytes"],
        end_offset=row["end_offset"],
        sealed_end_offset=row["sealed_end_offset"],
        position=position,
        above=tuple(above),
        # The last record of its mark is the one with the highest offset.
        marks=((row["end_offset"] - 1, row["timestamp_ms"]),) if marked else (),
    )
    return MergedRow(state, row["reset"], row["removed"], row["present"])


def _rows(sums: pa.Table) -> Iterator[tuple[int, MergedRow]]:
    # A list for each column, as a dictionary for each row takes twice as long; there may be many rows.
    columns: Iterable[list[Any]] = [sums.column(name).to_pylist() for name in SUMS]
    for shard, *place, part, records, size_bytes, reach, timestamp_ms in zip(*columns, strict=True):
        if part != NOTHING:
            yield shard, _said(place, part, records, size_bytes, reach, timestamp_ms)


def _said(
    place: list[int], part: int, records: int | None, size_bytes: int | None, reach: int | None, timestamp_ms: int
) -> MergedRow:
    topic_id, subscription_id, segment, bucket, seek_generation = place
    known: dict[str, Any] = {
        "topic_id": topic_id,
        "subscription_id": None if subscription_id == NONE else subscription_id,
        "segment": None if segment == NONE else segment,
        "bucket": None if bucket == NONE else bucket,
        "seek_generation": seek_generation,
    }
    if part >= 0 and subscription_id == NONE:
        assert reach is not None
        known |= {"records": records, "size_bytes": size_bytes or 0, "end_offset": reach + 1}
        known["marks"] = ((reach, timestamp_ms),)
    elif part in {0, POSITION}:
        known["position"] = reach
    elif part > 0:
        assert reach is not None
        known["above"] = ((part, reach),) if reach > part else ()
    elif part == SEALED:
        known["sealed_end_offset"] = reach
    elif part == PRESENT and reach is not None:
        known["subscription_type"] = TYPES[reach]
    return MergedRow(StateRow(**known), part == POSITION, part == REMOVED, part == PRESENT)


def _columns(shard: int, merged: MergedRow) -> dict[str, Any]:
    """Return what `merged_row` makes the same value of."""
    row = merged.row
    ((offset, timestamp_ms),) = row.marks or ((None, None),)
    return asdict(row) | {
        "shard": shard,
        "mark": None if offset is None else mark_of(offset),
        "timestamp_ms": timestamp_ms,
        "above": [{"first_offset": first, "end_offset": end} for first, end in row.above],
        "reset": merged.reset,
        "removed": merged.removed,
        "present": merged.present,
    }
