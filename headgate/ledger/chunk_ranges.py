"""Ranges of chunks, and which of them are read: values, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FANOUT: Final = 16
"""Ranges of one level that become one of the next: a record is rewritten once a level, and levels grow 16-fold."""


class ChunkRange(NamedTuple):
    """Chunks ``first`` to ``last``, both included."""

    first: int
    last: int


def cover(ranges: Iterable[ChunkRange]) -> list[ChunkRange]:
    """Return the ranges to read: from chunk 1 on, side by side, the widest of those that begin alike."""
    widest: dict[int, int] = {}
    for first, last in ranges:
        widest[first] = max(last, widest.get(first, 0))
    found: list[ChunkRange] = []
    first = 1
    while (last := widest.get(first, 0)) >= first:
        found.append(ChunkRange(first, last))
        first = last + 1
    return found


def compacted_through(covering: Sequence[ChunkRange]) -> int:
    """Return the last chunk that ``covering`` speaks for; 0 for none."""
    return covering[-1].last if covering else 0
