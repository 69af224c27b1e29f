"""What a merge comes to: which generations count, and what is gone.

`merge_rows` adds the rows of one merge to the previous result, which makes the next one; `outstanding` and `drained`
read a result. All three take values and return values. They run beside Spark, not in it, because their input is
bounded by segments times subscriptions, and by the marks of a segment (drain.backlog.timestamp_index).

A result has three kinds of rows:

* a segment (no subscription): records, size_bytes, end_offset, marks, and sealed_end_offset once it is sealed;
* a subscription (no segment): its type, and the highest seek generation it has reached;
* a subscription in a segment: position, and the disjoint ranges acknowledged above it. No such row: position 0;
* a subscription in one key bucket of a segment, only while that bucket is ahead of what holds for all of them.

The rules:

1. A ``position`` fact resets its segment: there, only that generation and later ones count.
2. Once a result knows a subscription's generation, nothing older counts that is found later. All its rows are lifted to
   that generation, for each has survived rule 1.
3. What has been removed vanishes, and so does whatever belongs to it. Ids are never used again, so no tombstone stays.
4. What is acknowledged in a bucket is what is acknowledged for all buckets and what is for that one. What has come to
   be acknowledged in every bucket is acknowledged for all.
5. A segment is drained for a subscription if it is sealed, the position of every bucket has reached the sealed end, and
   the generation is the one that was asked for. CHECKPOINT, and a type that is not on record, are never drained.
6. The backlog of a segment in records is the mean over its buckets, rounded up: keys spread evenly over buckets.

Rule 2 takes an acknowledgement of the older generation that stands behind a seek in the same step, in a segment which
the seek did not name, for one that stands before it. The leader refuses such an acknowledgement, so there is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from drain.backlog.timestamp_index import TimestampIndex, build_timestamp_index, timestamp_at
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.offset_ranges import OffsetRange, OffsetRanges


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row of a result (schemas.STATE, without the shard)."""

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
    """One row of a merge (schemas.MERGED, without the shard), or of the previous result."""

    row: StateRow
    reset: bool = False
    """A position fact of this generation is in it."""
    removed: bool = False
    present: bool = False
    """It is known to exist, from a fact or from the previous result."""
    from_previous: bool = False
    """It was in the previous result."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one subscription has not acknowledged in one segment; counts are None where nothing is tracked."""

    topic_id: int
    subscription_id: int
    segment: int
    subscription_type: str
    seek_generation: int
    position: int | None
    end_offset: int
    sealed: bool
    records: int | None
    size_bytes: int | None
    """Estimated from the mean size of the segment's records."""
    holes: int | None
    """Unacknowledged stretches that have something acknowledged behind them."""
    oldest_ms: int | None
    """Timestamp of the first unacknowledged record (drain.backlog.timestamp_index); None if there is none, or nothing
    is tracked.
    """

    @property
    def drained(self) -> bool:
        """Whether nothing is left, and nothing can come."""
        return self.sealed and self.records == 0


def previous_rows(rows: Iterable[StateRow]) -> list[MergedRow]:
    """Return the rows of the previous result as what they add to the next one: themselves."""
    return [MergedRow(row, present=True, from_previous=True) for row in rows]


def merge_rows(merge: Iterable[MergedRow]) -> tuple[StateRow, ...]:
    """Return the next result: one row per key, in order, without what is gone.

    ``merge``: what is carried from the previous result, and what is new; a key may have several rows.
    """
    by_topic: dict[int, list[MergedRow]] = defaultdict(list)
    for item in merge:
        by_topic[item.row.topic_id].append(item)
    rows: list[StateRow] = []
    for _, items in sorted(by_topic.items()):
        if not any(item.removed and item.row.subscription_id is None and item.row.segment is None for item in items):
            rows += _merge_topic(items)
    return tuple(rows)


