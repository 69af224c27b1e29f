"""Which chunks are rolled up next: a decision over values.

The rules:

1. Only what has been counted is rolled up: a range never reaches beyond the watermark of the published result.
2. FANOUT manifests of one level, side by side, become one of the next before anything else happens.
3. Otherwise the next ``chunks`` chunks behind the last range become one of level 0.

So there are never more than FANOUT - 1 of a level when nothing is left to do, and a level is FANOUT times as wide as
the one below: `most_ranges` says how many ranges a ledger of any length has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.ledger.chunk_ranges import FANOUT, ChunkRange, compacted_through


@dataclass(frozen=True, slots=True)
class PlannedCompaction:
    """One range to write, and what from."""

    range: ChunkRange
    level: int
    sources: tuple[ChunkRange, ...]
    """The ranges that it takes the place of; none: written from chunks."""


def next_compaction(
    covering: Sequence[tuple[ChunkRange, int]], *, watermark: int, chunks: int
) -> PlannedCompaction | None:
    """Return what is to be written next, or None; ``covering`` is (range, level) of what `ranges_to_read` returned."""
    for at in range(len(covering) - FANOUT + 1):
        group = covering[at : at + FANOUT]
        if len({level for _, level in group}) == 1:
            sources = tuple(each for each, _ in group)
            return PlannedCompaction(ChunkRange(sources[0].first, sources[-1].last), group[0][1] + 1, sources)
    behind = compacted_through([each for each, _ in covering])
    if behind + chunks <= watermark:
        return PlannedCompaction(ChunkRange(behind + 1, behind + chunks), 0, ())
    return None


def most_ranges(rolled_chunks: int, chunks: int) -> int:
    """Return the most ranges that ``rolled_chunks`` chunks are in once all is done; level 0 takes ``chunks`` each."""
    levels, width = 0, chunks
    while width <= rolled_chunks:
        levels, width = levels + 1, width * FANOUT
    return levels * (FANOUT - 1)
