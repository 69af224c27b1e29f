"""Keep what a program acknowledged until the leader has stored it. Pure.

*Acknowledged* and *stored* are two sets, and only a reply of the leader moves an offset from one to the other.
What is acknowledged and not stored is fresh, in flight, or refused:

1. Acknowledgements belong to a holding, (segment, generation), which begins with its grant and ends when the
   consumer drops it. One for a holding that has ended is late: it cannot count any more.
2. A fresh acknowledgement is sent, and is in flight until its outcome is known. One batch is in flight at a time.
3. What the leader stores is forgotten. STREAM is cumulative: that includes all earlier offsets of the holding.
4. What the leader refuses stays refused while the holding lasts, whatever the reason. `retry` makes it fresh again.
5. With a holding ends what is not stored of it. Its number is counted: the next holder delivers those records again.
6. What is given up is remembered, until it is reported to the program.
7. Only the newest checkpoint of each holding is sent.
8. QUEUE: what is acknowledged negatively, or was delivered before, is sent record by record.
9. STREAM: an acknowledgement is sent with the parked records that it covers, and stored or refused with them. Of each
   resumed key only the newest number is sent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from headgate.client.decisions.held_segments import HeldKey
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import SegmentId
from headgate.model.positions import OffsetRange, OffsetRanges
from headgate.model.text import listed
from headgate.protocol.request_fields import MAX_BATCH_ACKNOWLEDGEMENTS
from headgate.protocol.requests import Acknowledgement, NegativeAcknowledgement, ParkedRecord, ResumedKey

Offsets = Mapping[SegmentId, tuple[OffsetRange, ...]]
"""Segment → (first, end) of offsets. Empty: only a checkpoint of an external segment."""
ByHolding = Mapping[HeldKey, OffsetRanges]
"""Holding → offsets. Empty: only a checkpoint of an external segment."""
Single = Acknowledgement | NegativeAcknowledgement
"""The acknowledgement of one record of a QUEUE."""
NOTHING: Final[Mapping[int, str]] = {}
MAX_PARKED: Final = 10_000
"""Parked records of one holding that are not stored; beyond it no further record of it is read."""
MAX_NAMED: Final = 10
"""Segments, and ranges of one segment, that a text names."""


@dataclass(slots=True, eq=False)
class _Holding:
    acknowledged: int
    """STREAM: the offset after the last one that is acknowledged."""
    fresh: OffsetRanges = field(default_factory=OffsetRanges)
    refused: OffsetRanges = field(default_factory=OffsetRanges)
    singles: dict[int, Single] = field(default_factory=dict)
    """Offset → what is fresh besides ``fresh``, the first one to be sent first."""
    refused_singles: dict[int, Single] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_is_due: bool = False
    parked: dict[int, ParkedRecord] = field(default_factory=dict)
    """Offset → a parked record that is not stored. It is sent once an acknowledgement covers it."""
    resumed: dict[bytes, ResumedKey] = field(default_factory=dict)
    """Resumed key → what is not stored of it."""
    resumed_is_due: bool = False

    @property
    def is_fresh(self) -> bool:
        return bool(self.fresh) or bool(self.singles) or self.checkpoint_is_due or self.resumed_is_due

    @property
    def unsent(self) -> OffsetRanges:
        singles = self.singles | self.refused_singles if self.singles or self.refused_singles else {}
        return self.fresh | self.refused | OffsetRanges((offset, offset + 1) for offset in singles)


class AcknowledgementBatch(msgspec.Struct, frozen=True):
    """The fields of `AcknowledgeBatch` that do not depend on the consumer."""

    acknowledgements: list[Acknowledgement] = []
    checkpoints: dict[int, str] = {}
    negative: list[NegativeAcknowledgement] = []
    parked: list[ParkedRecord] = []
    resumed: list[ResumedKey] = []


class UnstoredAcknowledgements:
    def __init__(self, kind: SubscriptionType) -> None:
        self.stored = 0
        """Offsets whose acknowledgement the leader has stored."""
        self.late = 0
        """Offsets whose acknowledgement was not stored when their holding ended, or came after it or their delivery."""
        self._kind = kind
        self._holdings: dict[HeldKey, _Holding] = {}
        self._fresh_keys: dict[HeldKey, None] = {}
        """Holdings with something fresh, the first one to be sent first."""
        self._in_flight: AcknowledgementBatch | None = None
        self._given_up: dict[SegmentId, OffsetRanges] = {}

    # The program

    def begin(self, key: HeldKey, start_offset: int) -> None:
        self._holdings[key] = _Holding(start_offset)

    def add(self, key: HeldKey, first_offset: int, end_offset: int) -> None:
        """Acknowledge ``first_offset`` up to ``end_offset``; STREAM: everything below ``end_offset``."""
        holding = self._holdings.get(key)
        if holding is None:
            self.late += 1
            return
        if self._kind == SubscriptionType.STREAM:
            first_offset, holding.acknowledged = holding.acknowledged, max(holding.acknowledged, end_offset)
        holding.fresh.add(first_offset, end_offset)
        if holding.is_fresh:
            self._fresh_keys[key] = None

    def add_single(self, offset: int, single: Single) -> None:
        """Acknowledge one record of a QUEUE that was delivered before, or acknowledge it negatively."""
        key = single.segment, single.generation
        if (holding := self._holdings.get(key)) is None:
            self.late += 1
            return
        holding.singles[offset] = single
        self._fresh_keys[key] = None

    def add_parked(self, record: ParkedRecord) -> None:
        """Park a record with the acknowledgement that covers it."""
        if (holding := self._holdings.get((record.segment, record.generation))) is not None:
            holding.parked[record.offset] = record

    def add_resumed(self, resumed: ResumedKey) -> None:
        """Acknowledge the parked records of a key up to a number."""
        key = resumed.segment, resumed.generation
        if (holding := self._holdings.get(key)) is None:
            self.late += 1
            return
        holding.resumed[resumed.key], holding.resumed_is_due = resumed, True
        self._fresh_keys[key] = None

    def has_parked(self, key: HeldKey, parked: bytes) -> bool:
        """Return whether a record of key ``parked`` waits to be stored as parked."""
        holding = self._holdings.get(key)
        return holding is not None and any(each.key == parked for each in holding.parked.values())

    def is_full(self, key: HeldKey) -> bool:
        """Return whether no further record of this holding can be parked, or fail, at present."""
        holding = self._holdings.get(key)
        if holding is None:
            return False
        refused = holding.refused_singles.values()
        return len(holding.parked) >= MAX_PARKED or any(isinstance(each, NegativeAcknowledgement) for each in refused)

    def has_negative(self, keys: Iterable[HeldKey] | None = None) -> bool:
        """Return whether a negative acknowledgement of ``keys``, or of any holding, is not stored."""
        holdings = self._holdings if keys is None else self._holdings.keys() & keys
        sent = [] if self._in_flight is None else self._in_flight.negative
        return any((each.segment, each.generation) in holdings for each in sent) or any(
            isinstance(each, NegativeAcknowledgement)
            for key in holdings
            for each in (*self._holdings[key].singles.values(), *self._holdings[key].refused_singles.values())
        )

    def add_checkpoint(self, key: HeldKey, checkpoint: str) -> None:
        """Set where the next holder of an external segment continues."""
        if (holding := self._holdings.get(key)) is not None:
            holding.checkpoint, holding.checkpoint_is_due = checkpoint, True
            self._fresh_keys[key] = None

    def end(self, key: HeldKey) -> int:
        """End a holding; return how many of its acknowledgements were not stored."""
        holding = self._holdings.pop(key, None)
        self._fresh_keys.pop(key, None)
        lost = 0 if holding is None else holding.unsent.count()
        self.late += lost
        return lost

    def give_up(self, key: HeldKey) -> Offsets:
        """End a holding although not everything of it is stored; remember and return what is not."""
        lost = by_segment(self.unstored([key]))
        for segment, ranges in lost.items():
            self._given_up[segment] = self._given_up.get(segment, OffsetRanges()) | OffsetRanges(ranges)
        self.end(key)
        return lost

    def take_given_up(self) -> Offsets:
        """Return what was given up since the last call."""
        given_up, self._given_up = self._given_up, {}
        return {segment: tuple(ranges) for segment, ranges in given_up.items()}

    def unstored(self, keys: Iterable[HeldKey] | None = None) -> ByHolding:
        """Return what is acknowledged and not stored, of ``keys`` or of all holdings."""
        batch, sent = self._in_flight or AcknowledgementBatch(), dict[HeldKey, OffsetRanges]()
        named = [(each.segment, each.generation, each.first_offset, each.end_offset) for each in batch.acknowledgements]
        named += [(each.segment, each.generation, each.offset, each.offset + 1) for each in batch.negative]
        for segment, generation, first, end in named:
            sent.setdefault((segment, generation), OffsetRanges()).add(first, end)
        found: dict[HeldKey, OffsetRanges] = {}
        for key in self._holdings if keys is None else self._holdings.keys() & keys:
            holding = self._holdings[key]
            ranges = holding.unsent | sent.get(key, OffsetRanges())
            if ranges or holding.checkpoint is not None or holding.resumed:
                found[key] = ranges
        return found

    def still_unstored(self, earlier: ByHolding) -> ByHolding:
        """Return the part of ``earlier`` that is not stored yet. What was acknowledged since does not count."""
        now = self.unstored(earlier)
        return {key: earlier[key] & ranges for key, ranges in now.items() if earlier[key] & ranges or not earlier[key]}

    @property
    def may_be_late(self) -> bool:
        """Whether the reply to the batch in flight decides if acknowledgements of an ended holding were late."""
        batch = self._in_flight or AcknowledgementBatch()
        sent: list[Single] = [*batch.acknowledgements, *batch.negative]
        return any((each.segment, each.generation) not in self._holdings for each in sent)

    @property
    def has_refused(self) -> bool:
        """Whether `retry` makes anything fresh."""
        return any(
            holding.refused
            or holding.refused_singles
            or (holding.checkpoint is not None and not holding.checkpoint_is_due)
            or (holding.resumed and not holding.resumed_is_due)
            for holding in self._holdings.values()
        )

    @property
    def has_due(self) -> bool:
        """Whether anything is fresh or in flight."""
        return bool(self._fresh_keys) or self._in_flight is not None

    @property
    def ranges(self) -> int:
        return sum(
            len(holding.fresh) + len(holding.refused) + len(holding.singles) + len(holding.refused_singles)
            for holding in self._holdings.values()
        )

    # The leader

    def next_batch(self) -> AcknowledgementBatch | None:
        """Put the next fresh acknowledgements into flight; None: there are none."""
        assert self._in_flight is None, "one batch is in flight at a time"
        batch = AcknowledgementBatch()
        acknowledgements, negative = batch.acknowledgements, batch.negative
        while self._fresh_keys and len(acknowledgements) + len(negative) < MAX_BATCH_ACKNOWLEDGEMENTS:
            key = next(iter(self._fresh_keys))
            holding = self._holdings[key]
            if holding.checkpoint is not None:
                batch.checkpoints[key[0]] = holding.checkpoint
                holding.checkpoint_is_due = False
            if holding.resumed_is_due:
                free = MAX_BATCH_ACKNOWLEDGEMENTS - len(batch.resumed)
                batch.resumed.extend(islice(holding.resumed.values(), free))
                holding.resumed_is_due = len(holding.resumed) > free
            if holding.singles:
                single = holding.singles.pop(next(iter(holding.singles)))
                if isinstance(single, NegativeAcknowledgement):
                    negative.append(single)
                else:
                    acknowledgements.append(single)
            else:
                # A checkpoint alone needs an acknowledgement as well; an empty one changes nothing.
                at = holding.acknowledged
                first, end = holding.fresh.pop_first() if holding.fresh else (at, at)
                if holding.parked:
                    end = _add_parked(batch, holding, end)
                acknowledgements.append(Acknowledgement(*key, min(first, end), end))
                if MAX_BATCH_ACKNOWLEDGEMENTS in (len(batch.parked), len(batch.resumed)):
                    break
            if not holding.is_fresh:
                del self._fresh_keys[key]
        if not acknowledgements and not negative:
            return None
        self._in_flight = batch
        return batch

    def replied(self, rejected: Mapping[int, str], negative_rejected: Mapping[int, str] = NOTHING) -> None:
        """Record the reply to the batch in flight: index → reason of what does not count."""
        batch, self._in_flight = self._in_flight, None
        assert batch is not None, "a reply to no batch"
        for index, each in enumerate(batch.acknowledgements):
            if index in rejected:
                self._refuse(each)
            else:
                self._store(each, batch)
        for index, single in enumerate(batch.negative):
            if index in negative_rejected:
                self._refuse(single)

    def failed(self) -> None:
        """Record that the batch in flight was refused as a whole, or has no reply."""
        batch, self._in_flight = self._in_flight or AcknowledgementBatch(), None
        refused: list[Single] = [*batch.acknowledgements, *batch.negative]
        for each in refused:
            self._refuse(each)

    def retry(self) -> None:
        for key, holding in self._holdings.items():
            for first, end in holding.refused:
                holding.fresh.add(first, end)
            holding.refused = OffsetRanges()
            # What the program said since is newer.
            holding.singles = holding.refused_singles | holding.singles
            holding.refused_singles = {}
            holding.checkpoint_is_due = holding.checkpoint is not None
            holding.resumed_is_due = bool(holding.resumed)
            if holding.is_fresh:
                self._fresh_keys[key] = None

    def _store(self, stored: Acknowledgement, batch: AcknowledgementBatch) -> None:
        self.stored += stored.end_offset - stored.first_offset
        holding = self._holdings.get((stored.segment, stored.generation))
        if holding is None:
            return
        if self._kind == SubscriptionType.STREAM:
            self.stored += sum(end - first for first, end in holding.refused)
            holding.refused = OffsetRanges()
            holding.parked = {offset: each for offset, each in holding.parked.items() if offset >= stored.end_offset}
            for resumed in batch.resumed:
                if holding.resumed.get(resumed.key) == resumed:
                    del holding.resumed[resumed.key]
        if holding.checkpoint is not None and holding.checkpoint == batch.checkpoints.get(stored.segment):
            holding.checkpoint, holding.checkpoint_is_due = None, False

    def _refuse(self, refused: Single) -> None:
        holding = self._holdings.get((refused.segment, refused.generation))
        if holding is None:
            acknowledged = None if isinstance(refused, NegativeAcknowledgement) else refused
            self.late += 1 if acknowledged is None else acknowledged.end_offset - acknowledged.first_offset
        elif isinstance(refused, NegativeAcknowledgement):
            holding.refused_singles[refused.offset] = refused
        elif refused.delivery > 1:
            holding.refused_singles[refused.first_offset] = refused
        else:
            holding.refused.add(refused.first_offset, refused.end_offset)


def _add_parked(batch: AcknowledgementBatch, holding: _Holding, end: int) -> int:
    """Add the parked records below ``end``, as many as ``batch`` takes; return the end of what they allow."""
    covered = sorted(offset for offset in holding.parked if offset < end)
    taken = covered[: MAX_BATCH_ACKNOWLEDGEMENTS - len(batch.parked)]
    batch.parked.extend(holding.parked[offset] for offset in taken)
    if len(taken) == len(covered):
        return end
    kept = covered[len(taken)]
    holding.fresh.add(kept, end)
    return kept


def by_segment(offsets: ByHolding) -> Offsets:
    found: dict[SegmentId, OffsetRanges] = {}
    for (segment, _), ranges in sorted(offsets.items()):
        found[SegmentId(segment)] = found.get(SegmentId(segment), OffsetRanges()) | ranges
    return {segment: tuple(ranges) for segment, ranges in found.items()}


def offsets_text(offsets: Offsets) -> str:
    """Return ``offsets`` for people, as in "segment 3: offsets 5 to 9"."""
    parts = [f"segment {segment}: {_ranges_text(ranges)}" for segment, ranges in sorted(offsets.items())]
    return listed(parts, MAX_NAMED, "; ")


def _ranges_text(ranges: tuple[OffsetRange, ...]) -> str:
    if not ranges:
        return "its checkpoint, or resumed records"
    parts = [str(first) if end == first + 1 else f"{first} to {end - 1}" for first, end in ranges]
    return "offsets " + listed(parts, MAX_NAMED)
