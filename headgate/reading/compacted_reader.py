"""Read records of one topic from rolled objects: where they stand, and in slices that are small.

A reader asks with the offset it wants next and the chunk it would read next, and gets the objects that hold the
segment's records from there on, and the chunk behind which it goes on in chunks. Manifests never change, so each is
read once; which there are is looked up again by whoever misses something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import ChunkError
from headgate.ledger.chunk_ranges import ChunkRange, compacted_through, ranges_to_read
from headgate.ledger.compacted import CompactedObject, Manifest, manifest_ranges, read_manifest
from headgate.storage.object_store import Store

LISTING_TTL_SECONDS: Final = 5.0
"""How long a listing serves: readers of many segments begin at once."""
SLICE_MAX_RECORDS: Final = 1000
_COLUMNS: Final = ["offset", "timestamp_ms", "key", "value"]


class Rows(NamedTuple):
    """Records of one segment, column by column, in the order of their offsets."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes]
    values: list[bytes]


class CompactedSlice(NamedTuple):
    """What is rolled up of a segment from some place on."""

    objects: list[CompactedObject]
    """In order; the first may begin before that place."""
    last: int
    """Everything up to this chunk is in them; 0: nothing is rolled up."""


class CompactedRecords:
    """The rolled objects of one topic."""

    def __init__(self, store: Store, shard: int, topic_id: int) -> None:
        self.opened = 0
        """Objects that were opened: manifests and records."""
        self._store = store
        self._shard = shard
        self._topic_id = topic_id
        self._listed_at = float("-inf")
        self._covering: list[ChunkRange] = []
        self._manifests: dict[ChunkRange, Manifest] = {}
        self._lock = asyncio.Lock()

    async def locate(self, segment: int, offset: int, chunk: int, *, fresh: bool = False) -> CompactedSlice:
        """Return what is rolled up from ``offset`` on, for whoever would go on in ``chunk``.

        With ``fresh`` the manifests are looked up now, whenever that was done last. Records below ``chunk`` are not
        looked for: ``offset`` stands in it or later.

        Raises:
            ChunkError: a manifest is damaged.
            ObjectMissingError: a manifest was replaced while we read; ask again, with ``fresh``.
            StoreUnavailableError: the store is out of reach.

        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if fresh or now - self._listed_at > LISTING_TTL_SECONDS:
                self._covering = ranges_to_read(await manifest_ranges(self._store, self._shard))
                self._listed_at = now
                self._manifests = {each: known for each, known in self._manifests.items() if each in self._covering}
            found: list[CompactedObject] = []
            for each in self._covering:
                if each.last < chunk:
                    continue
                if each not in self._manifests:
                    self.opened += 1
                    self._manifests[each] = await read_manifest(self._store, self._shard, each)
                found += [
                    item
                    for item in self._manifests[each].objects
                    if item.topic_id == self._topic_id and item.segment == segment and item.end_offset > offset
                ]
            return CompactedSlice(found, compacted_through(self._covering))

    async def slices(self, item: CompactedObject, offset: int) -> AsyncIterator[Rows]:
        """Yield the records of one object from ``offset`` on, some at a time.

        Raises:
            ChunkError: the object is damaged, or does not hold what its manifest says.
            ObjectMissingError: it was replaced, or its segment is gone.
            StoreUnavailableError: the store is out of reach.

        """
        self.opened += 1
        table = await asyncio.to_thread(_decoded, await self._store.read(item.path), item)
        for at in range(max(0, offset - item.first_offset), len(table), SLICE_MAX_RECORDS):
            part = table.slice(at, SLICE_MAX_RECORDS)
            yield Rows(*(part.column(name).to_pylist() for name in _COLUMNS))


def _decoded(data: bytes, item: CompactedObject) -> pa.Table:
    try:
        table = pq.read_table(pa.BufferReader(data), columns=_COLUMNS, partitioning=None, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ChunkError(f"{item.path} is not a readable rolled object ({len(data)} bytes): {error}") from error
    if table.column_names != _COLUMNS or len(table) != item.end_offset - item.first_offset:
        raise ChunkError(
            f"{item.path} holds {len(table)} records, its manifest says {item.end_offset - item.first_offset}"
        )
    return table
