"""The chunks of one shard, as its readers share them: the newest one, each loaded once, and reading on at the end."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from headgate.backoff import Backoff
from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger import chunk
from headgate.ledger.ledger import Ledger
from headgate.ledger.parquet_columns import Columns
from headgate.model.headers import header_bytes
from headgate.model.positions import KnownHistory
from headgate.process.background import end_tasks
from headgate.reading.stored_rows import RowRuns, Rows, rows_of, runs_of_topic

POLL_SECONDS: Final = 1.0
"""How often a reader at the tail polls, and how long it waits for an unreachable store."""
POLLS: Final = Backoff(first_seconds=POLL_SECONDS, longest_seconds=300.0, jitter=0)
"""Pause before each poll that follows others without a result. On a bucket each poll is a request that is billed."""
SILENCE_SECONDS: Final = 30.0
"""A pause ends after this time without a leader that states the head."""
CACHE_BYTES: Final = 64 * 1024 * 1024
CHUNK_OVERHEAD_BYTES: Final = 256
RECORD_OVERHEAD_BYTES: Final = 160
"""What Python's objects of a record take beside its key and value."""
HEADER_OVERHEAD_BYTES: Final = 180
"""What those of a header take beside its name and value."""
MAX_DEPTH: Final = 16
MAX_LOADS: Final = 32
PAUSE_LOADS: Final = 64
NEAR: Final = 16
"""How many chunks behind the end a reader still follows it, and how many are kept that were announced."""
LONG_RUN: Final = 32
"""Mean length of a run of records of one segment from which on values are made run by run, when they are read."""


