"""Merge rows into the next result, and derive backlogs from a result. Pure, without Spark.

The input is bounded by segments times subscriptions. A result has these kinds of rows:

* a segment: records, size_bytes, end_offset, timestamp_index, and sealed_end_offset if sealed;
* a subscription: its type, and the highest seek generation seen;
* a subscription in a segment: its position (0 without a row), and the disjoint ranges acknowledged above it;
* a subscription in one key bucket, only while that bucket is ahead of the row for all buckets.

Rules:

1. A ``position`` fact resets its segment: only that seek generation and later ones count there.
2. Once a result has a subscription's seek generation, new facts of older generations do not count.
   All its rows are raised to that generation, since each has passed rule 1.
3. A removed row is deleted with all that depends on it, without a tombstone: ids are never reused.
4. A bucket has acknowledged what all buckets or that one have. What every bucket has acknowledged counts for all.
5. A segment is drained if it is sealed, every bucket has reached the sealed end, and the seek
   generation is the requested one. CHECKPOINT and unknown types never drain a segment.

In one run, rule 2 cannot tell whether an older acknowledgement, in a segment that the seek did not
name, precedes the seek. The leader rejects such late acknowledgements.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from drain.backlog.aggregates import AGGREGATES, COUNTED, NO_ID, POSITION, PRESENT, REMOVED, SEALED, SUBSCRIPTION_TYPES
from drain.protocol import Backlog
from headgate.model.layout import KEY_BUCKETS
from headgate.model.positions import OffsetRange, OffsetRanges
from headgate.protocol.backlog import TRACKED, count_records, estimate_size_bytes, unacknowledged_offsets

TimestampIndex = tuple[tuple[int, int], ...]
"""(offset, timestamp_ms), sorted by offset, at most one per slot."""


def index_slot(offset: int) -> int:
    """Return the lowest set bit of an offset together with the bit above that.

    Only the last record of each slot is kept (docs/decisions/spark-plans.md): 61 records of a billion.
    """
    return offset & (3 * (offset & -offset))


def build_timestamp_index(records: Iterable[tuple[int, int]]) -> TimestampIndex:
    """Return the last of ``records`` (offset, timestamp_ms) in each slot, sorted."""
    latest = {index_slot(offset): (offset, at_ms) for offset, at_ms in sorted(records)}
    return tuple(sorted(latest.values()))


def timestamp_at(timestamp_index: TimestampIndex, offset: int) -> int | None:
    """Return the timestamp (ms) of the record at ``offset``: exact or interpolated, None outside the index."""
    at = bisect_left(timestamp_index, (offset,))
    if at == len(timestamp_index):
        return None
    after, after_ms = timestamp_index[at]
    if after == offset:
        return after_ms
    if at == 0:
        return None
    before, before_ms = timestamp_index[at - 1]
    return before_ms + (after_ms - before_ms) * (offset - before) // (after - before)


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of a result (drain.backlog.results.STATE, without the shard)."""

    topic_id: int
    subscription_id: int | None
    segment: int | None
    seek_generation: int = 0
    bucket: int | None = None
    subscription_type: str | None = None
    records: int = 0
    size_bytes: int = 0
    end_offset: int = 0
    sealed_end_offset: int | None = None
    position: int = 0
    above: tuple[OffsetRange, ...] = ()
    timestamp_index: TimestampIndex = ()


@dataclass(frozen=True, slots=True)
class MergedRow:
    """One input row of a merge: of a run (drain.backlog.aggregates), or of the previous result."""

    row: StateRow
    reset: bool = False
    """It contains a position fact of this seek generation."""
    removed: bool = False
    present: bool = False
    """A fact or the previous result says that it exists."""
    from_previous: bool = False


def merged_rows(aggregates: pa.Table) -> Mapping[int, list[MergedRow]]:
    """Return the aggregates (AGGREGATES) as rows of a merge, by shard."""
    found: dict[int, list[MergedRow]] = defaultdict(list)
    # One list per column: one dictionary per row takes twice as long, and there may be many rows.
    columns: Iterable[list[Any]] = [aggregates.column(name).to_pylist() for name in AGGREGATES]
    for shard, *key, kind, records, size_bytes, max_value, timestamp_ms in zip(*columns, strict=True):
        if kind != COUNTED:
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


def previous_rows(rows: Iterable[StateRow]) -> list[MergedRow]:
    return [MergedRow(row, present=True, from_previous=True) for row in rows]


def merge_rows(merge: Iterable[MergedRow]) -> tuple[StateRow, ...]:
    """Return the next result: one row per key, sorted, without removed rows.

    ``merge``: the rows of the previous result and the new ones; a key may have several rows.
    """
    items_of: dict[int, list[MergedRow]] = defaultdict(list)
    for item in merge:
        items_of[item.row.topic_id].append(item)
    rows: list[StateRow] = []
    for _, items in sorted(items_of.items()):
        if not any(item.removed and item.row.subscription_id is None and item.row.segment is None for item in items):
            rows += _merge_topic(items)
    return tuple(rows)


def next_result(previous: Iterable[StateRow], new: Sequence[MergedRow]) -> tuple[StateRow, ...]:
    """Return what `merge_rows` returns for both; topics without new rows, which are most of a large shard, stay."""
    changed = {item.row.topic_id for item in new}
    rows = by_topic(previous)
    merged = merge_rows([*previous_rows(row for topic in changed for row in rows.pop(topic, ())), *new])
    rows |= by_topic(merged)
    return tuple(row for topic in sorted(rows) for row in rows[topic])


