"""Decide which chunks to compact next. Pure.

1. A range never exceeds the watermark of the published result: only counted chunks are compacted.
2. ``fanout`` adjacent ranges of one level become one of the next level, before anything else.
3. Otherwise the next ``chunks`` chunks become one range of level 0.

So the number of ranges grows with the logarithm of the ledger's length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.ledger.paths import FANOUT, ChunkRange, compacted_through


@dataclass(frozen=True, slots=True)
class PlannedCompaction:
    """A range to write, and its sources."""

    range: ChunkRange
    level: int
    sources: tuple[ChunkRange, ...]
    """The ranges that it replaces; empty: it is written from chunks."""


def next_compaction(
    covering: Sequence[tuple[ChunkRange, int]], *, watermark: int, chunks: int, fanout: int = FANOUT
) -> PlannedCompaction | None:
    """Return the next range to write, or None; ``covering``: (range, level) of the ranges of `ranges_to_read`."""
    for at in range(len(covering) - fanout + 1):
        group = covering[at : at + fanout]
        if len({level for _, level in group}) == 1:
            sources = tuple(each for each, _ in group)
            return PlannedCompaction(ChunkRange(sources[0].first, sources[-1].last), group[0][1] + 1, sources)
    last = compacted_through([each for each, _ in covering])
    return PlannedCompaction(ChunkRange(last + 1, last + chunks), 0, ()) if last + chunks <= watermark else None
