"""A shard's numbered chunks: the only source of truth.

Numbers begin at 1 and have no holes. Appending is put-if-absent under the next number, so it is the commit and the
fence at once: two leaders can never both write number 43. This module knows names and numbers; what the entries mean
is for controller.state, and what a failed append obliges the leader to do is for controller.leadership.
"""

from __future__ import annotations

import pyarrow as pa

from headgate import chunk
from headgate.errors import ChunkError, ObjectMissingError
from headgate.store import Store

_SUFFIX = ".parquet"


def chunk_folder(shard: int) -> str:
    """Return the folder of a shard's chunks, relative to the ledger's URL."""
    return f"ledger/shard={shard:04d}"


def chunk_name(number: int) -> str:
    """Return the object name of chunk ``number``; names sort as numbers do."""
    return f"{number:012d}{_SUFFIX}"


class Ledger:
    """The chunks of one shard in one store."""

    def __init__(self, store: Store, shard: int) -> None:
        self.store = store
        self.shard = shard

    async def append(self, number: int, data: bytes) -> None:
        """Create chunk ``number``; raises what `Store.create` raises."""
        await self.store.create(self._path(number), data)

    async def exists(self, number: int) -> bool:
        """Tell whether chunk ``number`` has been created; raises StoreUnavailableError."""
        try:
            await self.store.read(self._path(number))
        except ObjectMissingError:
            return False
        return True

    async def newest(self) -> int:
        """Return the highest number, 0 for an empty ledger.

        Raises:
            ChunkError: an object that is not a chunk, or a hole in the numbers.
            StoreUnavailableError: the store is out of reach.

        """
        names = await self.store.names(chunk_folder(self.shard))
        for expected, name in enumerate(names, start=1):
            if name != chunk_name(expected):
                raise ChunkError(
                    f"{chunk_folder(self.shard)}/{name}: expected {chunk_name(expected)} here; "
                    "the ledger has a hole or a foreign object",
                )
        return len(names)

    async def read(self, number: int) -> chunk.Chunk:
        """Return the entries of chunk ``number``; ObjectMissingError, StoreUnavailableError or ChunkError."""
        return chunk.decode(await self.store.read(self._path(number)), shard=self.shard, number=number)

    async def read_or_none(self, number: int) -> chunk.Chunk | None:
        """Return chunk ``number``, or None if it has not been created."""
        try:
            return await self.read(number)
        except ObjectMissingError:
            return None

    async def read_records(self, number: int) -> pa.Table:
        """Return the records of chunk ``number`` (headgate.chunk.RECORD_COLUMNS); raises like `read`."""
        return chunk.decode_records(await self.store.read(self._path(number)), shard=self.shard, number=number)

    def _path(self, number: int) -> str:
        return f"{chunk_folder(self.shard)}/{chunk_name(number)}"
