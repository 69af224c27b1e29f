"""Reduce the facts of chunks to aggregates, with pyarrow: in tasks of Spark, and what they return once more.

A *key* is (shard, topic, subscription, segment, key bucket, seek generation). Without a bucket it
covers all buckets, without a subscription a segment, without a segment a subscription, and without
both a topic. Only drain.backlog.merge can decide which seek generations count.

The *kind* of a fact is a number:

* of a segment, from 0: a record, by its slot of the timestamp index, to keep the last one of each;
* of a subscription in a segment, from 0: acknowledged from this offset on (0: cumulatively);
* below 0: one of POSITION, PRESENT, REMOVED, SEALED, COUNTED.

Aggregates are sums and maxima, so aggregating them again equals aggregating the facts at once. Ranges of a key that
touch become one. Pure, and without imports of headgate in what tasks run: it is sent with the query.
"""

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headgate.ledger.chunk import COLUMNS

FACT_COLUMNS: Final = (
    "fact",
    "topic_id",
    "segment",
    "offset",
    "end_offset",
    "subscription_id",
    "subscription_type",
    "seek_generation",
    "bucket",
    "timestamp_ms",
    "size_bytes",
)
"""The only columns that are read from chunks: keys, values and bodies are not among them."""
FACTS: Final = pa.schema([*((name, pa.type_for_alias(COLUMNS[name])) for name in FACT_COLUMNS), ("shard", pa.int64())])
"""The shard is not a column of a chunk: it is in the chunk's header."""

NO_ID: Final = -1
"""Replaces null in a key. Ids, segments and buckets count from 0."""
POSITION, PRESENT, REMOVED, SEALED, COUNTED = -1, -2, -3, -4, -5
"""Kinds: position set at creation or by a seek; exists; removed; sealed at an offset; a chunk of the shard was read."""
SUBSCRIPTION_TYPES: Final = ("", "CHECKPOINT", "QUEUE", "STREAM")
"""Subscription types, encoded by their index, also in stored facts. If a key has several, the highest index counts."""
_KINDS: Final = {
    "created": PRESENT,
    "subscribed": PRESENT,
    "sealed": SEALED,
    "pruned": REMOVED,
    "topic_deleted": REMOVED,
    "unsubscribed": REMOVED,
    "chunk": COUNTED,
}

AGGREGATE_KEY: Final = ("shard", "topic_id", "subscription_id", "segment", "bucket", "seek_generation")
AGGREGATES: Final = (*AGGREGATE_KEY, "kind", "records", "size_bytes", "max_value", "timestamp_ms")
"""Columns of an aggregate. ``records``: the number of facts; for a slot of the timestamp index, of
records. ``max_value``: the highest offset of a record, the end of a range or of a sealed segment, a
position, the index of a subscription type, or the number of a chunk. ``timestamp_ms``: that of the record or chunk at
``max_value``. Null if no fact had a value."""
SCHEMA: Final = pa.schema([(name, pa.int64()) for name in AGGREGATES])
_SUMS: Final = "records=sum:records size_bytes=sum:size_bytes timestamp_ms=last:timestamp_ms"


class UnknownTypeError(Exception):
    """A subscription has a type that this version does not know."""


