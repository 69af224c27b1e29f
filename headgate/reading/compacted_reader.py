"""Locate and read the records of one topic in compacted objects.

Manifests never change, so each is read once. Their list is read again when a reader misses a chunk
or an object.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from headgate.ledger.chunk_ranges import ChunkRange, compacted_through, ranges_to_read
from headgate.ledger.compacted import CompactedObject, Manifest, decode_compacted, manifest_ranges, read_manifest
from headgate.ledger.parquet_columns import Columns
from headgate.reading.stored_rows import SLICE_MAX_RECORDS, Rows
from headgate.storage.object_store import Store

LISTING_TTL_SECONDS: Final = 5.0
"""How long a listing is reused: readers of many segments start at the same time."""


async def read_object(store: Store, item: CompactedObject) -> Columns:
    """Return the records of one object.

    Raises:
        LedgerError: the object is damaged, or its records are not those that its manifest states.
        ObjectMissingError: it was replaced, or its segment was removed.
        StoreUnavailableError: the store is unreachable.
    """
    return await asyncio.to_thread(decode_compacted, await store.read(item.path), item)


class CompactedSlice(NamedTuple):
    objects: list[CompactedObject]
    """In order; the first may begin before that offset."""
    last: int
    """The objects include everything up to this chunk; 0: nothing is compacted."""


class CompactedRecords:
    def __init__(self, store: Store, shard: int, topic_id: int) -> None:
        self.opened = 0
        self._store = store
        self._shard = shard
        self._topic_id = topic_id
        self._listed_at = float("-inf")
        self._ranges: list[ChunkRange] = []
        self._manifests: dict[ChunkRange, Manifest] = {}
        self._lock = asyncio.Lock()

    async def locate(self, segment: int, offset: int, chunk: int, *, fresh: bool = False) -> CompactedSlice:
        """Return the compacted records from ``offset`` on, for a reader whose next chunk is ``chunk``.

        With ``fresh`` the manifests are listed now, whatever the age of the last listing. Ranges
        before ``chunk`` are skipped: the record at ``offset`` is in it or in a later chunk.

        Raises LedgerError, ObjectMissingError (a manifest was replaced meanwhile; call again with ``fresh``) or
        StoreUnavailableError.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if fresh or now - self._listed_at > LISTING_TTL_SECONDS:
                self._ranges = ranges_to_read(await manifest_ranges(self._store, self._shard))
                self._listed_at = now
                self._manifests = {chunks: known for chunks, known in self._manifests.items() if chunks in self._ranges}
            objects: list[CompactedObject] = []
            for chunks in self._ranges:
                if chunks.last < chunk:
                    continue
                if chunks not in self._manifests:
                    self.opened += 1
                    self._manifests[chunks] = await read_manifest(self._store, self._shard, chunks)
                objects += [
                    item
                    for item in self._manifests[chunks].objects
                    if item.topic_id == self._topic_id and item.segment == segment and item.end_offset > offset
                ]
            return CompactedSlice(objects, compacted_through(self._ranges))

    async def slices(self, item: CompactedObject, offset: int) -> AsyncGenerator[Rows]:
        """Yield the records of one object from ``offset`` on, at most SLICE_MAX_RECORDS at a time. Close it.

        Raises like `read_object`.
        """
        self.opened += 1
        records = await read_object(self._store, item)
        for at in range(max(0, offset - item.first_offset), len(records), SLICE_MAX_RECORDS):
            yield Rows.of(records.slice(at, SLICE_MAX_RECORDS))
