"""List and check the new chunks of a ledger.

Numbers continue without a gap after the last watermark, whose chunk must still exist: a result
ahead of its ledger belongs to another ledger. Checksums and headers are checked before counting,
because Spark checks no checksums, and fills the missing columns of a foreign file with nulls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from drain.protocol import CountedLedger
from drain.spark.fact_source import SMALL_READ_MAX_ROWS, FactSource, fact_source
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


class MustRestartError(Exception):
    """What this process remembers is of no use any more, so it ends, and is started again.

    No HeadgateError: what handles the errors of one shard or topic must not handle this one.
    """


class LedgerReplacedError(MustRestartError):
    """Another ledger is stored at the URL."""


class LedgerChunks:
    def __init__(self, ledger_url: str, *, small_read_max_rows: int = SMALL_READ_MAX_ROWS) -> None:
        """Open the ledger at ``ledger_url``; raises ConfigError for a URL that names no store.

        ``small_read_max_rows``: 0 leaves every chunk to Spark.
        """
        self.store: Store = open_store(ledger_url)
        self.source: FactSource = fact_source(ledger_url, small_read_max_rows=small_read_max_rows)
        """How Spark reads the chunks."""
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
            raise ConfigError(f"no shard found in {self.source.base}: check the ledger's URL, or name the shards")
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

    async def check(self, shard: int, numbers: Sequence[int]) -> tuple[int, int | None]:
        """Check whole chunks; return ``at_ms`` of the last one, and their total number of rows.

        If the fact source checks chunks itself, only the last one is fetched here, and the number
        of rows is None.

        Raises:
            LedgerError: a chunk is damaged, or its header does not match its name.
        """
        if self.source.checks_objects:
            numbers = numbers[-1:]
        checked = [found for _, found in await in_groups(numbers, lambda number: self._check(shard, number))]
        return checked[-1][0], None if self.source.checks_objects else sum(rows for _, rows in checked)

    async def _check(self, shard: int, number: int) -> tuple[int, int]:
        async with self._reads:
            data = await self.store.read(chunk_path(shard, number))
        header = decode_header(data, shard=shard, number=number)
        return header.at_ms, pq.read_metadata(pa.BufferReader(data)).num_rows
