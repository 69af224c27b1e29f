"""Read the stored records of a whole topic in the order of the ledger, without a subscription or the leader.

One pass goes through compacted objects and then through chunks, oldest first. Records of one segment are in the order
of their offsets, and all records of a parent come before those of its children, because the leader stores them so.
Every record is read once, however many segments there are. Nothing is acknowledged, and nothing is written.

A chunk is deleted after compaction. A slow reader then plans its pass again and continues by offset, so no record is
skipped or repeated.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.chunk import RecordColumns
from headgate.ledger.compacted import CompactedObject
from headgate.ledger.ledger import Ledger
from headgate.log.event_log import get_logger
from headgate.model.headers import Headers
from headgate.protocol.messages import TopicInfo
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.head import POLL_SECONDS, Head
from headgate.reading.segment_reader import COMPACTION_RECHECK_SECONDS
from headgate.reading.time_lookup import first_chunk_at
from headgate.reading.topic_files import list_objects

CONCURRENT_CHUNK_READS: Final = 8
"""Chunks that are read concurrently, hence the most that are in memory."""
MAX_ATTEMPTS: Final = 3
"""Passes that may end without a new record. Compaction replaces objects once in minutes."""

log = get_logger(__name__)


class LedgerRecord(NamedTuple):
    segment: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970, as the producer set it."""
    key: bytes
    value: bytes
    headers: Headers = ()


class _Plan(NamedTuple):
    objects: list[CompactedObject]
    compacted_through: int
    """The objects include everything up to this chunk."""
    chunks: list[int]


