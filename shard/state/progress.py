"""How far a subscription has come in each segment. Part of the fold: nothing is validated here.

STREAM has one position per segment. QUEUE adds the ranges acknowledged above it. CHECKPOINT acknowledges nothing. While
consumers that share a segment have different positions, progress is stored per key bucket; it is merged again once all
buckets agree.

Values and positions are replaced, and only acknowledged ranges change in place, so that a `snapshot` is cheap.
"""

from collections.abc import Collection, Container, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, SegmentSlice, buckets_of, segment_of
from headgate.model.positions import OffsetRanges
from headgate.protocol.backlog import RecordCount, count_records, unacknowledged_offsets


@dataclass(slots=True)
class AcknowledgementProgress:
    """Acknowledged offsets of one segment, or of one key bucket of it.

    STREAM has a position: everything below it is acknowledged. QUEUE adds the ranges above it, sorted and disjoint.
    """

    position: int = 0
    acknowledged_ranges: OffsetRanges = field(default_factory=OffsetRanges)

    def advance(self, end: int) -> None:
        """Acknowledge everything below ``end`` (STREAM)."""
        self.position = max(self.position, end)

    def add_range(self, first: int, end: int) -> None:
        """Acknowledge ``first`` up to ``end``, exclusive (QUEUE)."""
        self.acknowledged_ranges.add(first, end)
        self.position = self.acknowledged_ranges.pop_prefix(self.position)

    def remaining(self, end: int) -> int:
        """Return the number of unacknowledged offsets below ``end``."""
        return unacknowledged_offsets(end, self.position, self.acknowledged_ranges)


ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class LastSeek:
    """The newest seek. A repeated seek command gets the same response."""

    token: str
    moves: tuple[tuple[int, int, int], ...]
    """(segment, position before, position after), by segment."""


