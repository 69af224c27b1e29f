"""Keys, kinds and columns of the aggregates, and their conversion to rows of a merge. No Spark.

A *key* is (shard, topic, subscription, segment, key bucket, seek generation). Without a bucket it
covers all buckets, without a subscription a segment, without a segment a subscription, and without
both a topic. Only drain.backlog.merge can decide which seek generations count.

The *kind* of a fact is a number:

* of a segment, from 0: a record, by its slot of the timestamp index, to keep the last one of each;
* of a subscription in a segment, from 0: acknowledged from this offset on (0: cumulatively);
* below 0: one of POSITION, PRESENT, REMOVED, SEALED, NO_FACT.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from drain.backlog.merge import MergedRow, StateRow

NO_ID: Final = -1
"""Replaces null in a key. Ids, segments and buckets count from 0."""
POSITION, PRESENT, REMOVED, SEALED, NO_FACT = -1, -2, -3, -4, -5
"""Kinds: position set at creation or by a seek; exists; removed; sealed at an offset; no fact."""
SUBSCRIPTION_TYPES: Final = ("", "CHECKPOINT", "QUEUE", "STREAM")
"""Subscription types, encoded by their index, also in stored facts. If a key has several, the highest index counts."""

AGGREGATE_KEY: Final = ("shard", "topic_id", "subscription_id", "segment", "bucket", "seek_generation")
AGGREGATES: Final = (*AGGREGATE_KEY, "kind", "records", "size_bytes", "max_value", "timestamp_ms")
"""Columns of an aggregate. ``records``: the number of facts; for a slot of the timestamp index, of
records. ``max_value``: the highest offset of a record, the end of a range or of a sealed segment, a
position, or the index of a subscription type. ``timestamp_ms``: that of the record at
``max_value``. Null if no fact had a value."""
SCHEMA: Final = pa.schema([(name, pa.int64()) for name in AGGREGATES])


def merged_rows(aggregates: pa.Table) -> Mapping[int, list[MergedRow]]:
    """Return the aggregates (AGGREGATES) as rows of a merge, by shard."""
    found: dict[int, list[MergedRow]] = defaultdict(list)
    # One list per column: one dictionary per row takes twice as long, and there may be many rows.
    columns: Iterable[list[Any]] = [aggregates.column(name).to_pylist() for name in AGGREGATES]
    for shard, *key, kind, records, size_bytes, max_value, timestamp_ms in zip(*columns, strict=True):
        if kind != NO_FACT:
            found[shard].append(_merged_row(key, kind, records, size_bytes, max_value, timestamp_ms))
    return found


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