def outstanding(rows: Sequence[StateRow]) -> tuple[Backlog, ...]:
    """Return the backlog of every subscription in every segment of its topic, in order."""
    segments: dict[int, list[StateRow]] = defaultdict(list)
    parts: dict[tuple[int, int, int], list[StateRow]] = defaultdict(list)
    for row in rows:
        if row.subscription_id is None:
            segments[row.topic_id].append(row)
        elif row.segment is not None:
            parts[row.topic_id, row.subscription_id, row.segment].append(row)
    return tuple(
        _backlog(subscription, segment, parts.get(position_key(subscription, segment), ()))
        for subscription in rows
        if subscription.subscription_id is not None and subscription.segment is None
        for segment in segments[subscription.topic_id]
    )


def position_key(subscription: StateRow, segment: StateRow) -> tuple[int, int, int]:
    """Return the key of the rows that hold the position of ``subscription`` in ``segment``."""
    assert subscription.subscription_id is not None
    assert segment.segment is not None
    return subscription.topic_id, subscription.subscription_id, segment.segment


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
    for (subscription, segment), versions in sorted(keyed.items(), key=_sort_key):
        belongs = subscription is None or segment is None
        owners = {(subscription, segment)} if belongs else {(subscription, None), (None, segment)}
        if owners <= alive:
            lowest = 0 if belongs else known[subscription]
            combined = _combine_versions([item for item in versions if item.row.seek_generation >= lowest])
            rows += [replace(row, seek_generation=reached[subscription]) for row in combined]
    return rows


def _sort_key(item: tuple[tuple[int | None, int | None], list[MergedRow]]) -> tuple[int, int]:
    (subscription, segment), _ = item
    return (-1 if subscription is None else subscription, -1 if segment is None else segment)


def _combine_versions(versions: Sequence[MergedRow]) -> list[StateRow]:
    """Return the rows for one place, each of whose ``versions`` saw a part of it; nothing if none is given."""
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
        timestamp_index=build_timestamp_index(mark for row in rows for mark in row.timestamp_index),
    )
    return [
        replace(first, bucket=bucket, position=ranges.pop_prefix(), above=tuple(ranges))
        for bucket, ranges in kept.items()
    ]


def _backlog(subscription: StateRow, segment: StateRow, parts: Sequence[StateRow]) -> Backlog:
    assert subscription.subscription_id is not None
    assert segment.segment is not None
    sealed = segment.sealed_end_offset is not None
    end = segment.end_offset if segment.sealed_end_offset is None else segment.sealed_end_offset
    kind = subscription.subscription_type or ""
    tracked = kind in {"STREAM", "QUEUE"}
    left = {part.bucket: _unacknowledged(part, end) for part in parts}
    others = left.pop(None, end)
    position = min((part.position for part in parts), default=0)
    records = -(-(sum(left.values()) + others * (KEY_BUCKETS - len(left))) // KEY_BUCKETS)
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
        size_bytes=_estimated_bytes(segment.size_bytes, records, segment.records) if tracked else None,
        holes=max((len(part.above) for part in parts), default=0) if tracked else None,
        oldest_ms=timestamp_at(segment.timestamp_index, position) if tracked and records else None,
    )


def _unacknowledged(part: StateRow, end: int) -> int:
    """Return how many offsets below ``end`` are not acknowledged in ``part``."""
    above = sum(max(0, min(last, end) - first) for first, last in part.above if first < end)
    return max(0, end - part.position) - above


def _estimated_bytes(size_bytes: int, records: int, of_records: int) -> int:
    return 0 if of_records == 0 else size_bytes * records // of_records


def drained(backlog: Iterable[Backlog], seek_generation: int, segments: frozenset[int]) -> frozenset[int]:
    """Return those of ``segments`` that are drained at ``seek_generation``, given one subscription's backlog."""
    return frozenset(
        item.segment
        for item in backlog
        if item.segment in segments and item.drained and item.seek_generation == seek_generation
    )
