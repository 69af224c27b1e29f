"""Offsets: sets of them, the positions of a consumer as text, and the history that they belong to. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final
from zlib import crc32

import msgspec

from headgate.errors import ConfigError
from headgate.model.identifiers import Offset, SegmentId

OffsetRange = tuple[int, int]
"""(first offset, end offset); the end is not included."""
_PREFIX: Final = "positions-1."
_CHECKSUM_BYTES: Final = 4
Point = tuple[int, int]
"""(chunk, id of the term that wrote it)."""


class OffsetRanges:
    """A set of offsets, stored as half-open ranges: sorted, disjoint, not touching.

    Adding at the end costs constant time, elsewhere a binary search and a shift of the ranges behind.
    Counting all offsets costs constant time.

    Iterating yields its ranges.
    """

    __slots__ = ("_count", "_ranges")

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        """Return the union of ``ranges``, which may overlap and come in any order."""
        self._ranges: list[OffsetRange] = []
        self._count = 0
        for first, end in sorted(ranges):
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        """Add ``first`` up to, not including, ``end``; an empty range changes nothing."""
        if first >= end:
            return
        ranges = self._ranges
        if not ranges or first >= ranges[-1][1]:
            begin = ranges.pop()[0] if ranges and first == ranges[-1][1] else first
            ranges.append((begin, end))
            self._count += end - first
            return
        low = bisect_left(ranges, first, key=_end)
        high = low
        while high < len(ranges) and ranges[high][0] <= end:
            high += 1
        if low < high:
            first, end = min(first, ranges[low][0]), max(end, ranges[high - 1][1])
        self._count += end - first - sum(last - start for start, last in ranges[low:high])
        ranges[low:high] = [(first, end)]

    def pop_first(self) -> OffsetRange:
        """Remove the lowest range and return it; raises IndexError if there is none."""
        first, end = self._ranges.pop(0)
        self._count -= end - first
        return first, end

    def pop_prefix(self, position: int = 0) -> int:
        """Remove what follows ``position`` without a gap, and everything below it; return where the gap begins."""
        while self._ranges and self._ranges[0][0] <= position:
            position = max(position, self.pop_first()[1])
        return position

    def contains(self, offset: int) -> bool:
        index = bisect_right(self._ranges, offset, key=_end)
        return index < len(self._ranges) and self._ranges[index][0] <= offset

    def touches(self, first: int, end: int) -> bool:
        """Return whether ``first`` up to ``end`` overlaps a range or continues it, so that adding it adds no range."""
        index = bisect_left(self._ranges, first, key=_end)
        return index < len(self._ranges) and self._ranges[index][0] <= end

    def count(self, below: int | None = None) -> int:
        if below is None or not self._ranges or self._ranges[-1][1] <= below:
            return self._count
        return sum(min(end, below) - first for first, end in self._ranges if first < below)

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges([*self, *other])

    def __and__(self, other: OffsetRanges) -> OffsetRanges:
        common = OffsetRanges()
        mine, theirs = iter(self), iter(other)
        left, right = next(mine, None), next(theirs, None)
        while left is not None and right is not None:
            common.add(max(left[0], right[0]), min(left[1], right[1]))
            if left[1] < right[1]:
                left = next(mine, None)
            else:
                right = next(theirs, None)
        return common

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]  # it changes in place

    def __repr__(self) -> str:
        return f"OffsetRanges({self._ranges})"


def _end(offsets: OffsetRange) -> int:
    return offsets[1]


class PositionToken(msgspec.Struct, frozen=True, array_like=True):
    """The positions of a CHECKPOINT consumer as printable text, with what they belong to.

    A position is an offset, and offsets are used again: in a topic that was deleted and created again, and in a ledger
    that was put back to an older state. So the text names the topic's id and points of the ledger's history
    (`KnownHistory`), and the leader compares them. The ledger's id is only named in errors: a ledger that
    was moved has another id and the same history, in which the positions hold.

    Programs store the text unchanged. A checksum finds a part of one.
    """

    topic: str
    topic_id: int
    ledger_id: str
    positions: dict[SegmentId, Offset]
    """Segment → next offset to read, of every segment that was granted."""
    held: list[SegmentId]
    """Those of them that no other consumer has taken over: reading them to the end was left to this consumer."""
    history: list[tuple[int, int]]
    """(chunk, term id): the chunks that the consumer knew."""

    def encode(self) -> str:
        data = msgspec.msgpack.encode(self)
        return _PREFIX + urlsafe_b64encode(crc32(data).to_bytes(_CHECKSUM_BYTES) + data).decode().rstrip("=")


def decode_positions(text: str) -> PositionToken:
    """Return what ``text`` contains; raises ConfigError unless `PositionToken.encode` wrote it."""
    problem = "positions: not a text that Consumer.positions returned"
    if not str(text).startswith(_PREFIX):
        raise ConfigError(f"{problem}: it begins with {_PREFIX!r}")
    encoded = text.removeprefix(_PREFIX)
    try:
        sealed = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        checksum, data = sealed[:_CHECKSUM_BYTES], sealed[_CHECKSUM_BYTES:]
        if crc32(data).to_bytes(_CHECKSUM_BYTES) != checksum:
            raise ConfigError(f"{problem}, or not all of it: the checksum differs")
        return msgspec.msgpack.decode(data, type=PositionToken)
    except (Base64Error, ValueError, msgspec.DecodeError) as error:
        raise ConfigError(f"{problem}, or not all of it: {error}") from None


class KnownHistory:
    """What one consumer knows of the history of its shard: chunks, and the ids of the terms that wrote them.

    A ledger that is put back to an older state under a running consumer has another history. Its chunks, offsets,
    grants and leader epochs repeat the numbers of lost ones, so the numbers prove nothing. A point (chunk, term id)
    does: two histories that have it in common are equal up to that chunk.

    1. Every chunk that is delivered from is a point, and so is the head that a reply of a leader states.
    2. Points are kept until a leader confirms them: its reply to a request that carried them proves that they are of
       its history. The newest point alone is not enough. After the ledger was put back, a reader may reach a chunk of
       the present history before the consumer asks.
    3. A chunk names the term of the chunk before. So a point includes the one before it, and a reader that reads chunk
       after chunk adds one point, however many terms it reads.
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._newest: dict[int, int] = {}
        """Term id → its newest chunk that is known."""
        for chunk, term_id in points:
            self.add(chunk, term_id)

    @property
    def points(self) -> list[Point]:
        """What a leader has to confirm, rising."""
        return sorted((chunk, term_id) for term_id, chunk in self._newest.items())

    @property
    def newest(self) -> int:
        """The newest chunk that is known; 0: none is."""
        return max(self._newest.values(), default=0)

    def add(self, chunk: int, term_id: int, previous_term_id: int | None = None) -> None:
        """Add a point. ``previous_term_id``: the term of the chunk before, if it is known."""
        if chunk > self._newest.get(term_id, 0):
            self._newest[term_id] = chunk
        if previous_term_id not in (None, term_id) and self._newest.get(previous_term_id, chunk) < chunk:
            del self._newest[previous_term_id]

    def confirmed(self, points: Iterable[Point], chunk: int, term_id: int) -> None:
        """Record that the leader whose term ``term_id`` has reached ``chunk`` confirms ``points``."""
        for known, of_term in points:
            if self._newest.get(of_term) == known:
                del self._newest[of_term]
        self.add(chunk, term_id)
