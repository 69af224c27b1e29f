"""Which objects of a ledger hold the records of a topic, and the offset of each segment at a point in time.

Compacted objects hold the records of the oldest chunks, and the chunks after them the rest. A chunk that was compacted
may still exist, and a manifest still names objects of pruned segments, which are deleted: neither is listed.

Times are those of the ledger's clock. A record is stored at the ``at_ms`` of its chunk, which never falls, unlike the
timestamps of producers. All records of a parent are stored before those of its children.

Manifests state when compacted records were stored. After them, a binary search over headers finds
the first chunk, and chunks are read until each segment open then has a record or was sealed: one
chunk for a busy segment, those that its reader must read anyway for an idle one.
"""

import asyncio
import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from headgate.errors import ObjectMissingError
from headgate.ledger.compacted import CompactedObject, Manifest, decode_compacted, manifest_ranges, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path, compacted_through, ranges_to_read
from headgate.reading.stored_rows import rows_of_topic
from headgate.views.topics import TopicInfo

T = TypeVar("T")

MAX_ATTEMPTS: Final = 3
"""Compaction may replace a manifest before it is read; the next compaction is minutes away."""
RETRY_SECONDS: Final = 1.0
CONCURRENT_CHUNK_READS: Final = 16
LATE_CHUNK_READS: Final = 4
"""The same behind the end of the listing: more than a leader writes meanwhile."""
LATE_MS: Final = 60_000
"""From the first chunk behind the listing on: it lags no longer (`headgate.reading.segment_reader.MISSING_SECONDS`)."""


class TopicFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the ledger's URL."""
    kind: Literal["compacted", "chunk"]
    first_chunk: int
    """The first of the chunks whose records it replaces, or its own number."""
    last_chunk: int
    segment: int | None = None
    """The only segment of a compacted object. A chunk may have records of any."""
    first_offset: int | None = None
    end_offset: int | None = None


class StoredObjects(NamedTuple):
    shard: int
    manifests: list[Manifest]
    compacted_through: int
    """The manifests describe everything up to this chunk."""
    chunks: range


async def retried(read: Callable[[], Awaitable[T]]) -> T:
    """Return what ``read`` returns. Repeat it while an object is missing, which compaction may have replaced."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return await read()
        except ObjectMissingError:
            await asyncio.sleep(RETRY_SECONDS)
    return await read()


async def list_objects(ledger: Ledger, first_chunk: int = 1) -> StoredObjects:
    """Return what holds the records of the shard from ``first_chunk`` on, all of it durable.

    Raises LedgerError, ObjectMissingError (a manifest or a chunk was replaced meanwhile, try again; or the ledger has a
    gap) or StoreUnavailableError.
    """
    store, shard = ledger.store, ledger.shard
    ranges = [each for each in ranges_to_read(await manifest_ranges(store, shard)) if each.last >= first_chunk]
    manifests = [await read_manifest(store, shard, chunks) for chunks in ranges]
    after = max(compacted_through(ranges), first_chunk - 1)
    numbers = await ledger.numbers(after=after)
    if numbers and numbers[0] != after + 1:
        raise ObjectMissingError(f"chunk {after + 1} of shard {shard} is missing")
    await ledger.make_durable()
    # A listing that lags may omit some. What it omits in between exists: without a chunk there is none after it.
    return StoredObjects(shard, manifests, after, range(after + 1, max(numbers, default=after) + 1))


async def topic_files(ledger: Ledger, topic: TopicInfo) -> list[TopicFile]:
    """Return the objects that hold the records of ``topic``, a current description from the leader.

    Raises like `list_objects`.
    """
    objects = await retried(partial(list_objects, ledger))
    return select_files(topic.topic_id, [each.segment for each in topic.segments], objects)


async def terms_of(ledger: Ledger, numbers: Sequence[int]) -> dict[int, int]:
    """Return chunk → the id of the term that wrote it, for ``numbers``, which rise.

    A restored ledger has other chunks under the numbers of those that it lost; the term tells them apart. Terms do not
    return, so it is enough to read the ends of each. Raises like `Ledger.header`.
    """
    found: dict[int, int] = {}
    pending = [(0, len(numbers) - 1)] if numbers else []
    while pending:
        first, last = pending.pop()
        for at in (first, last):
            if numbers[at] not in found:
                found[numbers[at]] = (await ledger.header(numbers[at])).term_id
        if found[numbers[first]] == found[numbers[last]]:
            found |= dict.fromkeys(numbers[first:last], found[numbers[first]])
        else:
            middle = (first + last) // 2
            pending += [(first, middle), (middle + 1, last)]
    return found


def select_files(topic_id: int, segments: Iterable[int], objects: StoredObjects) -> list[TopicFile]:
    """Return the files of the topic's existing ``segments``, oldest range first, then the chunks. Pure."""
    existing = set(segments)
    compacted = [
        TopicFile(
            path=item.path,
            kind="compacted",
            first_chunk=manifest.first,
            last_chunk=manifest.last,
            segment=item.segment,
            first_offset=item.first_offset,
            end_offset=item.end_offset,
        )
        for manifest in objects.manifests
        for item in manifest.objects
        if item.topic_id == topic_id and item.segment in existing
    ]
    return compacted + [
        TopicFile(path=chunk_path(objects.shard, number), kind="chunk", first_chunk=number, last_chunk=number)
        for number in objects.chunks
    ]


