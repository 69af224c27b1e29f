"""What counting adds up, and what a sum says: the words that drain.backlog.plans's plans and this process share.

A *key* is (shard, topic, subscription, segment, key bucket, seek generation). Sums without a bucket are about all
buckets, without a subscription about a segment, without a segment about a subscription, with neither about a topic. The
generation is kind of the place because only drain.backlog.merge, which sees all of a subscription, can say which
generations still count. What a fact says about its place is its *kind*, a number:

* of a segment, from 0: a record, by its mark (drain.backlog.timestamp_index), so that the last record of each mark is
  known: some sixty numbers a segment, from which the age of any backlog follows;
* of a subscription in a segment, from 0: acknowledged from this offset on; 0 is a cumulative acknowledgement;
* below 0: one of POSITION, PRESENT, REMOVED, SEALED, NO_FACT.

All are whole numbers without nulls, a type of subscription too: drain.backlog.plans says why. Here is no Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from drain.backlog.merge import MergedRow, StateRow
from drain.backlog.timestamp_index import index_slot
from drain.spark.schemas import MERGED
from headgate.model.offset_ranges import OffsetRanges

NO_ID: Final = -1
"""Stands in a place for "none"; ids, segments and buckets count from 0."""
POSITION, PRESENT, REMOVED, SEALED, NO_FACT = -1, -2, -3, -4, -5
"""Parts: begun at an offset, or moved there by a seek; exists; is gone; ends at an offset; no fact."""
SUBSCRIPTION_TYPES: Final = ("", "CHECKPOINT", "QUEUE", "STREAM")
"""Types of subscriptions, each told by its place in here. Of several that were told, the highest counts."""

AGGREGATE_KEY: Final = ("shard", "topic_id", "subscription_id", "segment", "bucket", "seek_generation")
AGGREGATES: Final = (*AGGREGATE_KEY, "kind", "records", "size_bytes", "max_value", "timestamp_ms")
"""Columns of a sum. ``records``: how many facts were added up; in a kind that is a mark, how many records.
``max_value``: the highest offset of a record, the end of a range or of a sealed segment, a position, or the number of
a type. ``timestamp_ms``: that of the record at ``max_value``. Null where nothing was added up."""


def merged_rows(aggregates: pa.Table) -> Mapping[int, list[MergedRow]]:
    """Return what sums (AGGREGATES) say, by shard."""
    found: dict[int, list[MergedRow]] = defaultdict(list)
    for shard, row in _rows(aggregates):
        found[shard].append(row)
    return found


def merged_table(aggregates: pa.Table) -> pa.Table:
    """Return what sums (AGGREGATES) say as schemas.MERGED."""
    return pa.Table.from_pylist([_columns(shard, row) for shard, row in _rows(aggregates)], schema=MERGED)


def merged_row(row: Mapping[str, Any]) -> MergedRow:
    """Return a row of schemas.MERGED, given as column → value, as a value."""
    has_record = row["index_slot"] is not None
    acknowledged = OffsetRanges((span["first_offset"], span["end_offset"]) for span in row["above"])
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
        position=acknowledged.pop_prefix(row["position"]),
        above=tuple(acknowledged),
        # The last record of its mark is the one with the highest offset.
        timestamp_index=((row["end_offset"] - 1, row["timestamp_ms"]),) if has_record else (),
    )
    return MergedRow(state, row["reset"], row["removed"], row["present"])


def _rows(aggregates: pa.Table) -> Iterator[tuple[int, MergedRow]]:
    # A list for each column, as a dictionary for each row takes twice as long; there may be many rows.
    columns: Iterable[list[Any]] = [aggregates.column(name).to_pylist() for name in AGGREGATES]
    for shard, *key, kind, records, size_bytes, max_value, timestamp_ms in zip(*columns, strict=True):
        if kind != NO_FACT:
            yield shard, _merged_row(key, kind, records, size_bytes, max_value, timestamp_ms)


def _merged_row(
    key: list[int], kind: int, records: int | None, size_bytes: int | None, max_value: int | None, timestamp_ms: int
) -> MergedRow:
    topic_id, subscription_id, segment, bucket, seek_generation = key
    known: dict[str, Any] = {
        "topic_id": topic_id,
        "subscription_id": None if subscription_id == NO_ID else subscription_id,
        "segment": None if segment == NO_ID else segment,
        "bucket": None if bucket == NO_ID else bucket,
        "seek_generation": seek_generation,
    }
    if kind >= 0 and subscription_id == NO_ID:
        assert max_value is not None
        known |= {"records": records, "size_bytes": size_bytes or 0, "end_offset": max_value + 1}
        known["timestamp_index"] = ((max_value, timestamp_ms),)
    elif kind in {0, POSITION}:
        known["position"] = max_value
    elif kind > 0:
        assert max_value is not None
        known["above"] = ((kind, max_value),) if max_value > kind else ()
    elif kind == SEALED:
        known["sealed_end_offset"] = max_value
    elif kind == PRESENT and max_value is not None:
        known["subscription_type"] = SUBSCRIPTION_TYPES[max_value]
    return MergedRow(StateRow(**known), kind == POSITION, kind == REMOVED, kind == PRESENT)


def _columns(shard: int, merged: MergedRow) -> dict[str, Any]:
    """Return what `merged_row` makes the same value of."""
    row = merged.row
    ((offset, timestamp_ms),) = row.timestamp_index or ((None, None),)
    return asdict(row) | {
        "shard": shard,
        "index_slot": None if offset is None else index_slot(offset),
        "timestamp_ms": timestamp_ms,
        "above": [{"first_offset": first, "end_offset": end} for first, end in row.above],
        "reset": merged.reset,
        "removed": merged.removed,
        "present": merged.present,
    }
