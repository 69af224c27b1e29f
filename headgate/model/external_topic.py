"""What is known of an external topic beside its layout: a fold over its ledger entries.

An external topic is a stream that headgate does not store: its records stand in a source of its own, say a Kinesis
stream, and headgate gives out its segments in the order of their ancestry. It has a layout like any topic, which is
imported from the source (controller.decisions.topic_import judges that), and nobody can produce to it here.

Positions come in two kinds:

* ``offsets``: the source numbers a segment's records with rising integers. A consumer acknowledges them as ever, and a
  sealed segment is drained when its end offset is acknowledged. Where an active one ends is not known here.
* ``opaque``: the source's marks (Kinesis' sequence numbers exceed 63 bits and have holes) mean nothing here. A segment
  then is one thing, read to its end or not: its end offset is 1. How far a reader is stands in a checkpoint, in the
  source's words; it is kept for the next holder and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model import entries as e
from headgate.model.hashing import SEGMENT_HASHES
from headgate.model.layout import Layout, Segment, SegmentState

OPAQUE_END_OFFSET = 1
"""End offset of every segment of a source whose positions are opaque."""

Hashes = tuple[int, int]
"""First and last hash of a range, in the source's own numbers."""


@dataclass(slots=True)
class ExternalTopic:
    """Where an external topic comes from, and what its segments are called there."""

    source: str
    hash_bits: int
    positions: e.Positions
    hashes: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Segment → its range at the source as decimal text, which msgpack can hold; empty where the source has none."""
    pruned: set[str] = field(default_factory=set)
    """Labels of segments that are drained and gone from the layout; the source may go on listing them."""

    @classmethod
    def imported(cls, entry: e.TopicImported) -> ExternalTopic:
        """Return what ``entry`` says of the source and its segments."""
        known = cls(entry.source, entry.hash_bits, entry.positions)
        known.add(entry.segments)
        return known

    def add(self, segments: Iterable[e.ImportedSegment]) -> None:
        """Learn of ``segments``."""
        for imported in segments:
            if imported.hashes is not None:
                self.hashes[imported.segment] = imported.hashes

    def prune(self, segment: Segment) -> None:
        """Keep the label of a segment that leaves the layout, so that the next import does not bring it back."""
        self.hashes.pop(segment.segment_id, None)
        if segment.label is not None:
            self.pruned.add(segment.label)

    def max_end_offset(self, segment: Segment) -> int | None:
        """Return the highest end offset that may be acknowledged; None where it is not known."""
        return OPAQUE_END_OFFSET if self.positions == "opaque" else segment.end_offset


def imported_layout(entry: e.TopicImported, at_ms: int) -> Layout:
    """Return the first layout of an external topic."""
    return Layout.imported(imported_segments(entry.segments, entry.hash_bits, at_ms), at_ms)


def imported_segments(segments: Iterable[e.ImportedSegment], hash_bits: int, at_ms: int) -> list[Segment]:
    """Return ``segments`` as a layout holds them: ranges scaled to the ring, the whole ring where there are none."""
    found: list[Segment] = []
    for imported in segments:
        hashes = parse_hashes(imported.hashes)
        first, last = (0, SEGMENT_HASHES - 1) if hashes is None else scale_to_ring(hashes, hash_bits)
        sealed = imported.end_offset is not None
        found.append(
            Segment(
                segment_id=imported.segment,
                first_hash=first,
                last_hash=last,
                created_at_ms=at_ms,
                parents=tuple(imported.parents),
                state=SegmentState.SEALED if sealed else SegmentState.ACTIVE,
                end_offset=imported.end_offset,
                sealed_at_ms=at_ms if sealed else None,
                label=imported.label,
            ),
        )
    return found


def parse_hashes(hashes: tuple[str, str] | None) -> Hashes | None:
    """Return a range that is written as decimal text as numbers."""
    return None if hashes is None else (int(hashes[0]), int(hashes[1]))


def scale_to_ring(hashes: Hashes, hash_bits: int) -> Hashes:
    """Return a range of ``hash_bits``-bit numbers on the 16-bit ring; one that is narrower than a hash gets one."""
    first = hashes[0] * SEGMENT_HASHES >> hash_bits
    end = (hashes[1] + 1) * SEGMENT_HASHES >> hash_bits
    return first, max(first, end - 1)