@dataclass(slots=True)
class Progress:
    positions: dict[int, int] = field(default_factory=dict)
    """Segment → offset below which everything is acknowledged in all buckets. Default: 0."""
    start_positions: dict[int, int] = field(default_factory=dict)
    """Segment → its position at the creation or the last seek. No record below it was ever due. Default: 0."""
    acknowledged_ranges: dict[int, OffsetRanges] = field(default_factory=dict)
    """QUEUE: segment → offsets acknowledged above the position in all buckets."""
    progress_by_bucket: dict[int, list[AcknowledgementProgress]] = field(default_factory=dict)
    """Segment whose buckets differ → progress of each bucket. Such a segment is not in ``acknowledged_ranges``."""
    checkpoints: dict[int, e.Checkpoint] = field(default_factory=dict)
    """External topics: segment → where its next holder continues."""
    drained: set[int] = field(default_factory=set)
    seek_generation: int = 0
    last_seek: LastSeek | None = None
    started_at_ms: int = 0
    """Ledger time of the creation, or of the last seek."""

    def snapshot(self) -> Self:
        """Return a copy that follows acknowledgements up to the next seek, and forgets positions in pruned segments."""
        shot = copy(self)
        shot.drained = set(self.drained)
        return shot

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.positions.get(segment, 0)

    def checkpoint(self, segment: int) -> str | None:
        """Return where the next holder of an external ``segment`` continues; None: at its beginning."""
        known = self.checkpoints.get(segment)
        return None if known is None else known.text

    def acknowledged_in(self, segment: int, bucket: int) -> AcknowledgementProgress:
        """Return the progress of one bucket. Read-only for the caller."""
        if segment in self.progress_by_bucket:
            return self.progress_by_bucket[segment][bucket]
        return AcknowledgementProgress(self.position(segment), self.acknowledged_ranges.get(segment, OffsetRanges()))

    def unacknowledged_records(self, segment_slice: SegmentSlice, end_offset: int) -> RecordCount:
        segment, buckets = segment_of(segment_slice), buckets_of(segment_slice)
        progress = self.progress_by_bucket.get(segment)
        if progress is None:
            left = max(0, end_offset - self.position(segment))
            if segment in self.acknowledged_ranges:
                left = self.acknowledged_in(segment, 0).remaining(end_offset)
            return count_records(left * len(buckets), exact=len(buckets) == KEY_BUCKETS)
        return count_records(sum(progress[bucket].remaining(end_offset) for bucket in buckets), exact=False)

    def acknowledge(self, entry: e.RecordsAcknowledged, *, with_ranges: bool) -> None:
        """``with_ranges``: of a QUEUE. Otherwise everything below the end of a range is acknowledged."""
        self.checkpoints.update(entry.checkpoints)
        for acknowledged in entry.ranges:
            segment, end_offset = acknowledged.segment, acknowledged.end_offset
            if acknowledged.end_bucket or segment in self.progress_by_bucket:
                self._acknowledge_buckets(acknowledged, with_ranges=with_ranges)
            elif with_ranges:
                progress = AcknowledgementProgress(
                    self.position(segment), self.acknowledged_ranges.pop(segment, OffsetRanges())
                )
                progress.add_range(acknowledged.first_offset, end_offset)
                self._record_common_progress(segment, progress)
            else:
                self.positions[segment] = max(self.position(segment), end_offset)

    def _acknowledge_buckets(self, acknowledged: e.AcknowledgedRange, *, with_ranges: bool) -> None:
        segment = acknowledged.segment
        buckets = self.progress_by_bucket.get(segment)
        if buckets is None:
            ranges = self.acknowledged_ranges.pop(segment, OffsetRanges())
            buckets = [
                AcknowledgementProgress(self.position(segment), OffsetRanges(ranges)) for _ in range(KEY_BUCKETS)
            ]
        for progress in buckets[acknowledged.first_bucket : acknowledged.end_bucket or KEY_BUCKETS]:
            if with_ranges:
                progress.add_range(acknowledged.first_offset, acknowledged.end_offset)
            else:
                progress.advance(acknowledged.end_offset)
        if all(progress == buckets[0] for progress in buckets):
            self.progress_by_bucket.pop(segment, None)
            self._record_common_progress(segment, buckets[0])
        else:
            self.progress_by_bucket[segment] = buckets
            self.positions[segment] = min(progress.position for progress in buckets)

    def _record_common_progress(self, segment: int, progress: AcknowledgementProgress) -> None:
        self.positions[segment] = progress.position
        if progress.acknowledged_ranges:
            self.acknowledged_ranges[segment] = progress.acknowledged_ranges

    def seek(self, entry: e.SubscriptionSeek, at_ms: int) -> None:
        before = self.positions
        moves = tuple([(s, before.get(s, 0), to) for s, to in sorted(entry.positions.items())])
        self.seek_generation, self.last_seek = entry.seek_generation, LastSeek(entry.token, moves)
        self.started_at_ms = at_ms
        # Replaced, and not changed: the snapshots that were taken before keep theirs.
        self.acknowledged_ranges = _without(self.acknowledged_ranges, entry.positions)
        self.checkpoints = _without(self.checkpoints, entry.positions)
        self.progress_by_bucket = _without(self.progress_by_bucket, entry.positions)
        self.positions = self.positions | entry.positions
        self.start_positions = self.start_positions | entry.positions
        # "Drained" holds for the old positions only.
        self.drained.difference_update(entry.positions)

    def forget(self, segments: Collection[int]) -> None:
        """Drop what is known of pruned segments."""
        self.drained.difference_update(segments)
        by_segment: tuple[dict[int, Any], ...] = (
            self.positions,
            self.start_positions,
            self.acknowledged_ranges,
            self.checkpoints,
            self.progress_by_bucket,
        )
        for each in filter(None, by_segment):
            for segment in segments:
                each.pop(segment, None)


def _without(values: Mapping[int, ValueT], segments: Container[int]) -> dict[int, ValueT]:
    return {segment: value for segment, value in values.items() if segment not in segments}
