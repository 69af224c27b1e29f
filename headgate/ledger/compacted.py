"""Rolled objects: what old chunks were rewritten into, and the manifests that make them visible.

A manifest speaks for a range of chunks. It names, for each segment, the objects that hold the segment's records of that
range, in the order of their offsets, and one object with what all other facts of the range come to. It is created
with put-if-absent once everything it names is in place: a range is rolled up as a whole or not at all, and of two runs
over the same range one is taken. What no manifest names does not count, and is swept away.

Ranges are rewritten into longer ones, so that their number stays small: FANOUT manifests of one level, side by side,
become one of the next. Readers take the ranges that `cover` returns, and go on with chunks behind them.

This module knows names and forms. Who writes manifests is drain.compaction.job; who reads records is
headgate.reading.compacted_reader.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import msgspec

from headgate.errors import ChunkError
from headgate.ledger.chunk_ranges import ChunkRange
from headgate.ledger.format_version import check_json_format
from headgate.storage.object_store import Store

FORMAT: Final = 2
_NAME: Final = re.compile(r"(\d{12})-(\d{12})\.json")


class CompactedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of records of one segment, without holes, sorted by offset."""

    path: str
    """Relative to the ledger's URL."""
    topic_id: int
    segment: int
    first_offset: int
    end_offset: int
    size_bytes: int
    """Bytes of its keys and values."""
    first_at_ms: int
    """When its first record was stored: its chunk's time."""
    last_at_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for chunks ``first`` to ``last`` of a shard."""

    format: int = FORMAT
    shard: int
    first: int
    last: int
    level: int
    """0: written from chunks; otherwise from FANOUT manifests of the level below."""
    written_at_ms: int
    """Clock of whoever wrote it, milliseconds since 1970."""
    last_at_ms: int
    """Time of the last chunk."""
    facts: str
    """Path of the object that holds what the facts of these chunks come to."""
    objects: list[CompactedObject]
    """By topic, segment and offset."""

    @property
    def range(self) -> ChunkRange:
        """The chunks that it speaks for."""
        return ChunkRange(self.first, self.last)


def manifest_folder(shard: int) -> str:
    """Return the folder of a shard's manifests, relative to the ledger's URL."""
    return f"manifests/shard={shard:04d}"


def manifest_path(shard: int, chunks: ChunkRange) -> str:
    """Return the object name of the manifest of ``chunks``."""
    return f"{manifest_folder(shard)}/{chunks.first:012d}-{chunks.last:012d}.json"


def compacted_folder(shard: int) -> str:
    """Return the folder of a shard's rolled objects, relative to the ledger's URL; one folder a run in it."""
    return f"compacted/shard={shard:04d}"


async def manifest_ranges(store: Store, shard: int) -> list[ChunkRange]:
    """Return the ranges of all manifests that are there, in order; raises StoreUnavailableError."""
    names = await store.names(manifest_folder(shard))
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return [ChunkRange(int(match[1]), int(match[2])) for match in matches]


async def read_manifest(store: Store, shard: int, chunks: ChunkRange) -> Manifest:
    """Return one manifest.

    Raises:
        LedgerFormatError: it has another format.
        ChunkError: it is damaged, or belongs to another shard or range.
        ObjectMissingError: a wider one took its place, or there never was one.
        StoreUnavailableError: the store is out of reach.

    """
    path = manifest_path(shard, chunks)
    data = await store.read(path)
    try:
        check_json_format(path, data, FORMAT)
        manifest = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise ChunkError(f"{path} is not a manifest, or damaged ({len(data)} bytes): {error}") from error
    if (manifest.shard, manifest.range) != (shard, chunks):
        raise ChunkError(f"{path} says that it is of chunks {manifest.range} of shard {manifest.shard}")
    return manifest


async def create_manifest(store: Store, manifest: Manifest) -> None:
    """Make a range visible; raises what `Store.create` raises. Everything it names must be durable."""
    await store.create(manifest_path(manifest.shard, manifest.range), _ENCODER.encode(manifest))


async def delete_compacted_segments(
    store: Store,
    shard: int,
    topic_id: int,
    segments: Collection[int] | None = None,
) -> int:
    """Delete the rolled records of ``segments`` of a topic (None: of all), and return how many objects were named.

    For segments that were pruned and topics that were deleted, once that is durable: nobody may be granted them any
    more. Manifests still name the objects, and the next roll-up leaves them out. Doing it again is harmless, and is
    the way to finish what an error cut short; records of theirs that a roll-up brings in later are swept by it.

    Raises:
        ChunkError: a manifest is damaged.
        StoreUnavailableError: the store is out of reach; some may be deleted.

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
