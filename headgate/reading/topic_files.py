"""Which objects of a ledger hold the records of a topic, each record once.

Compacted objects hold the records of the oldest chunks, and the chunks after them the rest. A chunk that was compacted
may still exist, and a manifest still names objects of pruned segments, which are deleted: neither is listed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from headgate.errors import ObjectMissingError
from headgate.ledger.compacted import Manifest, manifest_ranges, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_path, compacted_through, ranges_to_read
from headgate.views.topics import TopicInfo

T = TypeVar("T")

MAX_ATTEMPTS: Final = 3
"""Compaction may replace a manifest before it is read; the next compaction is minutes away."""
RETRY_SECONDS: Final = 1.0


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
