"""State of an external topic beside its layout: a fold over its ledger entries.

Its records are in a source, for example a Kinesis stream; producers cannot write to it. A source
has one kind of positions:

* ``offsets``: rising integers, acknowledged as usual. A sealed segment is drained when its end
  offset is acknowledged. The end of an active segment is unknown.
* ``opaque``: not interpreted; Kinesis sequence numbers exceed 63 bits and have gaps. A segment is read to its end or
  not, so its end offset is 1. A checkpoint holds the reader's position for the next holder and decides nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from headgate.model import entries as e
from headgate.model.layout import SEGMENT_HASHES, Segment, SegmentState

OPAQUE_END_OFFSET = 1
"""End offset of every segment of a source whose positions are opaque."""

Hashes = tuple[int, int]


@dataclass(slots=True)
class ExternalTopic:
    """The source of an external topic, and the ranges and labels of its segments there."""

    source: str
    hash_bits: int
    positions: e.Positions
    hashes: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Segment → its range at the source as decimal text, which msgpack can hold; empty if the source has none."""
    pruned: set[str] = field(default_factory=set)
    """Labels of drained segments that left the layout; the source may still list them."""

    @classmethod
    def imported(cls, entry: e.TopicImported) -> Self:
        topic = cls(entry.source, entry.hash_bits, entry.positions)
        topic.add(entry.segments)
        return topic

    def add(self, segments: Iterable[e.ImportedSegment]) -> None:
        for imported in segments:
            if imported.hashes is not None:
                self.hashes[imported.segment] = imported.hashes

    def prune(self, segment: Segment) -> None:
        """Remember the label of a segment that leaves the layout, so that the next import does not bring it back."""
        self.hashes.pop(segment.segment_id, None)
        if segment.label is not None:
            self.pruned.add(segment.label)

    def max_end_offset(self, segment: Segment) -> int | None:
        """Return the highest end offset that may be acknowledged; None if it is not known."""
        return OPAQUE_END_OFFSET if self.positions == "opaque" else segment.end_offset


def imported_segments(segments: Sequence[e.ImportedSegment], hash_bits: int, at_ms: int) -> list[Segment]:
    """Return ``segments`` for a layout, with their children among themselves.

    Ranges are scaled to the ring. If the source has none, a segment has the whole ring.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    for imported in segments:
        segment = imported.segment
        for parent in imported.parents:
            children[parent].append(segment)
    scaled: list[Segment] = []
    for imported in segments:
        hashes = parse_hashes(imported.hashes)
        first, last = (0, SEGMENT_HASHES - 1) if hashes is None else scale_to_ring(hashes, hash_bits)
        sealed = imported.end_offset is not None
        scaled.append(
            Segment(
                segment_id=imported.segment,
                first_hash=first,
                last_hash=last,
                created_at_ms=at_ms,
                parents=tuple(imported.parents),
                children=tuple(children.get(imported.segment, ())),
                state=SegmentState.SEALED if sealed else SegmentState.ACTIVE,
                end_offset=imported.end_offset,
                sealed_at_ms=at_ms if sealed else None,
                label=imported.label,
            )
        )
    return scaled


def parse_hashes(hashes: tuple[str, str] | None) -> Hashes | None:
    return None if hashes is None else (int(hashes[0]), int(hashes[1]))


def scale_to_ring(hashes: Hashes, hash_bits: int) -> Hashes:
    """Return a range of ``hash_bits``-bit numbers on the 16-bit ring; it covers at least one hash."""
    first = hashes[0] * SEGMENT_HASHES >> hash_bits
    end = (hashes[1] + 1) * SEGMENT_HASHES >> hash_bits
    return first, max(first, end - 1)
