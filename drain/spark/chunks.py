"""List the new chunks of a ledger, and read them if they are few and small.

Numbers continue without a gap after the last watermark, whose chunk must still exist: a result
ahead of its ledger belongs to another ledger. Who reads a chunk, this process or a worker of Spark
(drain.spark.object_reader), first compares its checksum and its header.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from drain.protocol import CountedLedger
from drain.spark.fact_source import FACTS
from drain.spark.object_reader import read_columns
from headgate.errors import ConfigError, LedgerError
from headgate.ledger.chunk import decode_header
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger, shard_folders
from headgate.ledger.paths import IDENTITY_PATH, chunk_folder, chunk_name, chunk_numbers, chunk_path
from headgate.storage.object_store import Store, open_store

CONCURRENT: Final = 16
"""Shards, or chunks of one shard, that are read at the same time: a store that answers after 40 ms would need ten
seconds for 64 shards, one after the other."""
MAX_READS: Final = 64
"""Of all shards together."""


ItemT = TypeVar("ItemT")
FoundT = TypeVar("FoundT")


async def in_groups(items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[FoundT]]) -> list[tuple[ItemT, FoundT]]:
    """Return each item with the result of ``work``, of which `CONCURRENT` are under way at the same time."""
    every = list(items)
    found: list[tuple[ItemT, FoundT]] = []
    for first in range(0, len(every), CONCURRENT):
        group = every[first : first + CONCURRENT]
        found += zip(group, await asyncio.gather(*map(work, group)), strict=True)
    return found


@dataclass(frozen=True, slots=True)
class SmallReads:
    """What this process reads itself, of all shards together. More is left to workers."""

    max_rows: int = 25_000
    """This process converts each row, and one task counts all of them, while workers share the objects. Measured with
    two cores: with 20 chunks of 500 or 1 000 rows a job of workers takes 1.6 to 1.9 times as long, with 2 500 rows each
    1.2 times, and with 5 chunks of 20 000 rows it is faster. A row takes some 100 bytes, in Python and in the JVM."""
    max_bytes: int = 64 * 1024 * 1024
    """Chunks are fetched whole."""
    max_chunks: int = 2000
    """Each takes 0.25 ms here, one after the other, and a round trip to a bucket."""


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """The new chunks of one shard."""

    shard: int
    paths: Sequence[str]
    """Relative to the ledger's URL."""
    at_ms: int
    """Time of the last one."""
    facts: pa.Table | None
    """All of their rows (`FACTS`); None: they are too many for this process."""


class MustRestartError(Exception):
    """What this process remembers is of no use any more, so it ends, and is started again.

    No HeadgateError: what handles the errors of one shard or topic must not handle this one.
    """


class LedgerReplacedError(MustRestartError):
    """Another ledger is stored at the URL."""


class LedgerChunks:
    def __init__(self, ledger_url: str, small: SmallReads = SmallReads()) -> None:
        """Open the ledger at ``ledger_url``; raises ConfigError for a URL that names no store."""
        self.store: Store = open_store(ledger_url)
        self.url = ledger_url
        self._small = small
        self._reads = asyncio.Semaphore(MAX_READS)
        self._ledger = CountedLedger(url=ledger_url)

    async def identify(self) -> CountedLedger:
        """Return the ledger that is stored at the URL now.

        Raises:
            LedgerReplacedError: it is another one than before. What was counted must not be merged with it.
            LedgerError: its id is unusable, or has disappeared.
            StoreUnavailableError: the store is unreachable.
        """
        url, before = self._ledger.url, self._ledger.ledger_id
        found = await read_ledger_id(self.store, url)
        if before and found is None:
            raise LedgerError(f"{url} has no object {IDENTITY_PATH} any more: mount the ledger with the id {before}")
        if before and found != before:
            raise LedgerReplacedError(f"{url} is another ledger now: its id was {before}, and is {found}")
        self._ledger = CountedLedger(found or "", url)
        return self._ledger

    async def shards(self) -> list[int]:
        """Return the shards that have a folder.

        Raises:
            ConfigError: there is none.
            StoreUnavailableError: the store is unreachable.
        """
        if not (found := await shard_folders(self.store)):
            raise ConfigError(f"no shard found in {self.url}: check the ledger's URL, or name the shards")
        return found

    async def newer_than(self, shard: int, watermark: int) -> range:
        """Return the numbers of the chunks after ``watermark``.

        Raises:
            LedgerError: a gap in the numbers, or no chunk ``watermark``.
            StoreUnavailableError: the store is unreachable.
        """
        first = max(1, watermark)
        numbers = chunk_numbers(await self.store.names(chunk_folder(shard), after=chunk_name(first - 1)))
        listed = set(numbers)
        end = numbers[-1] + 1 if numbers else first + (watermark > 0)
        for number in range(first, end):
            # A listing may leave out an object that is created meanwhile.
            if number in listed or await self.exists(shard, number):
                continue
            if number == watermark:
                raise LedgerError(f"{chunk_path(shard, number)} is counted but missing: is this another ledger?")
            following = min(each for each in numbers if each > number)
            raise LedgerError(f"{chunk_path(shard, number)} is missing, and {chunk_name(following)} exists: a gap")
        return range(watermark + 1, end)

    async def exists(self, shard: int, number: int) -> bool:
        """Return whether a chunk exists, with one request instead of a listing; raises StoreUnavailableError."""
        return await Ledger(self.store, shard).exists(number)

    async def read(self, shard: int, numbers: range, *, shards: int = 1) -> ChunkBatch:
        """Return the chunks ``numbers``, and their rows if they are few; ``shards`` are read at the same time.

        The last chunk shows whether they are: it is read in any case, for its time.

        Raises:
            LedgerError: a chunk that was read here is damaged, or its header does not match its name.
            StoreUnavailableError: the store is unreachable.
        """
        at_ms, last, size_bytes = await self._read(shard, numbers[-1])
        chunks, others, facts, limits = len(numbers) * shards, numbers[:-1], last, self._small
        small = chunks <= limits.max_chunks and chunks * size_bytes <= limits.max_bytes
        while (small := small and len(facts) * shards <= limits.max_rows) and others:
            found = await in_groups(others[:CONCURRENT], lambda number: self._read(shard, number))
            facts, others = pa.concat_tables([facts, *(table for _, (_, table, _) in found)]), others[CONCURRENT:]
        return ChunkBatch(shard, [chunk_path(shard, number) for number in numbers], at_ms, facts if small else None)

    async def _read(self, shard: int, number: int) -> tuple[int, pa.Table, int]:
        """Return the time of a chunk, its rows and its size."""
        async with self._reads:
            data = await self.store.read(chunk_path(shard, number))
        header = decode_header(data, shard=shard, number=number)
        table = read_columns(pq.ParquetFile(pa.BufferReader(data)), FACTS, {"shard": shard})
        complete = pa.concat_tables([FACTS.empty_table(), table], promote_options="permissive").cast(FACTS)
        return header.at_ms, complete, len(data)