def by_topic(rows: Iterable[StateRow]) -> dict[int, list[StateRow]]:
    found: dict[int, list[StateRow]] = defaultdict(list)
    for row in rows:
        found[row.topic_id].append(row)
    return found


def outstanding(rows: Sequence[StateRow]) -> tuple[Backlog, ...]:
    """Return the backlog of every subscription in every segment of its topic, in order."""
    segments: dict[int, list[StateRow]] = defaultdict(list)
    progress: dict[tuple[int, int | None, int | None], list[StateRow]] = defaultdict(list)
    for row in rows:
        if row.subscription_id is None:
            segments[row.topic_id].append(row)
        elif row.segment is not None:
            progress[row.topic_id, row.subscription_id, row.segment].append(row)
    return tuple(
        _backlog(
            subscription, segment, progress.get((segment.topic_id, subscription.subscription_id, segment.segment), ())
        )
        for subscription in rows
        if subscription.subscription_id is not None and subscription.segment is None
        for segment in segments[subscription.topic_id]
    )


def _merge_topic(items: Sequence[MergedRow]) -> list[StateRow]:
    keyed: dict[tuple[int | None, int | None], list[MergedRow]] = defaultdict(list)
    for item in items:
        keyed[item.row.subscription_id, item.row.segment].append(item)
    alive = {
        key
        for key, versions in keyed.items()
        if any(version.present for version in versions) and not any(version.removed for version in versions)
    }
    reached: dict[int | None, int] = defaultdict(int)
    known: dict[int | None, int] = defaultdict(int)
    for item in items:
        subscription = item.row.subscription_id
        reached[subscription] = max(reached[subscription], item.row.seek_generation)
        if item.from_previous:
            known[subscription] = max(known[subscription], item.row.seek_generation)
    rows = []
    for subscription, segment in sorted(keyed, key=lambda key: [-1 if each is None else each for each in key]):
        versions = keyed[subscription, segment]
        is_owner = subscription is None or segment is None
        owners = {(subscription, segment)} if is_owner else {(subscription, None), (None, segment)}
        if owners <= alive:
            lowest = 0 if is_owner else known[subscription]
            combined = _combine_versions([item for item in versions if item.row.seek_generation >= lowest])
            rows += [replace(row, seek_generation=reached[subscription]) for row in combined]
    return rows


def _combine_versions(versions: Sequence[MergedRow]) -> list[StateRow]:
    if not versions:
        return []
    if len(versions) == 1 and versions[0].row.bucket is None:
        return [versions[0].row]
    since = max((item.row.seek_generation for item in versions if item.reset), default=0)
    rows = [item.row for item in versions if item.row.seek_generation >= since]
    acknowledged: dict[int | None, list[OffsetRange]] = defaultdict(list)
    for row in rows:
        acknowledged[row.bucket] += [(0, row.position), *row.above]
    whole = OffsetRanges(acknowledged.pop(None, ()))
    by_bucket = {bucket: whole | OffsetRanges(ranges) for bucket, ranges in sorted(acknowledged.items())}
    if len(by_bucket) == KEY_BUCKETS:
        whole = reduce(and_, by_bucket.values())
    kept = {None: whole} | {bucket: ranges for bucket, ranges in by_bucket.items() if ranges != whole}
    first = replace(
        rows[0],
        bucket=None,
        subscription_type=max((row.subscription_type or "" for row in rows), default="") or None,
        records=sum(row.records for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        end_offset=max(row.end_offset for row in rows),
        sealed_end_offset=max(
            (row.sealed_end_offset for row in rows if row.sealed_end_offset is not None), default=None
        ),
        timestamp_index=build_timestamp_index(entry for row in rows for entry in row.timestamp_index),
    )
    return [replace(first, bucket=bucket, position=own.pop_prefix(), above=tuple(own)) for bucket, own in kept.items()]


def _backlog(subscription: StateRow, segment: StateRow, progress: Sequence[StateRow]) -> Backlog:
    assert subscription.subscription_id is not None
    assert segment.segment is not None
    sealed = segment.sealed_end_offset is not None
    end = segment.end_offset if segment.sealed_end_offset is None else segment.sealed_end_offset
    kind = subscription.subscription_type or ""
    tracked = kind in TRACKED
    by_bucket = {row.bucket: unacknowledged_offsets(end, row.position, OffsetRanges(row.above)) for row in progress}
    others = by_bucket.pop(None, end)
    position = min((row.position for row in progress), default=0)
    offsets = sum(by_bucket.values()) + others * (KEY_BUCKETS - len(by_bucket))
    records, estimated = count_records(offsets, exact=not by_bucket)
    size_bytes = estimate_size_bytes(records, segment.records, segment.size_bytes)
    return Backlog(
        topic_id=subscription.topic_id,
        subscription_id=subscription.subscription_id,
        segment=segment.segment,
        subscription_type=kind,
        seek_generation=subscription.seek_generation,
        position=position if tracked else None,
        end_offset=end,
        sealed=sealed,
        records=records if tracked else None,
        size_bytes=size_bytes if tracked else None,
        oldest_ms=timestamp_at(segment.timestamp_index, position) if tracked and records else None,
        estimated=tracked and estimated,
    )


def drained(backlog: Iterable[Backlog], seek_generation: int, segments: frozenset[int]) -> dict[int, int]:
    """Return those of ``segments`` that are drained at ``seek_generation``, given one subscription's backlog.

    Each has the end to which it was counted.
    """
    return {
        item.segment: item.end_offset
        for item in backlog
        if item.segment in segments and item.drained and item.seek_generation == seek_generation
    }
