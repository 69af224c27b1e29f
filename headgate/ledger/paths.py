"""The names of objects, relative to the ledger's URL, and ranges of chunks. Pure.

Names of one folder sort in the order of their numbers.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

CHUNKS_FOLDER: Final = "chunks"
IDENTITY_PATH: Final = "ledger.json"
LEVELS_FOLDER: Final = "levels"
MANIFESTS_FOLDER: Final = "manifests"
"""The folder of all shards' manifests (headgate.ledger.compacted)."""
_CHUNK_NAME: Final = re.compile(r"([0-9]{12})\.parquet")
_SNAPSHOT_NAME: Final = re.compile(r"([0-9]{12})\.snapshot")


def begun_path(shard: int) -> str:
    """Return the object that says that the shard has had a term; it is in no folder of the shard."""
    return f"begun/{shard}.json"


def chunk_folder(shard: int) -> str:
    return f"{CHUNKS_FOLDER}/shard={shard:04d}"


def chunk_name(number: int) -> str:
    return f"{number:012d}.parquet"


def chunk_path(shard: int, number: int) -> str:
    return f"{chunk_folder(shard)}/{chunk_name(number)}"


def chunk_number(name: str) -> int | None:
    """Return the number in ``name``; None if a chunk has no such name."""
    match = _CHUNK_NAME.fullmatch(name)
    return int(match[1]) if match else None


def chunk_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the chunks among ``names``, in their order, without foreign names."""
    return [number for name in names if (number := chunk_number(name)) is not None]


def snapshot_folder(shard: int) -> str:
    return f"snapshots/shard={shard:04d}"


def snapshot_path(shard: int, number: int) -> str:
    return f"{snapshot_folder(shard)}/{number:012d}.snapshot"


def snapshot_number(name: str) -> int | None:
    """Return the chunk number in ``name``; None if a snapshot has no such name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    return int(match[1]) if match else None


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
