"""Compacted ranges of chunks, and which ones a reader reads. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FANOUT: Final = 16
"""Ranges of one level that become one of the next: each record is rewritten once per level, and levels grow 16-fold."""


class ChunkRange(NamedTuple):
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"


def ranges_to_read(ranges: Iterable[ChunkRange]) -> list[ChunkRange]:
    """Return adjacent ranges from chunk 1 on that reach furthest; of such chains, one of the fewest ranges.

    A range that crosses the others, as a suspended run of another size could leave it, hides nothing.
    """
    chains: dict[int, tuple[int, int]] = {0: (0, 0)}
    """Last chunk → number of ranges in the shortest chain that ends there, and the last chunk of the one before."""
    for first, last in sorted(set(ranges)):
        if last >= first and first - 1 in chains:
            length = chains[first - 1][0] + 1
            if last not in chains or length < chains[last][0]:
                chains[last] = length, first - 1
    selected: list[ChunkRange] = []
    last = max(chains)
    while last:
        before = chains[last][1]
        selected.append(ChunkRange(before + 1, last))
        last = before
    return selected[::-1]


def compacted_through(selected: Sequence[ChunkRange]) -> int:
    """Return the last chunk of the ``selected`` ranges; 0 if there are none."""
    return selected[-1].last if selected else 0
