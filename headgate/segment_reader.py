"""Read granted segments from the ledger's chunks, without the leader.

Every reader goes through all chunks of the shard and picks its segment. Chunks are decoded once and shared between
readers through a cache that is bounded in bytes. At the tail a reader waits until the head is announced further, or
looks for itself every second, because an announcement may be lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from headgate.errors import ChunkError, ObjectMissingError, StoreUnavailableError
from headgate.ledger import Ledger
from headgate.messages import Grant

POLL_SECONDS: Final = 1.0
"""How often a reader at the tail looks for itself, and how long it waits for a store out of reach."""
CACHE_BYTES: Final = 64 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one segment in one chunk, column by column, in the order of their offsets."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes]
    values: list[bytes]


class Head:
    """The newest chunk that is known to be durable; it only rises."""

    def __init__(self) -> None:
        self.number = 0
        self._risen = asyncio.Event()

    def rise(self, number: int) -> None:
        """Learn of a newer chunk."""
        if number > self.number:
            self.number = number
            self._risen.set()
            self._risen = asyncio.Event()

    async def reaches(self, number: int, timeout_seconds: float) -> None:
        """Wait until chunk ``number`` is known to be there, at most ``timeout_seconds``."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.number < number:
                    await self._risen.wait()
        except TimeoutError:
            return


class ChunkCache:
    """Decoded chunks of one shard, records of one topic only."""

    def __init__(self, ledger: Ledger, topic_id: int, budget_bytes: int = CACHE_BYTES) -> None:
        self.loads = 0
        self._ledger = ledger
        self._topic_id = topic_id
        self._budget_bytes = budget_bytes
        self._bytes = 0
        self._chunks: OrderedDict[int, tuple[int, dict[int, Rows]]] = OrderedDict()
        self._loading: dict[int, asyncio.Task[dict[int, Rows]]] = {}

    async def rows(self, number: int) -> dict[int, Rows]:
        """Return segment → rows of chunk ``number``; raises what `Ledger.read_records` raises."""
        known = self._chunks.get(number)
        if known is not None:
            self._chunks.move_to_end(number)
            return known[1]
        task = self._loading.get(number)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(number), name=f"read-chunk-{number}")
            self._loading[number] = task
            task.add_done_callback(lambda done: self._loaded(number, done))
        # Shielded: a reader that is revoked must not take the chunk away from the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop loading."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _loaded(self, number: int, task: asyncio.Task[dict[int, Rows]]) -> None:
        del self._loading[number]
        if not task.cancelled():
            task.exception()  # Retrieved here, should all who waited be gone.

    async def _load(self, number: int) -> dict[int, Rows]:
        self.loads += 1
        table = await self._ledger.read_records(number)
        found: dict[int, Rows] = {}
        columns = zip(
            table.column("topic_id").to_pylist(),
            table.column("segment").to_pylist(),
            table.column("offset").to_pylist(),
            table.column("timestamp_ms").to_pylist(),
            table.column("key").to_pylist(),
            table.column("value").to_pylist(),
            strict=True,
        )
        for topic_id, segment, offset, timestamp_ms, key, value in columns:
            if topic_id != self._topic_id:
                continue
            rows = found.get(segment)
            if rows is None:
                rows = found[segment] = Rows([], [], [], [])
            rows.offsets.append(offset)
            rows.timestamps_ms.append(timestamp_ms)
            rows.keys.append(key)
            rows.values.append(value)
        size = table.nbytes + 256
        self._chunks[number] = (size, found)
        self._bytes += size
        while self._bytes > self._budget_bytes and len(self._chunks) > 1:
            _, (dropped, _) = self._chunks.popitem(last=False)
            self._bytes -= dropped
        return found


Deliver = Callable[[int, int, bytes, bytes], Awaitable[None]]
"""(offset, timestamp_ms, key, value): returns once there is room."""


class SegmentReader:
    """Reads one segment from its start to its end, or for ever."""

    def __init__(
        self,
        grant: Grant,
        *,
        cache: ChunkCache,
        head: Head,
        deliver: Deliver,
        start_offset: int | None = None,
        skips_acknowledged: bool = False,
    ) -> None:
        """``start_offset`` takes the place of the grant's; ``skips_acknowledged``: leave out the grant's ranges."""
        self.next_offset = grant.start_offset if start_offset is None else start_offset
        # The grant knows the chunk of its own start only; for an earlier one begin at the beginning.
        self.next_chunk = grant.start_chunk if self.next_offset >= grant.start_offset else 1
        self._segment = grant.segment
        self._end_offset = grant.end_offset
        self._cache = cache
        self._head = head
        self._deliver = deliver
        self._skipped = sorted(grant.acknowledged) if skips_acknowledged else []

    @property
    def at_end(self) -> bool:
        """Whether a sealed segment has been read to its end."""
        return self._end_offset is not None and self.next_offset >= self._end_offset

    def has_read(self, chunk: int) -> bool:
        """Return whether everything up to ``chunk`` has been handed on."""
        return self.at_end or self.next_chunk > chunk

    async def run(self) -> None:
        """Read and deliver until the end of a sealed segment, or until cancelled.

        Raises:
            ChunkError: an object of the ledger is damaged, or records are missing.

        """
        complained = False
        while not self.at_end:
            if self.next_chunk > self._head.number:
                await self._head.reaches(self.next_chunk, POLL_SECONDS)
            try:
                chunk = await self._cache.rows(self.next_chunk)
            except (ObjectMissingError, StoreUnavailableError) as error:
                if self.next_chunk <= self._head.number:
                    if not complained:
                        log.warning("segment.unreadable", segment=self._segment, reason=str(error))
                        complained = True
                    await asyncio.sleep(POLL_SECONDS)
                continue
            complained = False
            rows = chunk.get(self._segment)
            if rows is not None:
                await self._hand_on(rows)
            self.next_chunk += 1

    async def _hand_on(self, rows: Rows) -> None:
        for index, offset in enumerate(rows.offsets):
            if offset < self.next_offset:
                continue
            if offset > self.next_offset:
                raise ChunkError(
                    f"chunk {self.next_chunk}: segment {self._segment} goes on at offset {offset}, expected "
                    f"{self.next_offset}; records are missing",
                )
            self.next_offset = offset + 1
            if not self._is_skipped(offset):
                await self._deliver(offset, rows.timestamps_ms[index], rows.keys[index], rows.values[index])

    def _is_skipped(self, offset: int) -> bool:
        while self._skipped and self._skipped[0][1] <= offset:
            self._skipped.pop(0)
        return bool(self._skipped) and self._skipped[0][0] <= offset