async def positions_at(ledger: Ledger, topic: TopicInfo, timestamp_ms: int) -> dict[int, int]:
    """Return segment → offset of its first record stored at ``timestamp_ms`` or later, or its end offset without one.

    ``topic`` is a current description from the leader, so the records it counts are durable.

    Raises LedgerError, ObjectMissingError (the ledger has a gap) or StoreUnavailableError.
    """
    return await retried(lambda: _Search(ledger, topic, timestamp_ms).run())


async def first_chunk_at(ledger: Ledger, numbers: Sequence[int], timestamp_ms: int) -> int:
    """Return how many of the chunks ``numbers``, which rise, are older than ``timestamp_ms``; see `positions_at`."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2 if low else 0  # Often none is older.
        if (await ledger.header(numbers[middle])).at_ms < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    return low


async def first_offsets(ledger: Ledger, topic_id: int, number: int) -> tuple[int, dict[int, int]]:
    header, columns = await ledger.open_records(number)
    return header.at_ms, {segment: first for segment, _, (first, _) in rows_of_topic(columns, topic_id)}


class _Search:
    def __init__(self, ledger: Ledger, topic: TopicInfo, timestamp_ms: int) -> None:
        self._ledger = ledger
        self._topic_id = topic.topic_id
        self._timestamp_ms = timestamp_ms
        self._sealed_at_ms = {segment.segment: segment.sealed_at_ms for segment in topic.segments}
        self._positions = {segment.segment: segment.next_offset for segment in topic.segments}
        self._open: set[int] = set()
        """Segments that existed and were not sealed then, and whose first record has not been found."""
        for segment in topic.segments:
            if segment.created_at_ms >= timestamp_ms:
                self._positions[segment.segment] = 0
            elif segment.sealed_at_ms is None or segment.sealed_at_ms >= timestamp_ms:
                self._open.add(segment.segment)

    async def run(self) -> dict[int, int]:
        if not self._open:
            return self._positions
        found = await list_objects(self._ledger)
        for manifest in found.manifests:
            for item in manifest.objects:
                is_ours = item.topic_id == self._topic_id and item.segment in self._open
                if is_ours and item.last_at_ms >= self._timestamp_ms:
                    self._open.discard(item.segment)
                    self._positions[item.segment] = await self._offset_in(item)
        if self._open:
            await self._search_chunks(found.chunks)
        return self._positions

    async def _offset_in(self, item: CompactedObject) -> int:
        if item.first_at_ms >= self._timestamp_ms:
            return item.first_offset
        data = await self._ledger.store.read(item.path)
        records = await asyncio.to_thread(decode_compacted, data, item)
        return item.first_offset + bisect_left(records.integers("stored_at_ms"), self._timestamp_ms)

    async def _search_chunks(self, listed: range) -> None:
        """Read ``listed``, and on to the end of the ledger: the leader may have counted records behind the listing."""
        begin = listed.start + await first_chunk_at(self._ledger, listed, self._timestamp_ms)
        latest_ms = math.inf
        while self._open:
            end = min(begin + CONCURRENT_CHUNK_READS, listed.stop) if begin < listed.stop else begin + LATE_CHUNK_READS
            group = (first_offsets(self._ledger, self._topic_id, number) for number in range(begin, end))
            for number, found in enumerate(await asyncio.gather(*group, return_exceptions=True), begin):
                if isinstance(found, ObjectMissingError) and number >= listed.stop:
                    return
                if isinstance(found, BaseException):
                    raise found
                at_ms, firsts = found
                self._positions.update({segment: firsts[segment] for segment in self._open & firsts.keys()})
                self._open -= firsts.keys()
                self._open -= {
                    s for s in self._open if (end_ms := self._sealed_at_ms[s]) is not None and end_ms < at_ms
                }
                if number >= listed.stop and at_ms > (latest_ms := min(latest_ms, at_ms + LATE_MS)):
                    return
            begin = end