def contributions(facts: pa.Table) -> pa.Table:
    """Return each fact (`FACTS`) as an aggregate of its own. Rows without a known fact are left out.

    Facts with an offset are distinguished by the columns that they set (headgate.ledger.chunk).
    """
    offset, end, subscription = facts["offset"], facts["end_offset"], facts["subscription_id"]
    of_segment = pc.is_null(subscription)
    ranged = pc.if_else(of_segment, slots_of(offset), pc.if_else(pc.is_null(end), POSITION, offset))
    named = pc.take(pa.array([*_KINDS.values()], pa.int64()), pc.index_in(facts["fact"], pa.array([*_KINDS])))
    ids = {name: pc.fill_null(facts[name], NO_ID) for name in AGGREGATE_KEY[1:5]}
    columns = {"shard": facts["shard"]} | ids | {"seek_generation": pc.fill_null(facts["seek_generation"], 0)}
    columns["kind"] = pc.if_else(pc.is_valid(offset), ranged, named)
    columns |= {"records": pa.repeat(1, len(facts)), "size_bytes": facts["size_bytes"]}
    columns["max_value"] = pc.coalesce(end, offset, _type_numbers(facts["subscription_type"]))
    columns["timestamp_ms"] = facts["timestamp_ms"]
    found = pa.table(columns).cast(SCHEMA)
    return found.filter(found["kind"].is_valid()) if found["kind"].null_count else found


def _type_numbers(types: Any) -> Any:
    numbers = pc.index_in(types, pa.array(SUBSCRIPTION_TYPES))
    for name in types.filter(pc.and_(pc.is_valid(types), pc.is_null(numbers))).slice(0, 1).to_pylist():
        raise UnknownTypeError(f"this version does not know the subscription type {name}")
    return numbers.cast(pa.int64())


def slots_of(offsets: Any) -> Any:
    """Return drain.backlog.merge.index_slot of each of ``offsets``."""
    bit = pc.bit_wise_and(offsets, pc.negate(offsets))
    return pc.bit_wise_and(offsets, pc.bit_wise_or(bit, pc.shift_left(bit, 1)))


def aggregate(rows: pa.Table, *, in_order: bool = False) -> pa.Table:
    """Return one row per kind of the aggregates ``rows``, and most of the ranges of a key that touch as one.

    A POSITION counts as a range from 0, the first of its key. ``in_order``: as the ledger has them.
    """
    key = " ".join(AGGREGATE_KEY)
    ordered = rows if in_order else rows.sort_by("max_value")
    once = grouped(ordered, f"{key} kind", f"{_SUMS} max_value=max:max_value", ordered=True)
    ranges = pc.and_(pc.not_equal(once["subscription_id"], NO_ID), pc.not_equal(once["segment"], NO_ID))
    # Kinds that are not about a subscription in a segment stay separate.
    exact = once.append_column("exact_kind", pc.if_else(ranges, NO_ID, once["kind"]))
    return joined(exact, f"{key} exact_kind", "kind", "max_value", _SUMS).select(SCHEMA.names).cast(SCHEMA)


def grouped(rows: pa.Table, keys: str, wanted: str, *, ordered: bool = False) -> pa.Table:
    """Group by ``keys``, and aggregate what is ``wanted``: words like ``new_name=function:column``."""
    words = [re.split("[=:]", word) for word in wanted.split()]
    keep_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    calls = [(column, function, keep_nulls if function == "last" else None) for _, function, column in words]
    found = rows.group_by(keys.split(), use_threads=not ordered).aggregate(calls)
    return found.rename_columns([*keys.split(), *(name for name, _, _ in words)])


def joined(ranges: pa.Table, keys: str, first: str, end: str, wanted: str = "") -> pa.Table:
    """Return the ranges [``first``, ``end``) of each key, most of those that overlap or touch as one."""
    names = keys.split()
    ranges = ranges.sort_by([(name, "ascending") for name in (*names, first)])
    before, after = ranges.slice(0, max(1, len(ranges)) - 1), ranges.slice(1)
    continues = pc.less_equal(after[first], before[end])
    for name in names:
        continues = pc.and_(continues, pc.equal(after[name], before[name]))
    starts = pc.invert(pc.fill_null(continues, False)).cast(pa.int64())
    number = pc.cumulative_sum(pa.chunked_array([pa.array([1] * min(1, len(ranges)), pa.int64()), *starts.chunks]))
    numbered = ranges.append_column("number", number)
    return grouped(numbered, f"{keys} number", f"{first}=min:{first} {end}=max:{end} {wanted}", ordered=True)
