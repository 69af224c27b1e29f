"""Compacted objects, and the manifests that make them visible.

A manifest describes a range of chunks: for each segment, the objects with its records in offset order, and one object
that aggregates all other facts. It is created with put-if-absent once these are durable. A range is therefore compacted
as a whole or not at all, and only one of two concurrent runs counts. Objects without a manifest are deleted later.

FANOUT adjacent ranges of one level are rewritten into one of the next, so there are few ranges.

Spark writes the objects, so a manifest contains their checksums and its own (headgate.ledger.checksum).
"""

import re
from collections.abc import Collection
from typing import Final

import msgspec
from zlib_ng.zlib_ng import crc32

from headgate.errors import LedgerError
from headgate.ledger import checksum
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.objects import MANIFESTS_FOLDER, ChunkRange, check_is_parquet, check_json_format
from headgate.ledger.parquet_columns import Columns, read_columns_unlocked
from headgate.storage.object_store import Store, create_own

FORMAT: Final = 5
"""The format of a manifest, and of the facts that it names."""
_NAME: Final = re.compile(r"(\d{12})-(\d{12})\.json")


class CompactedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object with consecutive records of one segment, sorted by offset."""

    path: str
    """Relative to the ledger's URL."""
    topic_id: int
    segment: int
    first_offset: int
    end_offset: int
    size_bytes: int
    first_at_ms: int
    """Time of the chunk that stored its first record."""
    last_at_ms: int
    checksum: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The compacted form of chunks ``first`` to ``last`` of a shard."""

    format: int = FORMAT
    ledger_id: str = ""
    """The id of the ledger (headgate.ledger.identity); empty if it had none."""
    shard: int
    first: int
    last: int
    level: int
    """0: written from chunks; otherwise from FANOUT manifests of the level below."""
    written_at_ms: int
    """Clock of its writer, milliseconds since 1970."""
    last_at_ms: int
    last_term_id: int = 0
    """Id of the term that wrote the last chunk; 0: an older version compacted it."""
    facts: str
    """Path of the object that aggregates the facts of these chunks."""
    facts_checksum: int
    objects: list[CompactedObject]
    """Sorted by topic, segment and offset."""

    @property
    def range(self) -> ChunkRange:
        return ChunkRange(self.first, self.last)


def manifest_folder(shard: int) -> str:
    return f"{MANIFESTS_FOLDER}/shard={shard:04d}"


def manifest_path(shard: int, chunks: ChunkRange) -> str:
    return f"{manifest_folder(shard)}/{chunks.first:012d}-{chunks.last:012d}.json"


def compacted_folder(shard: int) -> str:
    """Return the folder of a shard's compacted objects, relative to the ledger's URL. It has one folder per run."""
    return f"compacted/shard={shard:04d}"


async def manifest_ranges(store: Store, shard: int) -> list[ChunkRange]:
    """Return the ranges of all manifests, in order; raises StoreUnavailableError."""
    names = await store.names(manifest_folder(shard))
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return [ChunkRange(int(match[1]), int(match[2])) for match in matches]


async def read_manifest(store: Store, shard: int, chunks: ChunkRange) -> Manifest:
    """Return one manifest.

    Raises LedgerFormatError, LedgerError, ObjectMissingError (a wider one replaced it, or it never existed) or
    StoreUnavailableError.
    """
    path = manifest_path(shard, chunks)
    data = await store.read(path)
    try:
        checksum.verify_json(data)
        check_json_format(path, data, FORMAT)
        manifest = _DECODER.decode(data)
    except (checksum.ChecksumError, msgspec.DecodeError) as error:
        raise LedgerError(f"{path} is not a manifest, or is damaged: {error}") from error
    if (manifest.shard, manifest.range) != (shard, chunks):
        raise LedgerError(f"{path} states that it describes {manifest.range} of shard {manifest.shard}")
    ledger_id = await read_ledger_id(store, "this ledger")
    if manifest.ledger_id != (ledger_id or ""):
        raise LedgerError(
            f"{path} belongs to the ledger with the id {manifest.ledger_id or '(none)'}, and this ledger has the id "
            f"{ledger_id or '(none)'}: copy ledgers with `headgate ledger copy`"
        )
    return manifest


def named_paths(manifest: Manifest, existing: Collection[tuple[int, int]] | None = None) -> dict[str, int]:
    """Return path → checksum of what a manifest names.

    ``existing``: topic and segment of those that exist. The objects of others are left out: they may be deleted.
    """
    objects = (item for item in manifest.objects if existing is None or (item.topic_id, item.segment) in existing)
    return {item.path: item.checksum for item in objects} | {manifest.facts: manifest.facts_checksum}


async def create_manifest(store: Store, manifest: Manifest) -> None:
    """Make a range visible. Everything the manifest names must be durable. Raises what `Store.create` raises."""
    await create_own(
        store, manifest_path(manifest.shard, manifest.range), checksum.seal_json(_ENCODER.encode(manifest))
    )


def check_object(data: bytes, path: str, expected: int) -> None:
    """Raise LedgerError unless ``data``, the object at ``path``, has the checksum that its manifest states."""
    try:
        checksum.check(data, expected, crc32)
    except checksum.ChecksumError as error:
        raise LedgerError(f"{path} is damaged: {error}") from None


def decode_compacted(data: bytes, item: CompactedObject) -> Columns:
    """Return the records of the object ``item``; raises LedgerError if it is not what its manifest says.

    Blocks for milliseconds per megabyte, without Python's lock most of the time.
    """
    check_object(data, item.path, item.checksum)
    check_is_parquet(data, item.path)
    rows = read_columns_unlocked(data, item.path)
    if len(rows) != item.end_offset - item.first_offset:
        raise LedgerError(
            f"{item.path} has {len(rows)} records, its manifest states {item.end_offset - item.first_offset}"
        )
    return rows


async def delete_compacted_segments(
    store: Store, shard: int, topic_id: int, segments: Collection[int] | None = None
) -> int:
    """Delete the compacted records of ``segments`` of a topic (None: all of them); return how many objects were named.

    Call it for pruned segments and deleted topics once their removal is durable, so that they can
    no longer be granted. Manifests still name the objects; the next compaction omits them.
    Repeating the call is harmless and finishes what an error interrupted. A compaction that adds
    such records later deletes them itself (drain.compaction.published_ranges).

    Raises LedgerError or StoreUnavailableError (the store is unreachable; some objects may be deleted).
    """
    deleted = 0
    for chunks in await manifest_ranges(store, shard):
        for item in (await read_manifest(store, shard, chunks)).objects:
            if item.topic_id == topic_id and (segments is None or item.segment in segments):
                await store.delete(item.path)
                deleted += 1
    return deleted


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)