class TopicReader:
    """Reads one topic once. Use one of `stored`, `tail` and `follow`; `follow` also after `tail`."""

    def __init__(
        self,
        ledger: Ledger,
        topic: TopicInfo,
        *,
        starts: Mapping[int, int],
        stored_at_ms: int = 0,
        first_chunk: int = 1,
        only_started: bool = False,
        key: bytes | None = None,
    ) -> None:
        """``topic`` is a current description from the leader: the records it counts are durable.

        Args:
            ledger: the ledger of the topic's shard.
            topic: the description.
            starts: segment → first offset to read; segments that are not named are not read.
            stored_at_ms: no wanted record was stored before; saves reading older chunks.
            first_chunk: no wanted record is in an earlier chunk.
            only_started: `follow` ignores segments that are created later.
            key: only yield records with this key.
        """
        self._ledger = ledger
        self._topic_id = topic.topic_id
        self._compacted = CompactedRecords(ledger.store, ledger.shard, topic.topic_id)
        self._next_offsets: dict[int, int] = dict(starts)
        self._ends = {each.segment: each.next_offset for each in topic.segments if each.segment in starts}
        self._newest_segment = max((each.segment for each in topic.segments), default=-1)
        self._stored_at_ms = stored_at_ms
        self._next_chunk = first_chunk
        self._accepts_new = not only_started
        self._key = key
        self._bounded = True

    async def stored(self) -> AsyncGenerator[LedgerRecord]:
        """Yield every record that the description counts. Raises LedgerError or StoreUnavailableError."""
        fruitless = 0
        while not self._is_complete():
            before = dict(self._next_offsets)
            try:
                async with aclosing(self._pass()) as records:
                    async for record in records:
                        yield record
            except ObjectMissingError:
                # Compaction has just replaced it; the next plan has its successor.
                await asyncio.sleep(POLL_SECONDS)
            fruitless = fruitless + 1 if before == self._next_offsets else 0
            if fruitless == MAX_ATTEMPTS:
                raise LedgerError(self._missing_records())

    async def tail(self, count: int) -> list[LedgerRecord]:
        """Return the last ``count`` stored records, oldest first. Raises like `stored`.

        Reads backwards, so the cost depends on how far back these records are, and not on the age of the topic.
        """
        newest: deque[LedgerRecord] = deque()
        plan = await self._plan()
        for group in _backwards(plan.chunks):
            for columns in reversed(await self._read_chunks(group)):
                newest.extendleft(reversed(list(self._wanted(_records(columns, self._topic_id)))))
            if len(newest) >= count:
                break
        else:
            for item in reversed(plan.objects):
                if len(newest) >= count:
                    break
                found = [record async for record in self._object_records(item)]
                newest.extendleft(reversed(list(self._wanted(found))))
        self._next_chunk = plan.compacted_through + len(plan.chunks) + 1
        # `follow` accepts the first record of each other segment: the ledger may have grown since the description.
        self._newest_segment = -1
        self._next_offsets = {}
        return list(newest)[-count:] if count else []

    async def follow(self, head: Head) -> AsyncGenerator[LedgerRecord]:
        """Yield all records and then new ones as they become durable, until cancelled. Raises LedgerError.

        ``head`` learns of new chunks; without one the ledger is polled every second.
        """
        self._bounded = False
        planned_at = float("-inf")
        now = asyncio.get_running_loop().time
        while True:
            try:
                if now() - planned_at >= COMPACTION_RECHECK_SECONDS:
                    async with aclosing(self._pass()) as records:
                        async for record in records:
                            yield record
                    planned_at = now()
                columns = await self._ledger.read_records(self._next_chunk)
                if self._next_chunk > head.number:
                    await self._ledger.make_durable()
                    head.advance(self._next_chunk)
            except ObjectMissingError:
                # It does not exist yet, or was compacted; the head may be forged, so it is believed once.
                if self._next_chunk <= head.number:
                    planned_at = float("-inf")
                    head.retract(self._next_chunk - 1)
                await head.wait_for(self._next_chunk, POLL_SECONDS)
                continue
            except StoreUnavailableError as error:
                log.warning("topic.unreadable", reason=str(error))
                await asyncio.sleep(POLL_SECONDS)
                continue
            self._next_chunk += 1
            for record in self._advance(_records(columns, self._topic_id)):
                yield record

    # One pass

    async def _pass(self) -> AsyncGenerator[LedgerRecord]:
        """Yield what is stored from the present positions on. Raises ObjectMissingError if an object was replaced."""
        plan = await self._plan()
        for item in plan.objects:
            if item.end_offset > self._next_offsets.get(item.segment, 0):
                for record in self._advance([each async for each in self._object_records(item)]):
                    yield record
        self._next_chunk = plan.compacted_through + 1
        chunks = plan.chunks
        if self._stored_at_ms:
            chunks = chunks[await first_chunk_at(self._ledger, chunks, self._stored_at_ms) :]
        for begin in range(0, len(chunks), CONCURRENT_CHUNK_READS):
            if self._bounded and self._is_complete():
                return
            group = chunks[begin : begin + CONCURRENT_CHUNK_READS]
            for number, columns in zip(group, await self._read_chunks(group), strict=True):
                for record in self._advance(_records(columns, self._topic_id)):
                    yield record
                self._next_chunk = number + 1

    async def _plan(self) -> _Plan:
        found = await list_objects(self._ledger, self._next_chunk)
        objects = [
            item
            for manifest in found.manifests
            # A parent has a lower number than its children.
            for item in sorted(manifest.objects, key=_place)
            if item.topic_id == self._topic_id and self._is_wanted(item.segment)
        ]
        return _Plan(objects, found.compacted_through, found.chunks)

    async def _object_records(self, item: CompactedObject) -> AsyncGenerator[LedgerRecord]:
        async for rows in self._compacted.slices(item, self._next_offsets.get(item.segment, 0)):
            for fields in zip(*rows, strict=True):
                yield LedgerRecord(item.segment, *fields)

    async def _read_chunks(self, numbers: list[int]) -> list[RecordColumns]:
        return await asyncio.gather(*map(self._ledger.read_records, numbers))

    # What is wanted

    def _is_wanted(self, segment: int) -> bool:
        if segment in self._ends:
            return True
        return not self._bounded and self._accepts_new and segment > self._newest_segment

    def _wanted(self, records: Iterable[LedgerRecord]) -> Iterator[LedgerRecord]:
        return (each for each in records if self._is_wanted(each.segment) and self._key in (None, each.key))

    def _advance(self, records: Iterable[LedgerRecord]) -> Iterator[LedgerRecord]:
        for record in records:
            segment, offset = record.segment, record.offset
            expected = self._next_offsets.get(segment, offset)
            is_after_end = self._bounded and offset >= self._ends.get(segment, 0)
            if not self._is_wanted(segment) or offset < expected or is_after_end:
                continue
            if offset > expected:
                raise LedgerError(
                    f"segment {segment} continues at offset {offset}, expected {expected}: records are missing"
                )
            self._next_offsets[segment] = offset + 1
            if self._key in {None, record.key}:
                yield record

    def _is_complete(self) -> bool:
        return all(self._next_offsets[segment] >= end for segment, end in self._ends.items())

    def _missing_records(self) -> str:
        segment, end = next(item for item in self._ends.items() if self._next_offsets[item[0]] < item[1])
        return (
            f"segment {segment} ends at offset {self._next_offsets[segment]} in the ledger, and its leader counts "
            f"{end}: was it pruned meanwhile, or is ledger_url that of another cluster?"
        )


def _place(item: CompactedObject) -> tuple[int, int]:
    return item.segment, item.first_offset


def _backwards(numbers: list[int]) -> Iterator[list[int]]:
    for end in range(len(numbers), 0, -CONCURRENT_CHUNK_READS):
        yield numbers[max(0, end - CONCURRENT_CHUNK_READS) : end]


def _records(columns: RecordColumns, topic_id: int) -> Iterator[LedgerRecord]:
    for index, topic in enumerate(columns.topic_id):
        if topic == topic_id:
            yield LedgerRecord(
                columns.segment[index],
                columns.offset[index],
                columns.timestamp_ms[index],
                columns.key[index],
                columns.value[index],
                columns.headers[index],
            )
