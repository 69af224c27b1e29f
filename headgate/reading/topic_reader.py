"""Read the stored records of a whole topic in the order of the ledger, without a subscription or the leader.

One pass goes through compacted objects and then through chunks, oldest first. Records of one segment are in the order
of their offsets, and all records of a parent come before those of its children, because the leader stores them so.
Every record is read once, however many segments there are. Nothing is acknowledged, and nothing is written.

A chunk is deleted after compaction. A slow reader then plans its pass again and continues by offset, so no record is
skipped or repeated. If an object stays missing, the present layout says why: its segment was pruned, or it was lost.
Each chunk names the term of the one before, so an older ledger that was put back meanwhile is an error.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.chunk import ChunkHeader
from headgate.ledger.compacted import CompactedObject
from headgate.ledger.ledger import Ledger
from headgate.ledger.parquet_columns import Columns
from headgate.log.event_log import get_logger
from headgate.process.background import end_tasks
from headgate.reading.segment_reader import COMPACTION_RECHECK_SECONDS, read_object
from headgate.reading.stored_rows import LedgerRecord, StoredRows, rows_of, rows_of_topic
from headgate.reading.tail import POLL_SECONDS, POLLS, Head, pause
from headgate.reading.topic_files import first_chunk_at, list_objects
from headgate.storage.object_store import MAX_CHUNK_BYTES
from headgate.views.topics import TopicInfo

CONCURRENT_CHUNK_READS: Final = 8
"""Chunks that are read concurrently, hence the most that are in memory."""
CONCURRENT_OBJECT_READS: Final = 2
"""Compacted objects that are in memory: one is used, and the next one is read."""
PUT_BACK: Final = "the chunks that were read are others in the ledger by now: an older one was put back, so read again"
MAX_ATTEMPTS: Final = 3
"""Passes that may end without a new record. Compaction replaces objects once in minutes."""

log = get_logger(__name__)


class ObjectTooLargeError(LedgerError):
    """An object is larger than its reader wants to read."""


class ReadPlan(NamedTuple):
    """Which objects hold the wanted records."""

    objects: list[CompactedObject]
    compacted_through: int
    """The objects include everything up to this chunk."""
    chunks: Sequence[int]


class TopicReader:
    """Reads one topic once. Use one of `stored`, `tail` and `follow`; `follow` also after `tail`."""

    def __init__(
        self,
        ledger: Ledger,
        topic: TopicInfo,
        *,
        starts: Mapping[int, int],
        ends: Mapping[int, int] | None = None,
        stored_at_ms: int = 0,
        first_chunk: int = 1,
        only_started: bool = False,
        key: bytes | None = None,
        plan: ReadPlan | None = None,
        describe: Callable[[], Awaitable[TopicInfo]] | None = None,
    ) -> None:
        """``topic`` is a current description from the leader: the records it counts are durable.

        Args:
            ledger: the ledger of the topic's shard.
            topic: the description.
            starts: segment → first offset to read; segments that are not named are not read.
            ends: segment → offset before which to stop; by default what the description counts.
            stored_at_ms: no wanted record was stored before; saves reading older chunks.
            first_chunk: no wanted record is in an earlier chunk.
            only_started: `follow` ignores segments that are created later.
            key: only yield records with this key.
            plan: where `stored` looks first, before it lists the objects.
            describe: returns the present description; asked when an object stays missing.
        """
        self._ledger = ledger
        self._topic_id = topic.topic_id
        self._describe = describe
        self._next_offsets: dict[int, int] = dict(starts)
        ends = {each.segment: each.next_offset for each in topic.segments} if ends is None else ends
        self._ends = {segment: end for segment, end in ends.items() if segment in starts}
        self._newest_segment = max((each.segment for each in topic.segments), default=-1)
        unread = {segment for segment, end in self._ends.items() if starts[segment] < end}
        created = (each.created_at_ms for each in topic.segments if each.segment in unread)
        self._stored_at_ms = max(stored_at_ms, min(created, default=0))
        self._next_chunk = first_chunk
        self._first_uncounted = sys.maxsize
        """First chunk of the oldest compacted range with records behind ``ends``."""
        self._accepts_new = not only_started
        self._key = key
        self._first_plan = plan
        self._bounded = True
        self._last_read: ChunkHeader | None = None

    async def continue_to(self, topic: TopicInfo) -> bool:
        """Let `stored` continue, in all segments, from the ends of a description up to those of a newer one.

        Return False if that is of another topic, or if the ledger has another history than the last chunk that was
        read. Raises like `is_same_history`.
        """
        for each in topic.segments:
            self._next_offsets.setdefault(each.segment, 0)
            self._ends[each.segment] = each.next_offset
        self._next_chunk = min(self._next_chunk, self._first_uncounted)
        return topic.topic_id == self._topic_id and await self.is_same_history()

    async def is_same_history(self) -> bool:
        """Return whether the ledger has the chunk that was read last. Raises like `Ledger.term_id_at`."""
        last = self._last_read
        return last is None or last.term_id == await self._ledger.term_id_at(last.number)

    async def stored(self) -> AsyncGenerator[LedgerRecord]:
        """Yield every record that the description counts, or up to ``ends``. Raises like `stored_rows`."""
        async with aclosing(self.stored_rows()) as found:
            async for rows in found:
                for record in self._with_key(rows):
                    yield record

    async def stored_rows(self) -> AsyncGenerator[StoredRows]:
        """Yield the same records, as the objects hold them; ``key`` does not count.

        Raises:
            LedgerError: an object is damaged, or records are missing.
            StoreUnavailableError: the store is unreachable.
            HeadgateError, NoLeaderError: what ``describe`` raises.
        """
        fruitless = 0
        while not self._is_complete():
            before, missing = dict(self._next_offsets), None
            try:
                async with aclosing(self._pass()) as found:
                    async for rows in found:
                        yield rows
            except ObjectMissingError as error:
                # Compaction has just replaced it; the next plan has its successor.
                missing = error
                await asyncio.sleep(POLL_SECONDS)
            fruitless = fruitless + 1 if before == self._next_offsets else 0
            if fruitless == MAX_ATTEMPTS:
                raise LedgerError(await self._reason(missing))

    async def tail(self, count: int) -> list[LedgerRecord]:
        """Return the last ``count`` stored records, oldest first. Raises like `stored`.

        Reads backwards, so the cost depends on how far back these records are, and not on the age of the topic.
        """
        newest: list[LedgerRecord] = []
        plan = await self._plan()
        async with aclosing(self.newest(plan)) as found:
            async for records in found:
                newest += records
                if len(newest) >= count:
                    break
        self._next_chunk = plan.compacted_through + len(plan.chunks) + 1
        # `follow` accepts the first record of each other segment: the ledger may have grown since the description.
        self._newest_segment = -1
        self._next_offsets = {}
        return newest[:count][::-1]

    async def newest(
        self,
        plan: ReadPlan | None = None,
        *,
        at_a_time: int = CONCURRENT_CHUNK_READS,
        object_bytes: int = MAX_CHUNK_BYTES,
    ) -> AsyncGenerator[list[LedgerRecord]]:
        """Yield the stored records of each object, the newest first. Raises like `stored`.

        ``at_a_time`` chunks are read together. Raises ObjectTooLargeError at a compacted object above ``object_bytes``.
        """
        plan = plan or await self._plan()
        for end in range(len(plan.chunks), 0, -at_a_time):
            group = plan.chunks[max(0, end - at_a_time) : end]
            for _, columns in reversed(await self._read_chunks(group)):
                found = rows_of_topic(columns, self._topic_id)
                picked = rows_of([run for segment, runs, _ in found if self._is_wanted(segment) for run in runs])
                yield list(self._with_key(StoredRows(columns, picked)))[::-1]
        for item in reversed(plan.objects):
            if item.size_bytes > object_bytes:
                raise ObjectTooLargeError(f"{item.path} has {item.size_bytes} bytes, more than {object_bytes}")
            columns = await read_object(self._ledger.store, item)
            yield list(self._with_key(StoredRows(columns, range(len(columns)), item.segment)))[::-1]

    async def follow(self, head: Head) -> AsyncGenerator[LedgerRecord]:
        """Yield all records and then new ones as they become durable, until cancelled, or `end_at`. Raises LedgerError.

        ``head`` learns of new chunks; without one the ledger is polled ever more seldom, as by headgate.reading.tail.
        """
        self._bounded = False
        planned_at, polls, problem = float("-inf"), 0, ""
        now = asyncio.get_running_loop().time
        while not (self._bounded and self._is_complete()):
            try:
                if now() - planned_at >= COMPACTION_RECHECK_SECONDS:
                    async with aclosing(self._pass()) as found:
                        async for rows in found:
                            for record in self._with_key(rows):
                                yield record
                    planned_at = now()
                header, columns = await self._ledger.open_records(self._next_chunk)
                if self._next_chunk > head.number:
                    await self._ledger.make_durable()
                    head.advance(self._next_chunk)
            except ObjectMissingError:
                # It does not exist yet, or was compacted; the head may be forged, so it is believed once.
                if self._next_chunk <= head.number:
                    planned_at = float("-inf")
                    head.retract(self._next_chunk - 1)
                known = head.number
                await pause(head, known, POLLS.bound_seconds(polls))
                polls = polls + 1 if head.number == known else 0
                continue
            except StoreUnavailableError as error:
                if problem != (problem := str(error)):  # once: it is read on when that is over
                    log.error("topic.unreadable", reason=problem)  # noqa: TRY400 - no bug
                await asyncio.sleep(POLL_SECONDS)
                continue
            self._next_chunk, polls, problem = self._next_chunk + 1, 0, ""
            self._note(header)
            for record in self._with_key(StoredRows(columns, self._advance(columns))):
                yield record

    def end_at(self, topic: TopicInfo) -> bool:
        """Let `follow` end with the last record, if each segment that it reads is sealed by now; return whether."""
        now = {each.segment: each for each in topic.segments if each.segment in self._ends}
        if self._accepts_new or any(each.state == "active" for each in now.values()):
            return False
        # Nothing more can be read of a segment that was pruned.
        self._ends = {each: now[each].next_offset if each in now else self._next_offsets[each] for each in self._ends}
        self._bounded = True
        return True

    # One pass

    async def _pass(self) -> AsyncGenerator[StoredRows]:
        """Yield what is stored from the present positions on. Raises ObjectMissingError if an object was replaced."""
        plan, self._first_plan = self._first_plan or await self._plan(), None
        ahead = [item for item in plan.objects if self._is_ahead(item)]
        if (ahead or plan.chunks) and not await self.is_same_history():
            raise LedgerError(PUT_BACK)
        async with aclosing(self._read_objects(ahead)) as objects:
            async for item, columns in objects:
                picked = self._range(item)
                self._next_offsets[item.segment] = item.first_offset + picked.stop
                yield StoredRows(columns, picked, item.segment)
        self._next_chunk = plan.compacted_through + 1
        chunks = plan.chunks
        if self._stored_at_ms and len(chunks) > CONCURRENT_CHUNK_READS:
            chunks = chunks[await first_chunk_at(self._ledger, chunks, self._stored_at_ms) :]
        for begin in range(0, len(chunks), CONCURRENT_CHUNK_READS):
            if self._bounded and self._is_complete():
                return
            for header, columns in await self._read_chunks(chunks[begin : begin + CONCURRENT_CHUNK_READS]):
                self._note(header)
                if rows := self._advance(columns):
                    yield StoredRows(columns, rows)
                if self._bounded and self._is_complete():
                    return  # A newer description may count more of this chunk.
                self._next_chunk = header.number + 1

    def _note(self, header: ChunkHeader) -> None:
        last, self._last_read = self._last_read, header
        if last is not None and header.number == last.number + 1 and header.previous_term_id != last.term_id:
            raise LedgerError(PUT_BACK)

    async def _plan(self) -> ReadPlan:
        found = await list_objects(self._ledger, self._next_chunk)
        of_topic = [
            (manifest.first, item)
            for manifest in found.manifests
            # A parent has a lower number than its children.
            for item in sorted(manifest.objects, key=attrgetter("segment", "first_offset"))
            if item.topic_id == self._topic_id
        ]
        behind = (first for first, item in of_topic if item.end_offset > self._ends.get(item.segment, 0))
        self._first_uncounted = min(behind, default=sys.maxsize)
        objects = [item for _, item in of_topic if self._is_wanted(item.segment)]
        return ReadPlan(objects, found.compacted_through, found.chunks)

    async def _read_objects(self, items: Sequence[CompactedObject]) -> AsyncGenerator[tuple[CompactedObject, Columns]]:
        """Yield compacted objects with their records, and read the next one meanwhile."""
        reading: deque[asyncio.Task[Columns]] = deque()
        try:
            for at, item in enumerate(items):
                for following in items[at + len(reading) : at + CONCURRENT_OBJECT_READS]:
                    read = read_object(self._ledger.store, following)
                    reading.append(asyncio.get_running_loop().create_task(read, name="read-object"))
                yield item, await reading.popleft()
        finally:
            await end_tasks(*reading)

    async def _read_chunks(self, numbers: Sequence[int]) -> list[tuple[ChunkHeader, Columns]]:
        return await asyncio.gather(*map(self._ledger.open_records, numbers))

    # What is wanted

    def _is_wanted(self, segment: int) -> bool:
        if segment in self._ends:
            return True
        return not self._bounded and self._accepts_new and segment > self._newest_segment

    def _with_key(self, rows: StoredRows) -> Iterator[LedgerRecord]:
        return (each for each in rows.records() if self._key in (None, each.key))

    def _is_ahead(self, item: CompactedObject) -> bool:
        """Whether a compacted object has records between the present position and the end."""
        is_after_end = self._bounded and item.first_offset >= self._ends.get(item.segment, 0)
        return item.end_offset > self._next_offsets.get(item.segment, 0) and not is_after_end

    def _range(self, item: CompactedObject) -> range:
        """Return the wanted rows of a compacted object. Raises LedgerError: it begins behind the present position."""
        first = self._next_offsets.get(item.segment, item.first_offset)
        end = min(item.end_offset, self._ends.get(item.segment, 0)) if self._bounded else item.end_offset
        self._require_next(item.segment, item.first_offset, first)
        return range(first - item.first_offset, end - item.first_offset)

    def _advance(self, columns: Columns) -> Sequence[int]:
        """Return the wanted rows of a chunk, and move the positions behind them. Raises like `_range`."""
        picked: list[range] = []
        for segment, runs, (begin, end) in rows_of_topic(columns, self._topic_id):
            expected = self._next_offsets.get(segment, begin)
            stop = min(end, self._ends.get(segment, 0)) if self._bounded else end
            if self._is_wanted(segment) and stop > expected:
                first = end - sum(map(len, runs))  # A later one than the first row has tells of a gap.
                self._require_next(segment, first, expected)
                self._next_offsets[segment] = stop
                rows = [] if (first, end) == (expected, stop) else list(chain.from_iterable(runs))
                picked += [range(row, row + 1) for row in rows[expected - first : stop - first]] or runs
        return rows_of(picked)

    @staticmethod
    def _require_next(segment: int, first: int, expected: int) -> None:
        if first > expected:
            raise LedgerError(
                f"segment {segment} continues at offset {first}, expected {expected}: records are missing"
            )

    def _is_complete(self) -> bool:
        return all(self._next_offsets[segment] >= end for segment, end in self._ends.items())

    async def _reason(self, missing: ObjectMissingError | None) -> str:
        """Return why the records end early: the segment was pruned, ``missing`` was lost, or there are fewer."""
        segment, end = next(item for item in self._ends.items() if self._next_offsets[item[0]] < item[1])
        offset = self._next_offsets[segment]
        if self._describe is not None:
            now = await self._describe()
            if now.topic_id != self._topic_id:
                return f"topic {now.topic!r} was deleted and created again, and its former records are deleted"
            kept = [each.segment for each in now.segments]
            if segment not in kept:
                return (
                    f"segment {segment} was pruned while it was read, and its records from offset {offset} on are "
                    f"deleted: read again; the oldest segment that is kept is {min(kept)}"
                )
        if missing is not None:
            return (
                f"{missing}, and nothing replaces it, although segment {segment} exists from offset {offset} on: it "
                "was lost; `headgate ledger check` lists all that is missing, restore it from a copy of the ledger"
            )
        return (
            f"segment {segment} ends at offset {offset} in the ledger, and its leader counts {end}: was it pruned "
            "meanwhile, or is ledger_url that of another cluster?"
        )
