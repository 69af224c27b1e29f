"""Divides the records between two positions of a topic into tasks, which other processes read in parallel.

A task is a range of offsets of each of its segments, and a hint which objects hold them. An object that compaction
replaces meanwhile is found by the offsets, so a task always reads the same records.

Manifests state the offsets of compacted objects. For chunks they are unknown: of many chunks, some are read to find
the first and the last one that is needed, and where the tasks divide them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import ge, le
from typing import Final, NamedTuple

from headgate.ledger.compacted import CompactedObject
from headgate.ledger.ledger import Ledger
from headgate.reading.stored_rows import OffsetBounds
from headgate.reading.topic_files import first_offsets, list_objects, retried
from headgate.reading.topic_reader import ReadPlan
from headgate.views.topics import TopicInfo

TASK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of keys, values and headers in compacted objects that are worth a task. Each object is read by one task."""
TASK_CHUNKS: Final = 16
"""Chunks that are worth a task. Fewer are not searched."""
SEARCHED_CHUNKS: Final = 8
"""Chunks that are read to find the next record of a segment."""


class ReadTask(NamedTuple):
    bounds: dict[int, OffsetBounds]
    plan: ReadPlan


async def read_tasks(
    ledger: Ledger,
    topic: TopicInfo,
    bounds: Mapping[int, OffsetBounds],
    first_chunk: int = 1,
    *,
    task_bytes: int = TASK_BYTES,
    task_chunks: int = TASK_CHUNKS,
) -> list[ReadTask]:
    """Return tasks that read each record within ``bounds`` once. None of them is in a chunk before ``first_chunk``.

    Those of chunks come first: they are the next that compaction replaces.

    Raises LedgerError, ObjectMissingError (the ledger has a gap) or StoreUnavailableError.
    """
    bounds = {segment: each for segment, each in bounds.items() if each[0] < each[1]}
    if not bounds:
        return []
    return await retried(partial(_read_tasks, ledger, topic, bounds, first_chunk, task_bytes, task_chunks))


async def first_chunk(ledger: Ledger, topic: TopicInfo, bounds: Mapping[int, OffsetBounds]) -> int:
    """Return a chunk before which no record within ``bounds`` is. It is searched among those that are not compacted.

    Raises as `read_tasks`.
    """
    if not any(first for first, _ in bounds.values()):
        return 1
    found = await retried(partial(list_objects, ledger))
    if any(_within(item, topic.topic_id, bounds) for manifest in found.manifests for item in manifest.objects):
        return 1
    return await _Chunks(ledger, topic, found.chunks, bounds).first() if found.chunks else 1


def _within(item: CompactedObject, topic_id: int, bounds: Mapping[int, OffsetBounds]) -> bool:
    first, end = bounds.get(item.segment, (0, 0))
    return item.topic_id == topic_id and item.first_offset < end and first < item.end_offset


async def _read_tasks(
    ledger: Ledger,
    topic: TopicInfo,
    bounds: dict[int, OffsetBounds],
    first_chunk: int,
    task_bytes: int,
    task_chunks: int,
) -> list[ReadTask]:
    found = await list_objects(ledger, first_chunk)
    objects = [item for each in found.manifests for item in each.objects if _within(item, topic.topic_id, bounds)]
    left = dict(bounds)
    for item in objects:
        left[item.segment] = max(item.end_offset, left[item.segment][0]), bounds[item.segment][1]
    left = {segment: each for segment, each in left.items() if each[0] < each[1]}
    tasks = await _Chunks(ledger, topic, found.chunks, left).tasks(task_chunks) if left else []
    return tasks + [_object_task(group, bounds) for group in _groups(objects, task_bytes)]


def _groups(objects: list[CompactedObject], task_bytes: int) -> Iterator[list[CompactedObject]]:
    """Yield the objects of one task after the other. Those of a segment follow each other."""
    group: list[CompactedObject] = []
    for item in sorted(objects, key=lambda each: (each.segment, each.first_offset)):
        if group and sum(each.size_bytes for each in group) + item.size_bytes > task_bytes:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _object_task(group: list[CompactedObject], bounds: Mapping[int, OffsetBounds]) -> ReadTask:
    own: dict[int, OffsetBounds] = {}
    for item in group:
        first, end = bounds[item.segment]
        known, _ = own.get(item.segment, (max(first, item.first_offset), 0))
        own[item.segment] = known, min(end, item.end_offset)
    return ReadTask(own, ReadPlan(group, 0, []))


