"""The objects of a ledger: their names, relative to its URL, ranges of chunks, and checks before one is used. Pure.

Names of one folder sort in the order of their numbers.

headgate reads one format of each kind and converts none. Nothing of a Parquet object is parsed before the checksum of
the whole object is right.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from zlib_ng.zlib_ng import crc32

from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger.checksum import ChecksumError, parquet_footer_start, parquet_metadata, verify_parquet

CHUNKS_FOLDER: Final = "chunks"
IDENTITY_PATH: Final = "ledger.json"
LEVELS_FOLDER: Final = "levels"
MANIFESTS_FOLDER: Final = "manifests"
"""The folder of all shards' manifests (headgate.ledger.compacted)."""
_CHUNK_NAME: Final = re.compile(r"([0-9]{12})\.parquet")
_SNAPSHOT_NAME: Final = re.compile(r"([0-9]{12})\.snapshot")
FANOUT: Final = 16
"""Ranges of one level that become one of the next: each record is rewritten once per level, and levels grow 16-fold."""
_MARK: Final = b"PAR1"


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


class _FormatField(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(_FormatField)


def check_format(name: str, found: int, supported: int) -> None:
    """Raise LedgerFormatError unless the object ``name`` has the ``supported`` format."""
    if found == supported:
        return
    if found < supported:
        advice = (
            "headgate does not convert ledgers: start a new cluster on an empty ledger URL, or run the older version"
        )
    else:
        advice = "run the newer version of headgate that wrote it"
    raise LedgerFormatError(f"{name} has format {found}, this version of headgate reads format {supported}; {advice}")


def check_json_format(name: str, raw: bytes, supported: int) -> None:
    """Check the ``format`` field of a JSON object before any other field; raises msgspec.DecodeError if it has none."""
    check_format(name, _DECODER.decode(raw).format, supported)


def check_sealed(data: bytes, path: str, metadata_key: bytes, supported_format: int) -> bytes:
    """Return the JSON under ``metadata_key`` in the metadata of an intact object of the ``supported_format``.

    Raises LedgerFormatError or LedgerError.
    """
    check_is_parquet(data, path)
    try:
        verify_parquet(data, crc32)
    except ChecksumError as error:
        raise LedgerError(f"{path} is damaged: {error}") from None
    raw = parquet_metadata(data, metadata_key)
    if raw is None:
        raise LedgerError(f"{path} is a Parquet object that headgate did not write")
    try:
        check_json_format(path, raw, supported_format)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from error
    return raw


def check_is_parquet(data: bytes, path: str) -> None:
    """Raise LedgerError unless ``data`` begins and ends like a Parquet object."""
    if not (data.startswith(_MARK) and data.endswith(_MARK) and parquet_footer_start(data) >= len(_MARK)):
        raise LedgerError(f"{path} is not a readable Parquet object ({len(data)} bytes)")
