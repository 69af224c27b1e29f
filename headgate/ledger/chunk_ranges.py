"""Compacted ranges of chunks, and which ones a reader reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FANOUT: Final = 16
"""Ranges of one level that become one of the next: each record is rewritten once per level, and levels grow 16-fold."""


class ChunkRange(NamedTuple):
    """Chunks ``first`` to ``last``, both included."""

    first: int
    last: int


def ranges_to_read(ranges: Iterable[ChunkRange]) -> list[ChunkRange]:
    """Return adjacent ranges from chunk 1 on; of ranges with the same first chunk, the widest."""
    widest: dict[int, int] = {}
    for first, last in ranges:
        widest[first] = max(last, widest.get(first, 0))
    selected: list[ChunkRange] = []
    first = 1
    while (last := widest.get(first, 0)) >= first:
        selected.append(ChunkRange(first, last))
        first = last + 1
    return selected


def compacted_through(selected: Sequence[ChunkRange]) -> int:
    """Return the last chunk of the ``selected`` ranges; 0 if there are none."""
    return selected[-1].last if selected else 0