class Head:
    """The newest chunk of a shard that was reported as durable, and waiting for a newer one."""

    def __init__(self, history: KnownHistory | None = None) -> None:
        self.number = 0
        self.history = KnownHistory() if history is None else history
        """What is known of the chunks that were read, and of those that a leader's replies stated."""
        self.statements = 0
        """How often a leader has stated a head, newer or not: silence means that it is gone, or its words are lost."""
        self._advanced = asyncio.Event()

    def advance(self, number: int) -> None:
        self.statements += 1
        if number > self.number:
            self.number = number
            self._advanced.set()
            self._advanced = asyncio.Event()

    def retract(self, number: int) -> None:
        """Record that chunk ``number`` + 1 does not exist. Any program may have forged the announcement of a head."""
        self.number = min(self.number, number)

    async def wait_for(self, number: int, timeout_seconds: float) -> None:
        """Wait until chunk ``number`` is known to be durable, at most ``timeout_seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self.number < number:
                    await self._advanced.wait()


class Tail:
    """Reads on for the readers of one `ChunkCache` that are at the end of the shard.

    Each chunk is looked at once, and wakes the readers whose segments have records in it. So its cost does not grow
    with the segments that a consumer holds.

    An announcement of a new head may be lost, and a leader can fail before it announces what it wrote. So the next
    chunk is looked for a second after the last one, and then ever more seldom: replies to heartbeats state the head as
    well, and their absence ends a pause. A chunk that was not announced may not be durable yet, although it can be
    read, so it is made durable first.
    """

    def __init__(self, rows: Callable[[int, int], Awaitable[Any]], make_durable: Callable[[], Awaitable[None]]) -> None:
        """``rows``: `ChunkCache.rows`, for segment → rows, and the ids of terms."""
        self.number = 0
        """The next chunk to look at."""
        self._rows = rows
        self._make_durable = make_durable
        self._waiting: dict[int | None, dict[asyncio.Future[int], float]] = {}
        """Segment → its readers → from which loop time on a poll without a result wakes them."""
        self._task: asyncio.Task[None] | None = None

    def join(self, head: Head, segment: int | None, number: int, wake_at: float) -> asyncio.Future[int]:
        """Return what wakes a reader of ``segment``, whose next chunk is ``number``: its next one then.

        It is woken by each chunk if ``segment`` is None, by one that cannot be read, and by a poll that finds nothing
        at loop time ``wake_at`` or later. An unreachable store is polled on. The future raises LedgerError: a chunk is
        damaged.
        """
        self.number = min(self.number, number) if self._waiting else number
        woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(segment, {})[woken] = wake_at
        woken.add_done_callback(partial(self._leave, segment))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(head), name="read-tail")
        return woken

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _leave(self, segment: int | None, woken: asyncio.Future[int]) -> None:
        del self._waiting[segment][woken]
        if not self._waiting[segment]:
            del self._waiting[segment]

    async def _run(self, head: Head) -> None:
        polls = 0
        try:
            while self._waiting:
                if self.number > (known := head.number):
                    await pause(head, known, POLLS.bound_seconds(polls))
                    polls = polls + 1 if head.number == known else 0
                if self._waiting and await self._look(head):
                    polls = 0
        except Exception as error:  # noqa: BLE001 - ends the readers, which raise it
            for woken in self._asleep():
                woken.set_exception(error)

    def _asleep(self, until: float = math.inf) -> list[asyncio.Future[int]]:
        """Return what wakes those that wait, up to loop time ``until``."""
        everyone = (each for readers in self._waiting.values() for each in readers.items())
        return [woken for woken, wake_at in everyone if wake_at <= until and not woken.done()]

    async def _look(self, head: Head) -> bool:
        """Look at the next chunk, and wake its readers; return whether it could be read."""
        number = self.number
        try:
            rows = await self._rows(number, head.number)
            if number > head.number:
                await self._make_durable()
                head.advance(number)
        except (ObjectMissingError, StoreUnavailableError) as error:
            announced = number <= head.number
            if announced or isinstance(error, ObjectMissingError):
                for woken in self._asleep(math.inf if announced else asyncio.get_running_loop().time()):
                    woken.set_result(number)
            return False
        head.history.add(number, rows.term_id, rows.previous_term_id)
        if self.number == number:  # Otherwise a reader has joined that needs an earlier one.
            self.number += 1
            for woken in [each for segment in (None, *rows) for each in self._waiting.get(segment, ())]:
                if not woken.done():
                    woken.set_result(number)
        return True


async def pause(head: Head, known: int, seconds: float) -> None:
    """Wait until a head after ``known`` is stated, for so long, or until nothing was stated for `SILENCE_SECONDS`."""
    until, heard = asyncio.get_running_loop().time() + seconds, -1
    while head.number == known and heard != head.statements:
        if (left := until - asyncio.get_running_loop().time()) <= 0:
            return
        heard = head.statements
        await head.wait_for(known + 1, min(left, SILENCE_SECONDS))


class ChunkRows(dict[int, Rows | RowRuns]):
    """Segment → its rows of one chunk; and the ids of the terms that the chunk names."""

    def __init__(self, rows: Mapping[int, Rows | RowRuns], header: chunk.ChunkHeader) -> None:
        super().__init__(rows)
        self.term_id = header.term_id
        self.previous_term_id = header.previous_term_id


class ChunkCache:
    """Chunks that the readers of a topic share: each is loaded and decoded once, and some ahead of their turn.

    Readers of one topic follow each other. The cache is bounded in bytes: what was used longest ago is dropped first.

    A store that answers after 40 ms would serve 25 chunks per second, one after the other. So chunks that exist are
    loaded ahead: one more each time such a chunk was used, up to `MAX_DEPTH`. Once one was dropped before it was used,
    because there are too many readers at different places or the chunks are too large, none is for the next
    `PAUSE_LOADS` loads. While `MAX_LOADS` chunks are loaded, no more are loaded ahead.
    """

    def __init__(self, ledger: Ledger, topic_id: int, budget_bytes: int = CACHE_BYTES) -> None:
        self.loads = 0
        self.tail = Tail(self.rows, ledger.make_durable)
        self._ledger = ledger
        self._topic_id = topic_id
        self._budget_bytes = budget_bytes
        self._bytes = 0
        self._chunks: OrderedDict[int, tuple[int, ChunkRows]] = OrderedDict()
        self._offered: dict[int, bytes] = {}
        """Objects of chunks that were announced and not read yet."""
        self._loading: dict[int, asyncio.Task[ChunkRows]] = {}
        self._ahead: set[int] = set()
        """Chunks that were loaded ahead, and not requested yet."""
        self._depth = 1
        self._paused_until = 0
        """The number of loads at which chunks are loaded ahead again."""

    async def rows(self, number: int, newest: int) -> ChunkRows:
        """Return segment → rows of chunk ``number``; raises what `Ledger.read` raises.

        ``newest``: the last chunk that is known to exist; chunks up to it are loaded ahead.
        """
        if number in self._ahead:
            self._ahead.discard(number)
            self._depth = min(MAX_DEPTH, self._depth + 1)
        if number not in self._loading:
            self._keep_offered(number)  # Here, because a task would take three turns of the loop.
        loading = None if number in self._chunks else self._load_once(number)
        self._load_ahead(number, newest)
        if loading is not None:
            return await asyncio.shield(loading)  # Cancelling one reader must not cancel the load for the others.
        self._chunks.move_to_end(number)
        return self._chunks[number][1]

    def offer(self, number: int, data: bytes) -> None:
        """Keep the object of chunk ``number`` until it is read, if that is soon: the store need not be asked then."""
        first = self.tail.number
        self._offered = {each: kept for each, kept in self._offered.items() if each >= first}
        if first <= number < first + NEAR and number not in self._chunks and number not in self._loading:
            self._offered[number] = data

    async def close(self) -> None:
        self.tail.close()
        await end_tasks(*self._loading.values())
        self._chunks.clear()

    def _load_ahead(self, number: int, newest: int) -> None:
        """Begin to load the chunks after ``number``, as far as they are missing."""
        if self.loads < self._paused_until:
            return
        for ahead in range(number + 1, min(newest, number + self._depth) + 1):
            if len(self._loading) >= MAX_LOADS:
                return
            if ahead not in self._chunks and ahead not in self._loading:
                self._load_once(ahead)
                self._ahead.add(ahead)

    def _load_once(self, number: int) -> asyncio.Task[ChunkRows]:
        if (task := self._loading.get(number)) is None:
            task = asyncio.get_running_loop().create_task(self._load(number), name=f"read-chunk-{number}")
            self._loading[number] = task
            task.add_done_callback(lambda done: self._loaded(number, done))
        return task

    def _loaded(self, number: int, task: asyncio.Task[ChunkRows]) -> None:
        del self._loading[number]
        if not task.cancelled() and task.exception() is not None:
            # Retrieved here in case no reader waits. One that needs the chunk loads it again.
            self._ahead.discard(number)

    async def _load(self, number: int) -> ChunkRows:
        self.loads += 1
        if not self._keep_offered(number):
            self._keep(number, *await self._ledger.stored_records(number))
        return self._chunks[number][1]

    def _keep_offered(self, number: int) -> bool:
        """Keep the chunk that was offered as ``number``. Any program can offer an authentic one that has another."""
        data = self._offered.pop(number, None)
        with suppress(LedgerError):
            if data is not None:
                self._keep(number, *chunk.stored_records(data, shard=self._ledger.shard, number=number))
                return True
        return False

    def _keep(self, number: int, header: chunk.ChunkHeader, records: chunk.RecordColumns | Columns) -> None:
        rows_by_segment = ChunkRows(_rows_by_segment(records, self._topic_id), header)
        size = _size_bytes(rows_by_segment)
        self._chunks[number] = (size, rows_by_segment)
        self._bytes += size
        while self._bytes > self._budget_bytes and len(self._chunks) > 1:
            dropped, (dropped_bytes, _) = self._chunks.popitem(last=False)
            self._bytes -= dropped_bytes
            if dropped in self._ahead:
                self._ahead.discard(dropped)
                self._depth, self._paused_until = 1, self.loads + PAUSE_LOADS


def _size_bytes(chunk_rows: ChunkRows) -> int:
    size = CHUNK_OVERHEAD_BYTES
    for rows in chunk_rows.values():
        if isinstance(rows, RowRuns):
            return size + rows.columns.nbytes
        size += len(rows.keys) * RECORD_OVERHEAD_BYTES + sum(map(len, rows.keys)) + sum(map(len, rows.values))
        size += sum(len(each) * HEADER_OVERHEAD_BYTES + header_bytes(each) for each in filter(None, rows.headers))
    return size


def _rows_by_segment(records: chunk.RecordColumns | Columns, topic_id: int) -> dict[int, Rows] | dict[int, RowRuns]:
    """Return segment → its records of one topic."""
    if isinstance(records, chunk.RecordColumns):
        runs = runs_of_topic(records.topic_id, records.segment, topic_id)
        rows = Rows(records.offset, records.timestamp_ms, records.key, records.value, records.headers)
    else:
        runs = runs_of_topic(records.integers("topic_id"), records.integers("segment"), topic_id)
        if len(records) >= LONG_RUN * sum(map(len, runs.values())):
            return {segment: RowRuns(records, own) for segment, own in runs.items()}
        rows = Rows.of(records)
    return {segment: rows.picked(rows_of(own)) for segment, own in runs.items()}
