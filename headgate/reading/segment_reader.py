"""Read granted segments from the ledger without the leader: compacted objects, then chunk by chunk.

A chunk is deleted only after compaction, so a slow reader returns to compacted objects. It
continues by offset: no record is skipped or repeated.

Readers read all chunks of the shard, decoded once and shared through a cache bounded in bytes, up to the known head.
Behind it `headgate.reading.tail` reads on for all of them. They report how far they have read past records of other
buckets.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from headgate.errors import LedgerError, ObjectMissingError, StoreUnavailableError
from headgate.ledger.compacted import CompactedObject, Manifest, decode_compacted, manifest_ranges, read_manifest
from headgate.ledger.objects import ChunkRange, compacted_through, ranges_to_read
from headgate.ledger.parquet_columns import Columns
from headgate.log.event_log import get_logger
from headgate.model.layout import BucketRange, buckets_of, key_bucket, slice_of
from headgate.model.positions import OffsetRanges
from headgate.protocol.replies import Grant
from headgate.reading.stored_rows import RowRuns, Rows
from headgate.reading.tail import POLL_SECONDS, ChunkCache, Head
from headgate.storage.object_store import Store

LISTING_TTL_SECONDS: Final = 5.0
"""How long a listing is reused: readers of many segments start at the same time."""
COMPACTION_RECHECK_SECONDS: Final = 30.0
"""How often a reader checks whether its missing next chunk was compacted, if the known head does not include it."""
LOCATE_SECONDS: Final = 10.0
"""How long it waits to learn that, before it reads the chunk."""
FRESH_SECONDS: Final = 30.0
"""How long it waits to find the place of a chunk that is gone, before it says so and tries again."""
MISSING_SECONDS: Final = 60.0
"""How long an object that a leader has stated may be missing. A listing of a busy store lags by seconds."""
log = get_logger(__name__)
Deliver = Callable[[Rows], Awaitable[None]]
"""(records in the order of their offsets, at least one): returns once there is capacity."""
OnSkipped = Callable[[int, int], None]
"""(first offset, end offset): records that are not delivered, none if both are equal; read up to the end offset."""


async def read_object(store: Store, item: CompactedObject) -> Columns:
    """Return the records of one object.

    Raises:
        LedgerError: the object is damaged, or its records are not those that its manifest states.
        ObjectMissingError: it was replaced, or its segment was removed.
        StoreUnavailableError: the store is unreachable.
    """
    return await asyncio.to_thread(decode_compacted, await store.read(item.path), item)


class CompactedSlice(NamedTuple):
    objects: list[CompactedObject]
    """In order; the first may begin before that offset."""
    last: int
    """The objects include everything up to this chunk; 0: nothing is compacted."""


class CompactedRecords:
    """Locates and reads the records of one topic in compacted objects.

    Each manifest is read once, until an object that it names is missing: then it was replaced, or was withdrawn, and
    another one of its range may be published. Their list is read again when a reader misses a chunk or an object.
    """

    def __init__(self, store: Store, shard: int, topic_id: int) -> None:
        self._store = store
        self._shard = shard
        self._topic_id = topic_id
        self._listed_at = float("-inf")
        self._ranges: list[ChunkRange] = []
        self._manifests: dict[ChunkRange, Manifest] = {}
        self._lock = asyncio.Lock()

    async def locate(self, segment: int, offset: int, chunk: int, *, fresh: bool = False) -> CompactedSlice:
        """Return the compacted records from ``offset`` on, for a reader whose next chunk is ``chunk``.

        With ``fresh`` the manifests are listed now, whatever the age of the last listing. Ranges
        before ``chunk`` are skipped: the record at ``offset`` is in it or in a later chunk.

        Raises LedgerError, ObjectMissingError (a manifest was replaced meanwhile; call again with ``fresh``) or
        StoreUnavailableError.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if fresh or now - self._listed_at > LISTING_TTL_SECONDS:
                self._ranges = ranges_to_read(await manifest_ranges(self._store, self._shard))
                self._listed_at = now
                self._manifests = {chunks: known for chunks, known in self._manifests.items() if chunks in self._ranges}
            objects: list[CompactedObject] = []
            for chunks in self._ranges:
                if chunks.last < chunk:
                    continue
                if chunks not in self._manifests:
                    self._manifests[chunks] = await read_manifest(self._store, self._shard, chunks)
                objects += [
                    item
                    for item in self._manifests[chunks].objects
                    if item.topic_id == self._topic_id and item.segment == segment and item.end_offset > offset
                ]
            return CompactedSlice(objects, compacted_through(self._ranges))

    async def rows(self, item: CompactedObject, offset: int) -> RowRuns:
        """Return the records of one object from ``offset`` on. Raises like `read_object`."""
        try:
            records = await read_object(self._store, item)
        except ObjectMissingError:
            self._manifests = {chunks: known for chunks, known in self._manifests.items() if item not in known.objects}
            raise
        return RowRuns(records, [range(max(0, offset - item.first_offset), len(records))])


