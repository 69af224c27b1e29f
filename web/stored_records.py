"""Shows the newest stored records of a topic to a client that may consume it, and the newest events to all readers.

1. Records are data, so a client needs a token whose holder the access file lets consume the topic. Without an access
   file, or a tokens file, no client gets any: on loopback every program of the machine could ask.
2. Objects are read for `MAX_SECONDS` and up to `MAX_BYTES`, one at a time.
3. Such work of seconds runs in a thread with an event loop of its own (`OwnLoop`): the daemon's loop does not wait.
"""

import asyncio
import codecs
import math
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from copy import copy
from typing import Any, Final, TypeVar

from headgate.errors import LedgerError, StoreError
from headgate.ledger.ledger import Ledger
from headgate.model.layout import segment_hash
from headgate.model.text import as_bytes, as_text
from headgate.reading.ledger_events import LedgerEvents, names_of
from headgate.reading.topic_reader import ObjectTooLargeError, TopicReader
from headgate.storage.object_store import Store, open_store
from headgate.views.cluster import EventList
from headgate.views.topics import TopicInfo
from shard.access.rules import Act, Action
from web.access import HttpAccess
from web.api.documents import RecordData, RecordDocument, RecordsDocument
from web.api.overview import NotAnsweredError, StatusSource, UnknownNameError
from web.api.query import InvalidQueryError, Query

MAX_RUNNING: Final = 2

ValueT = TypeVar("ValueT")
MAX_SECONDS: Final = 5.0
MAX_BYTES: Final = 64 * 1024 * 1024
OBJECT_BYTES: Final = MAX_BYTES
"""A larger compacted object is not read."""
SHOWN_BYTES: Final = 4096
"""So many bytes of a key, and of a value, are shown."""


class OwnLoop:
    def __init__(self, name: str) -> None:
        self._name = name
        self._running = asyncio.Semaphore(MAX_RUNNING)

    async def run(self, work: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        """Return what ``work`` returns. Raises NotAnsweredError if `MAX_RUNNING` others have not ended."""
        if self._running.locked():
            raise NotAnsweredError(f"{MAX_RUNNING} {self._name} are under way; try again soon")
        async with self._running:
            return await asyncio.to_thread(lambda: asyncio.run(work()))


class StoredRecords:
    def __init__(self, source: StatusSource, ledger_url: str, access: Callable[[], HttpAccess]) -> None:
        self._source = source
        self._ledger_url = ledger_url
        self._access = access
        self._loop = OwnLoop("readings of the ledger")

    async def newest(self, topic: str, query: Query, authorization: str | None) -> RecordsDocument:
        """Return the newest records. Raises ForbiddenError, UnknownNameError, InvalidQueryError or NotAnsweredError."""
        self._access().require(authorization, Act(Action.CONSUME, topic))
        document = await self._source.topic(topic, own=False)
        if document.topic.external is not None:
            raise InvalidQueryError(f"topic {topic!r} is external: headgate stores no records of it")
        if query.segment not in (None, *(each.segment for each in document.topic.segments)):
            raise InvalidQueryError(f"topic {topic!r} has no segment {query.segment}; it may have been pruned")
        records, complete = await self._run(lambda: self._read(document.topic, query))
        return RecordsDocument(as_of_ms=document.as_of_ms, topic=topic, records=tuple(records), complete=complete)

    async def _read(self, topic: TopicInfo, query: Query) -> tuple[list[RecordDocument], bool]:
        """Return the newest records, and whether older ones were looked for as far as needed."""
        try:
            key = None if query.key is None else as_bytes(query.key, query.key_encoding)
        except ValueError as error:
            raise InvalidQueryError(str(error)) from None
        ends = {
            each.segment: each.next_offset
            for each in topic.segments
            if query.segment in (None, each.segment)
            and (key is None or each.first_hash <= segment_hash(key) <= each.last_hash)
        }
        ledger, found = Ledger(limited(open_store(self._ledger_url)), topic.shard), list[RecordDocument]()
        blocks = TopicReader(ledger, topic, starts=ends, key=key).newest(at_a_time=1, object_bytes=OBJECT_BYTES)
        try:
            async with asyncio.timeout(MAX_SECONDS), aclosing(blocks):
                async for records in blocks:
                    for each in records[: query.last - len(found)]:
                        headers = tuple((name, shown(value)) for name, value in each.headers)
                        found.append(RecordDocument(*each[:3], shown(each.key), shown(each.value), headers))
                    if len(found) == query.last:
                        return found, True
        except (TimeoutError, ObjectTooLargeError):
            return found, False
        return found, True

    async def events(self, query: Query) -> EventList:
        """Return the newest events. Raises UnknownNameError or NotAnsweredError."""
        overview = await self._source.overview()
        wanted = [each for each in overview.topics if each.topic == query.topic]
        if query.topic is not None and not wanted:
            raise UnknownNameError(f"there is no topic {query.topic[:100]!r}")

        async def read() -> EventList:
            store = limited(open_store(self._ledger_url))
            events = LedgerEvents(
                ledgers=[Ledger(store, each.shard) for each in wanted or overview.cluster.shards],
                names=names_of(overview.topics, overview.subscriptions),
                topic_id=wanted[0].topic_id if wanted else None,
                since_ms=query.since_ms,
                before_ms=query.before_ms or math.inf,
                limit=query.limit,
                at_a_time=1,
            )
            with suppress(TimeoutError, ObjectTooLargeError):
                async with asyncio.timeout(MAX_SECONDS):
                    await events.run()
            return events.found()

        return await self._run(read)

    async def _run(self, read: Callable[[], Coroutine[Any, Any, ValueT]]) -> ValueT:
        try:
            return await self._loop.run(read)
        except (LedgerError, StoreError) as error:
            raise NotAnsweredError(f"the ledger cannot be read: {error}") from error


def shown(data: bytes) -> RecordData:
    """Return the beginning of ``data`` as text, or as base64 if it is no text."""
    first = data[:SHOWN_BYTES]
    try:
        # A character that the limit has cut is left out.
        text = codecs.getincrementaldecoder("utf-8")().decode(first, final=len(first) == len(data))
    except UnicodeDecodeError:
        return RecordData(*as_text(first), len(data))
    return RecordData(text, "utf-8", len(data))


def limited(store: Store) -> Store:
    """Return a view of ``store``: up to `MAX_BYTES` are read from it, and then it raises ObjectTooLargeError."""
    store, read_bytes, read_all = copy(store), 0, store.read

    async def read(path: str) -> bytes:
        nonlocal read_bytes
        if read_bytes >= MAX_BYTES:
            raise ObjectTooLargeError(f"{MAX_BYTES} bytes were read before {path}")
        data = await read_all(path)
        read_bytes += len(data)
        return data

    store.read = read  # type: ignore[method-assign]
    return store
