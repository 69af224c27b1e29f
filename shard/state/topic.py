"""One topic of a shard: its layout, its subscriptions, its traffic, and where its records end. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.model import entries as e
from headgate.model.external_topic import ExternalTopic
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import Layout
from shard.state.subscription import Subscription

SLOT_MS = 10_000
SLOTS = 61
"""Ten minutes of complete slots, and the current one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Records per second, and bytes of their keys and values per second."""

    records: float = 0.0
    bytes: float = 0.0


class Traffic(msgspec.Struct, gc=False):
    """Records and bytes stored per ten seconds of ledger time, for ten minutes.

    It is part of the shard's state, so a new leader knows the rates from before its term.

    1. A rate is the mean over complete slots. The current slot would look like a drop in traffic.
    2. A slot without records counts as zero: the state sees every stored record.
    3. Memory is bounded: `SLOTS` slots per segment.
    """

    slots: list[tuple[int, int, int]] = []
    """(slot, records, bytes), ascending; slots without records are omitted."""

    def add(self, at_ms: int, records: int, size_bytes: int) -> None:
        """Count records stored at ``at_ms``, which never decreases."""
        slot, slots = at_ms // SLOT_MS, self.slots
        if slots and slots[-1][0] == slot:
            _, before, bytes_before = slots.pop()
            records, size_bytes = records + before, size_bytes + bytes_before
        elif slots and slots[0][0] <= slot - SLOTS:
            slots = self.slots = [each for each in slots if each[0] > slot - SLOTS]
        slots.append((slot, records, size_bytes))

    def rate(self, now_ms: int, window_ms: int) -> Rate:
        """Return the mean over the window that ends with the last complete slot before ``now_ms``."""
        return self._mean(now_ms // SLOT_MS, max(1, window_ms // SLOT_MS))

    def stored_by_ms(self, newest: int) -> int:
        """Return a ledger time by which the first of the ``newest`` records was stored; 0: it is not known."""
        for slot, records, _ in reversed(self.slots):
            newest -= records
            if newest <= 0:
                return (slot + 1) * SLOT_MS
        return max(0, self.slots[-1][0] + 1 - SLOTS) * SLOT_MS if self.slots else 0

    def peak(self, now_ms: int, window_ms: int, span_ms: int) -> Rate:
        """Return the highest mean over any window in the last ``span_ms``, separately for records and for bytes."""
        end, width = now_ms // SLOT_MS, max(1, window_ms // SLOT_MS)
        first = end - max(width, span_ms // SLOT_MS)
        stored = {slot: (records, size_bytes) for slot, records, size_bytes in self.slots if slot >= first}
        records = size_bytes = most_records = most_bytes = 0
        for slot in range(first, end):
            arrived, arrived_bytes = stored.get(slot, (0, 0))
            left, left_bytes = stored.get(slot - width, (0, 0))
            records += arrived - left
            size_bytes += arrived_bytes - left_bytes
            most_records, most_bytes = max(most_records, records), max(most_bytes, size_bytes)
        seconds = width * SLOT_MS / 1000
        return Rate(most_records / seconds, most_bytes / seconds)

    def _mean(self, end: int, width: int) -> Rate:
        records = size_bytes = 0
        for slot, stored, stored_bytes in reversed(self.slots):
            if slot < end - width:
                break
            if slot < end:
                records += stored
                size_bytes += stored_bytes
        seconds = width * SLOT_MS / 1000
        return Rate(records / seconds, size_bytes / seconds)


MAX_INDEX_ENTRIES = 128
"""Offsets per segment whose chunk is known; when the index is full, every second one is dropped."""
MAX_PRUNED_ENDS = 10_000


class SegmentTail(msgspec.Struct, gc=False):
    """Where the records of a segment end, and approximately which chunk holds which offset."""

    next_offset: int = 0
    size_bytes: int = 0
    index: list[tuple[int, int]] = []
    """(first offset in the chunk, chunk), ascending; sparse, never wrong."""
    stride: int = 1
    skipped: int = 0
    traffic: Traffic = msgspec.field(default_factory=Traffic)

    def add_index_entry(self, first_offset: int, chunk: int) -> None:
        """Record that ``chunk`` holds ``first_offset``. The index has one entry for every `stride`-th chunk."""
        if not (index := self.index):
            index.append((first_offset, chunk))
        elif index[-1][1] != chunk:
            self.skipped += 1
            if self.skipped >= self.stride:
                self.skipped = 0
                index.append((first_offset, chunk))
                if len(index) > MAX_INDEX_ENTRIES:
                    self.index = index[::2]
                    self.stride *= 2

    def chunk_of(self, offset: int) -> int:
        """Return a chunk at or before the one that holds ``offset``; 1 if the index is empty."""
        found = 1
        for first_offset, chunk in self.index:
            if first_offset > offset:
                break
            found = chunk
        return found


@dataclass(slots=True)
class Topic:
    topic_id: int
    name: str
    layout: Layout
    buckets: int
    tails: dict[int, SegmentTail]
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    first_segments: int = 1
    policy: e.TopicPolicy = e.NO_POLICY
    """Overrides of the cluster's settings."""
    external: ExternalTopic | None = None
    """The source of an external topic; None: headgate stores the records."""
    user: str = ANONYMOUS
    """Who created it."""
    pruned_ends: dict[int, int] = field(default_factory=dict)
    """Pruned segment → the offset after its last record, for the latest `MAX_PRUNED_ENDS`."""

    def record_ends(self, segments: Iterable[int]) -> dict[int, int]:
        """Return where the records of each segment end; 0 for an external topic, whose offsets count no records."""
        return {each: 0 if self.external is not None else self.tails[each].next_offset for each in segments}

    def drop_tails(self, segments: Iterable[int]) -> None:
        """Keep only the ends of pruned ``segments``: a CHECKPOINT consumer may have a position in one."""
        self.pruned_ends |= {segment: self.tails.pop(segment).next_offset for segment in segments}
        for oldest in list(self.pruned_ends)[:-MAX_PRUNED_ENDS]:
            del self.pruned_ends[oldest]


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic, to be read while segments are added or pruned. Its tails grow."""

    topic_id: int
    name: str
    layout: Layout
    tails: Mapping[int, SegmentTail]
    external: ExternalTopic | None

    @classmethod
    def of(cls, topic: TopicView) -> TopicSnapshot:
        return cls(topic.topic_id, topic.name, topic.layout, dict(topic.tails), topic.external)


TopicView = Topic | TopicSnapshot
"""A topic that is only read."""
