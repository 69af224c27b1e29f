"""Chunks of a shard that the readers of a topic share: each is loaded and decoded once, and some ahead of their turn.

Readers of one topic follow each other. The cache is bounded in bytes: what was used longest ago is dropped first.

A store that answers after 40 ms would serve 25 chunks per second, one after the other. So chunks that exist are loaded
ahead: one more each time such a chunk was used, up to `MAX_DEPTH`. Once one was dropped before it was used, because
there are too many readers at different places or the chunks are too large, none is for the next `PAUSE_LOADS` loads.
While `MAX_LOADS` chunks are loaded, no more are loaded ahead.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter
from typing import Final

from headgate.ledger import chunk
from headgate.ledger.chunk import ChunkHeader, RecordColumns
from headgate.ledger.ledger import Ledger
from headgate.model.headers import header_bytes
from headgate.process.background import end_tasks
from headgate.reading.stored_rows import Rows
from headgate.reading.tail import Tail

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
_COLUMNS: Final = attrgetter("offset", "timestamp_ms", "key", "value", "headers")


class ChunkRows(dict[int, Rows]):
    """Segment → its rows of one chunk; and the ids of the terms that the chunk names."""

    def __init__(self, rows: Mapping[int, Rows], header: ChunkHeader) -> None:
        super().__init__(rows)
        self.term_id = header.term_id
        self.previous_term_id = header.previous_term_id


class ChunkCache:
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
        cached = self._chunks.get(number)
        if cached is not None:
            self._chunks.move_to_end(number)
            self._load_ahead(number, newest)
            return cached[1]
        loading = self._load_once(number)
        self._load_ahead(number, newest)
        # Shielded: cancelling one reader must not cancel the load for the others.
        return await asyncio.shield(loading)

    def offer(self, number: int, data: bytes) -> None:
        """Keep the object of chunk ``number`` until it is read, if that is soon: the store need not be asked then."""
        first = self.tail.number
        for passed in [each for each in self._offered if each < first]:
            del self._offered[passed]
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
        task = self._loading.get(number)
        if task is None:
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
        if (offered := self._offered.pop(number, None)) is not None:
            header, records = chunk.decode_records(offered, shard=self._ledger.shard, number=number)
        else:
            header, records = await self._ledger.read_records(number)
        rows_by_segment = ChunkRows(_rows_by_segment(records, self._topic_id), header)
        size = CHUNK_OVERHEAD_BYTES
        for rows in rows_by_segment.values():
            size += len(rows.keys) * RECORD_OVERHEAD_BYTES + sum(map(len, rows.keys)) + sum(map(len, rows.values))
            size += sum(len(each) * HEADER_OVERHEAD_BYTES + header_bytes(each) for each in filter(None, rows.headers))
        self._chunks[number] = (size, rows_by_segment)
        self._bytes += size
        while self._bytes > self._budget_bytes and len(self._chunks) > 1:
            dropped, (dropped_bytes, _) = self._chunks.popitem(last=False)
            self._bytes -= dropped_bytes
            if dropped in self._ahead:
                self._ahead.discard(dropped)
                self._depth, self._paused_until = 1, self.loads + PAUSE_LOADS
        return rows_by_segment


def _rows_by_segment(records: RecordColumns, topic_id: int) -> dict[int, Rows]:
    """Return segment → its records of one topic. A leader writes those of a batch segment by segment."""
    rows, segments = Rows(*_COLUMNS(records)), records.segment
    if records.topic_id.count(topic_id) < len(records):
        own = [index for index, each in enumerate(records.topic_id) if each == topic_id]
        rows, segments = rows.picked(own), [segments[index] for index in own]
    runs: defaultdict[int, list[range]] = defaultdict(list)
    end = 0
    for segment, run in groupby(segments):
        first, end = end, end + len(list(run))
        runs[segment].append(range(first, end))
    return {segment: rows.joined(own) for segment, own in runs.items()}