class SegmentReader:
    def __init__(
        self,
        grant: Grant,
        *,
        cache: ChunkCache,
        compacted: CompactedRecords,
        head: Head,
        deliver: Deliver,
        start_offset: int | None = None,
        skip_acknowledged: bool = False,
        on_skipped: OnSkipped | None = None,
    ) -> None:
        """Create a reader for ``grant``.

        ``start_offset`` replaces that of the grant. ``skip_acknowledged``: omit the acknowledged ranges of the grant.
        ``on_skipped`` receives skipped records of other buckets; if buckets differ, it is called after each chunk.
        """
        self.next_offset = grant.start_offset if start_offset is None else start_offset
        # The grant states the chunk of its own start only; an earlier start begins at chunk 1.
        self.next_chunk = grant.start_chunk if self.next_offset >= grant.start_offset else 1
        self._segment = grant.segment
        self._end_offset = grant.end_offset
        self._cache = cache
        self._compacted = compacted
        self._compaction_checked_at = float("-inf")
        self._unreadable: tuple[type[Exception], float] | None = None  # Why nothing can be read, and since when.
        self._woken: asyncio.Future[int] | None = None
        self._head = head
        self._deliver = deliver
        self._filter = _GrantFilter(grant, skip_acknowledged=skip_acknowledged)
        self._delivers_all = not self._filter.checks_keys and not self._filter.skips and not grant.failed
        self._on_skipped = on_skipped if self._filter.checks_keys else None

    @property
    def at_end(self) -> bool:
        return self._end_offset is not None and self.next_offset >= self._end_offset

    def has_read(self, chunk: int) -> bool:
        waits = self._woken is not None and not self._woken.done()
        return self.at_end or self.next_chunk > chunk or (waits and self._cache.tail.number > chunk)

    async def run(self) -> None:
        """Read and deliver until the end of a sealed segment, or until cancelled.

        Raises LedgerError: an object of the ledger is damaged, or records are missing.
        """
        await self._read_compacted(fresh=False)
        while not self.at_end:
            if self.next_chunk > self._head.number:
                await self._wait_at_tail()
                continue
            try:
                chunk = await self._cache.rows(self.next_chunk, self._head.number)
            except ObjectMissingError as error:
                self._report_skipped(self.next_offset, self.next_offset)
                # It was deleted after compaction, or the announcement of the head was forged.
                if not await self._read_compacted(fresh=True):
                    self._head.retract(self.next_chunk - 1)
                    await self._wait_for(error)
                continue
            except StoreUnavailableError as error:
                await self._wait_for(error)
                continue
            self._unreadable = None
            self._head.history.add(self.next_chunk, chunk.term_id, chunk.previous_term_id)
            if (rows := chunk.get(self._segment)) is not None:
                await self._deliver_parts(rows)
            self.next_chunk += 1
            self._report_skipped(self.next_offset, self.next_offset)
        self._report_skipped(self.next_offset, self.next_offset)

    async def _wait_at_tail(self) -> None:
        """Wait for the next chunk with records of the segment. Check now and then whether it was compacted."""
        recheck_at = self._compaction_checked_at + COMPACTION_RECHECK_SECONDS
        # A bucket range reports what it has skipped, so it is woken by each chunk and each poll.
        segment, wake_at = (self._segment, recheck_at) if self._on_skipped is None else (None, float("-inf"))
        self._woken = self._cache.tail.join(self._head, segment, self.next_chunk, wake_at)
        if (number := await self._woken) > self.next_chunk:
            self.next_chunk, self._unreadable = number, None
        if number > self._head.number:  # A poll has found nothing.
            self._report_skipped(self.next_offset, self.next_offset)
            if asyncio.get_running_loop().time() >= recheck_at:
                await self._read_compacted(fresh=False)

    async def _read_compacted(self, *, fresh: bool) -> bool:
        """Read compacted objects to their end; return whether they included the next chunk."""
        moved = False
        while not self.at_end:
            self._compaction_checked_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(FRESH_SECONDS if fresh else LOCATE_SECONDS):
                    objects, last = await self._compacted.locate(
                        self._segment, self.next_offset, self.next_chunk, fresh=fresh
                    )
                if last < self.next_chunk:
                    break
                for item in objects:
                    if self.at_end:
                        break
                    await self._deliver_parts(await self._compacted.rows(item, self.next_offset))
                    self._unreadable = None
            except (ObjectMissingError, StoreUnavailableError) as error:
                # A fresh listing shows the wider range that replaced it, or the segment is being removed.
                if fresh:
                    await self._wait_for(error)
                fresh = True
                continue
            except TimeoutError:
                if not fresh:
                    break  # The chunk is probably there.
                await self._wait_for(StoreUnavailableError(f"no list of compacted objects within {FRESH_SECONDS:g} s"))
                continue
            self.next_chunk, moved, self._unreadable = last + 1, True, None
        return moved

    async def _wait_for(self, error: Exception) -> None:
        """Wait before another attempt. Raises LedgerError: a chunk that a leader has stated is missing for too long."""
        now = asyncio.get_running_loop().time()
        if self._unreadable is None or self._unreadable[0] is not type(error):
            self._unreadable = type(error), now
            log.error("segment.unreadable", segment=self._segment, reason=str(error))
        stated = isinstance(error, ObjectMissingError) and self.next_chunk <= self._head.history.newest
        if stated and now - self._unreadable[1] >= MISSING_SECONDS:
            raise LedgerError(
                f"{error}: it has been missing for {MISSING_SECONDS:g} s, and the leader says that chunk "
                f"{self._head.history.newest} exists. Objects of the ledger were lost, or it is not mounted here"
            )
        await asyncio.sleep(POLL_SECONDS)

    async def _deliver_parts(self, rows: Rows | RowRuns) -> None:
        for part in rows.parts():
            if self.at_end:
                break
            await self._deliver_rows(part)

    async def _deliver_rows(self, rows: Rows) -> None:
        first = bisect_left(rows.offsets, self.next_offset)
        offsets = [*rows.offsets[first:]]
        if offsets != (expected := [*range(self.next_offset, self.next_offset + len(offsets))]):
            offset, wanted = next(pair for pair in zip(offsets, expected, strict=True) if pair[0] != pair[1])
            raise LedgerError(
                f"chunk {self.next_chunk}: segment {self._segment} continues at offset {offset}, expected "
                f"{wanted}; records are missing, or an older ledger was put back while this consumer ran"
            )
        if offsets:
            await (self._deliver if self._delivers_all else self._deliver_filtered)(rows.part(first, len(rows.offsets)))
        self.next_offset += len(offsets)

    async def _deliver_filtered(self, rows: Rows) -> None:
        """Deliver what the grant says. Report what is skipped once the records before it are delivered."""
        found = list(map(self._filter.classify, rows.offsets, rows.keys))
        if picked := [index for index, each in enumerate(found) if each is _Disposition.DELIVER]:
            await self._deliver(rows.picked(picked))
        skipped = [index for index, each in enumerate(found) if each is _Disposition.SKIP]
        for first, end in OffsetRanges((rows.offsets[index], rows.offsets[index] + 1) for index in skipped):
            self._report_skipped(first, end)

    def _report_skipped(self, first_offset: int, end_offset: int) -> None:
        if self._on_skipped is not None:
            self._on_skipped(first_offset, end_offset)


