"""The numbered chunks of a shard: the only source of truth.

Numbers begin at 1 and have no gaps. Appending is put-if-absent under the next number: the commit
and the fence (`Ledger.append`). Chunks may be deleted, oldest first, once a snapshot includes them, except the first
of every term (docs/decisions/fencing-after-trim.md). The rest end in a run without gaps; if it
begins after the newest snapshot, chunks were lost and not trimmed.

An object outside the folders of the shard says that it has had a term, before that term accepts anything. So a shard
whose objects are all gone differs from one that no daemon has led.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from headgate.errors import ForeignObjectError, LedgerError, ObjectMissingError
from headgate.ledger import checksum, chunk, objects
from headgate.ledger.parquet_columns import Columns
from headgate.storage.object_store import Store, create_if_absent, create_own

K = TypeVar("K", int, str)
T = TypeVar("T")

NAMES_PER_TURN: Final = 5000
"""How many names of a listing are read in one turn of the event loop: about 3 ms. Hours of chunks may be listed."""


def run_start(numbers: Sequence[int]) -> int:
    """Return the first number of the run without gaps at the end of ``numbers``, which rise."""
    behind_last = numbers[-1] - len(numbers) + 1
    # Number minus index rises at each gap, and is that of the last number from the run's first on.
    return numbers[bisect_left(range(len(numbers)), behind_last, key=lambda index: numbers[index] - index)]


async def if_exists(read: Callable[[K], Awaitable[T]], which: K) -> T | None:
    """Return what ``read``, e.g. `Ledger.header`, returns for a chunk or path; None if that does not exist."""
    try:
        return await read(which)
    except ObjectMissingError:
        return None


async def shard_folders(store: Store) -> list[int]:
    """Return the shards of which the store has chunks, rising; raises StoreUnavailableError."""
    names = await store.folders(objects.CHUNKS_FOLDER)
    numbers = [name.removeprefix("shard=") for name in names if name.startswith("shard=")]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())


class Ledger:
    """The chunks of one shard in one store. Other objects among them are reported and skipped."""

    def __init__(self, store: Store, shard: int, on_foreign: Callable[[Sequence[str]], None] | None = None) -> None:
        """``on_foreign`` gets the names of all foreign objects when a listing shows that they changed."""
        self.store = store
        self.shard = shard
        self._folder = objects.chunk_folder(shard)
        self._on_foreign = on_foreign
        self._foreign: set[str] = set()

    async def append(self, number: int, data: bytes) -> None:
        """Create chunk ``number``; raises what `Store.create` raises.

        **Own chunks.** A chunk with equal bytes was written by this call (`create_own`), so the commit has succeeded:

        1. A term chunk contains a random id, drawn for one attempt to start a term. Only that attempt can write it.
        2. Every chunk contains the id of its term. A leader has one chunk in flight, so it writes other bytes only
           under other numbers.
        """
        await create_own(self.store, self._path(number), data)

    async def make_durable(self) -> None:
        """Return once every chunk is durable that was read or listed so far; raises StoreUnavailableError."""
        await self.store.make_durable(objects.chunk_folder(self.shard))

    async def name_begun(self) -> None:
        """Return once the store says that this shard has had a term. Raises StoreUnavailableError."""
        await create_if_absent(self.store, objects.begun_path(self.shard), checksum.seal_json(b'{"format":1}'))

    async def require_new(self) -> None:
        """Raise LedgerError if a ledger without chunks has had a term: its objects are gone."""
        begun = objects.begun_path(self.shard)
        try:
            await self.store.read(begun)
        except ObjectMissingError:
            return
        if not await self.numbers():  # Its first term may have begun after the first listing.
            raise LedgerError(
                f"{objects.chunk_folder(self.shard)}: there is no chunk, and {begun} says that this shard has had one: "
                "its records are gone. Put back its objects, from a copy if there is one. To begin the shard again "
                f"without its topics and records, delete {begun}"
            )

    async def exists(self, number: int) -> bool:
        """Return whether an object has the name of chunk ``number``; raises StoreUnavailableError."""
        try:
            with suppress(ForeignObjectError):  # It has the name.
                await self.store.read(self._path(number))
        except ObjectMissingError:
            return False
        return True

    async def newest(self) -> int:
        """Return the highest number, 0 for an empty ledger.

        Raises LedgerError (a gap in the numbers that no snapshot covers, or a snapshot ahead of all chunks) or
        StoreUnavailableError.
        """
        snapshot, numbers = await self.end()
        folder = objects.chunk_folder(self.shard)
        if not numbers and snapshot:
            raise LedgerError(f"{folder}: chunk {snapshot} is missing, and a snapshot includes it; the end is lost")
        first = run_start(numbers) if numbers else 1
        # A listing may leave out an object that is created meanwhile.
        if first > snapshot + 1 and not await self.exists(first - 1):
            raise LedgerError(
                f"{folder}: chunk {first - 1} is missing, and no snapshot covers it; the ledger has a gap, or its "
                "beginning was deleted by hand"
            )
        return max(numbers, default=0)

    async def end(self) -> tuple[int, list[int]]:
        """Return the number of the newest snapshot, 0 if there is none, and those of the chunks from it on, rising.

        However many chunks are kept, a store lists few of them. Raises StoreUnavailableError.
        """
        snapshot = max(await self.snapshots(), default=0)
        return snapshot, await self.numbers(after=max(snapshot - 1, 0))

    async def term_id_at(self, number: int) -> int | None:
        """Return the id of the term that wrote chunk ``number``, which may be trimmed; None: it never existed.

        The first chunk of each term is kept, and each chunk names the term of the one before. Raises like `header`.
        """
        if (found := await if_exists(self.header, number)) is not None:
            return found.term_id
        later = await self.numbers(after=number)
        return (await self.header(later[0])).previous_term_id if later else None

    async def numbers(self, after: int = 0) -> list[int]:
        names = await self.store.names(objects.chunk_folder(self.shard), after=objects.chunk_name(after))
        numbers: list[int] = []
        for begin in range(0, len(names), NAMES_PER_TURN):
            if begin:
                await asyncio.sleep(0)
            numbers += objects.chunk_numbers(names[begin : begin + NAMES_PER_TURN])
        if len(numbers) < len(names) or self._foreign:
            self._report_foreign({name for name in names if objects.chunk_number(name) is None}, complete=not after)
        return numbers

    async def snapshots(self) -> list[int]:
        names = await self.store.names(objects.snapshot_folder(self.shard))
        return [number for name in names if (number := objects.snapshot_number(name)) is not None]

    async def delete(self, number: int) -> None:
        await self.store.delete(self._path(number))

    async def read(self, number: int) -> chunk.Chunk:
        """Return the entries of chunk ``number``; raises ObjectMissingError, StoreUnavailableError or LedgerError."""
        return chunk.decode(await self.store.read(self._path(number)), shard=self.shard, number=number)

    async def header(self, number: int) -> chunk.ChunkHeader:
        return chunk.decode_header(await self.store.read(self._path(number)), shard=self.shard, number=number)

    async def open_records(self, number: int) -> tuple[chunk.ChunkHeader, Columns]:
        return chunk.open_records(await self.store.read(self._path(number)), shard=self.shard, number=number)

    async def stored_records(self, number: int) -> tuple[chunk.ChunkHeader, chunk.RecordColumns | Columns]:
        return chunk.stored_records(await self.store.read(self._path(number)), shard=self.shard, number=number)

    async def read_records(self, number: int) -> tuple[chunk.ChunkHeader, chunk.RecordColumns]:
        return chunk.decode_records(await self.store.read(self._path(number)), shard=self.shard, number=number)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{objects.chunk_name(number)}"

    def _report_foreign(self, listed: set[str], *, complete: bool) -> None:
        """Remember the names of foreign objects. A listing that is not complete may not show those found before."""
        found = listed if complete else listed | self._foreign
        if found != self._foreign:
            self._foreign = found
            if self._on_foreign is not None:
                self._on_foreign(sorted(found))
