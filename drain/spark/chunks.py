"""Find the new chunks of a ledger, which workers of Spark read (drain.spark.object_reader).

Numbers continue without a gap after the last watermark, whose chunk must still exist: a result ahead of its ledger
belongs to another ledger. A process that lists a local folder locks it, and the leader creates its next chunk there. So
a process of low priority reads to a chunk that is known to exist, and lists only if it does not find that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from drain.protocol import CountedLedger
from headgate.errors import ConfigError, LedgerError
from headgate.ledger.chunk import ChunkHeader
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger, shard_folders
from headgate.ledger.objects import IDENTITY_PATH, chunk_folder, chunk_name, chunk_numbers, chunk_path
from headgate.storage.object_store import Store, open_store

CONCURRENT: Final = 16
"""Shards that are listed at the same time: a store that answers after 40 ms would need ten seconds for 64 shards, one
after the other."""

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
    def __init__(self, ledger_url: str) -> None:
        """Open the ledger at ``ledger_url``; raises ConfigError for a URL that names no store."""
        self.store: Store = open_store(ledger_url)
        self.url = ledger_url
        self._ledger = CountedLedger(url=ledger_url)

    async def identify(self) -> CountedLedger:
        """Return the ledger that is stored at the URL now.

        Raises LedgerReplacedError (another one than before: what was counted must not be merged with it), LedgerError
        (its id is unusable, or has disappeared) or StoreUnavailableError.
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
        """Return the shards that have a folder; raises ConfigError (there is none) or StoreUnavailableError."""
        if not (found := await shard_folders(self.store)):
            raise ConfigError(f"no shard found in {self.url}: check the ledger's URL, or name the shards")
        return found

    async def newer_than(self, shard: int, watermark: int, up_to: int = 0) -> range:
        """Return the numbers of the chunks after ``watermark``, up to ``up_to``; 0: to the end.

        Raises StoreUnavailableError, or LedgerError if a listing shows a gap in the numbers, or no chunk ``watermark``.
        """
        if up_to and await self.exists(shard, max(watermark, up_to)):
            return range(watermark + 1, up_to + 1)
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
        return range(watermark + 1, min(end, up_to + 1) if up_to else end)

    async def end_after(self, shard: int, number: int) -> int:
        """Return the last chunk if ``number`` exists, and no later one is missing; raises StoreUnavailableError."""
        step = 1
        while await self.exists(shard, number + step):
            number, step = number + step, 2 * step
        while step := step // 2:
            if await self.exists(shard, number + step):
                number += step
        return number

    async def header(self, shard: int, number: int) -> ChunkHeader:
        """Return the header of a chunk; raises ObjectMissingError, LedgerError or StoreUnavailableError."""
        return await Ledger(self.store, shard).header(number)

    async def exists(self, shard: int, number: int) -> bool:
        """Return whether a chunk exists, with one request instead of a listing; raises StoreUnavailableError."""
        return await Ledger(self.store, shard).exists(number)