class _Disposition(Enum):
    DELIVER = auto()
    SKIP = auto()
    """It is in another bucket; or it is acknowledged in its own, and may not be in the others that the grant has."""
    LATER = auto()
    """It has failed, and is read again when it is due."""


class _GrantFilter:
    def __init__(self, grant: Grant, *, skip_acknowledged: bool) -> None:
        segment_slice = slice_of(grant.segment, grant.first_bucket, grant.end_bucket)
        self._own_buckets = buckets_of(segment_slice)
        self._buckets = grant.buckets
        self.checks_keys = isinstance(segment_slice, BucketRange) or bool(grant.starts)
        """Whether it depends on a record's key bucket who reads it, or whether it is acknowledged."""
        self.skips = skip_acknowledged and bool(grant.acknowledged)
        self._failed = {each.offset for each in grant.failed}
        acknowledged = OffsetRanges(grant.acknowledged if skip_acknowledged else ())
        self._starts = [grant.start_offset] * self._buckets
        self._skipped = [acknowledged] * (self._buckets if self.checks_keys else 1)
        for start in grant.starts:
            for bucket in range(start.first_bucket, start.end_bucket):
                self._starts[bucket] = start.start_offset
                self._skipped[bucket] = OffsetRanges(start.acknowledged if skip_acknowledged else ())

    def classify(self, offset: int, key: bytes) -> _Disposition:
        bucket = 0
        if self.checks_keys:
            bucket = key_bucket(key, self._buckets)
            if bucket not in self._own_buckets or offset < self._starts[bucket]:
                return _Disposition.SKIP
        if self._skipped[bucket].contains(offset):
            return _Disposition.SKIP
        return _Disposition.LATER if offset in self._failed else _Disposition.DELIVER
