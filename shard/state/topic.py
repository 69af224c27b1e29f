"""One topic of a shard: its layout, its subscriptions, and where its records end. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.model import entries as e
from headgate.model.external_topic import ExternalTopic
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import Layout
from shard.state.subscription import Subscription
from shard.state.traffic import Traffic

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
        if self.index and self.index[-1][1] == chunk:
            return
        self.skipped += 1
        if self.index and self.skipped < self.stride:
            return
        self.skipped = 0
        self.index.append((first_offset, chunk))
        if len(self.index) > MAX_INDEX_ENTRIES:
            self.index = self.index[::2]
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
