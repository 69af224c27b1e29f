"""The names of objects, relative to the ledger's URL. Names of one folder sort in the order of their numbers. Pure."""

import re
from collections.abc import Iterable
from typing import Final

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