class _Chunks:
    def __init__(
        self, ledger: Ledger, topic: TopicInfo, numbers: Sequence[int], bounds: Mapping[int, OffsetBounds]
    ) -> None:
        """Divide the chunks ``numbers``, which have the records within ``bounds``."""
        self._ledger = ledger
        self._topic_id = topic.topic_id
        self._segments = [each for each in topic.segments if each.segment in bounds]
        self._numbers = numbers
        self._bounds = bounds
        self._firsts: dict[int, tuple[int, Mapping[int, int]]] = {}
        """Chunk → when it was stored, and the first offset of each segment in it."""

    async def first(self) -> int:
        """Return a chunk before which none is wanted."""
        begin = {segment: first for segment, (first, _) in self._bounds.items()}
        first, _ = await self._search(lambda starts: self._known(starts, begin, le), 0, len(self._numbers))
        return self._numbers[first]

    async def tasks(self, task_chunks: int) -> list[ReadTask]:
        begin = {segment: first for segment, (first, _) in self._bounds.items()}
        stop = {segment: end for segment, (_, end) in self._bounds.items()}
        first, end = 0, len(self._numbers)
        if end > task_chunks:
            first, _ = await self._search(lambda starts: self._known(starts, begin, le), first, end)
            _, end = await self._search(lambda starts: not self._known(starts, stop, ge), first, end, from_end=True)
        cuts = [(first, begin)]
        for at in range(first + task_chunks, end, task_chunks):
            starts = await self._starts(at)
            if starts.keys() == begin.keys():  # Otherwise the task continues to the next place.
                cuts.append((at, starts))
        return [task for cut, following in pairwise([*cuts, (end, stop)]) for task in self._task(*cut, *following)]

    def _task(self, first: int, begin: Mapping[int, int], end: int, stop: Mapping[int, int]) -> Iterator[ReadTask]:
        """Yield the task of the chunks from the index ``first`` on, unless it has no records."""
        own = {
            segment: (max(bounds[0], begin[segment]), min(bounds[1], stop[segment]))
            for segment, bounds in self._bounds.items()
        }
        if own := {segment: bounds for segment, bounds in own.items() if bounds[0] < bounds[1]}:
            yield ReadTask(own, ReadPlan([], self._numbers[first] - 1, list(self._numbers[first:end])))

    async def _search(
        self, is_before: Callable[[Mapping[int, int]], bool], low: int, high: int, *, from_end: bool = False
    ) -> tuple[int, int]:
        """Return two neighboring indexes. It is the lower one that ``is_before``, as far as that is known.

        Who reads a whole topic, or what is new in it, wants nearly all chunks: looks near one end first.
        """
        step = 1
        while high - low > 1:
            middle = (low + high) // 2
            at = max(middle, high - step) if from_end else min(middle, low + step)
            low, high = (at, high) if is_before(await self._starts(at)) else (low, at)
            step *= 2
        return low, high

    @staticmethod
    def _known(starts: Mapping[int, int], offsets: Mapping[int, int], compare: Callable[[int, int], bool]) -> bool:
        return all(segment in starts and compare(starts[segment], offset) for segment, offset in offsets.items())

    async def _starts(self, index: int) -> dict[int, int]:
        """Return the first offsets in the chunks from ``index`` on, of those segments that a few of them have."""
        found: dict[int, int] = {}
        stop = min(index + SEARCHED_CHUNKS, len(self._numbers))
        for number in self._numbers[index:stop]:
            if number not in self._firsts:
                self._firsts[number] = await first_offsets(self._ledger, self._topic_id, number)
            at_ms, firsts = self._firsts[number]
            if number == self._numbers[index]:
                found = self._not_open(at_ms)
            found = {segment: at for segment, at in firsts.items() if segment in self._bounds} | found
            if len(found) == len(self._bounds):
                return found
        # What is in no later chunk has ended before.
        return found if stop < len(self._numbers) else {s: end for s, (_, end) in self._bounds.items()} | found

    def _not_open(self, at_ms: int) -> dict[int, int]:
        """Return the first offsets, from a chunk stored ``at_ms`` on, of segments created later or sealed before."""
        later = {each.segment: 0 for each in self._segments if each.created_at_ms > at_ms}
        ended = {each.segment: each.next_offset for each in self._segments if (each.sealed_at_ms or at_ms) < at_ms}
        return later | ended
