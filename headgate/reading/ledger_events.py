"""Reads the events of shards from their ledgers, the newest first.

1. Nothing else remembers events. What was trimmed is none any more, except the first chunk of each term, which is kept.
2. Chunks are read backwards, of the shard that is known the least far back, until enough is known. The cost depends on
   how many chunks lie between the events, so it is limited, and the result says how far it goes back.
3. Names that neither the caller nor an entry that was read knows, as of deleted topics, are shown by id.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from headgate.errors import ObjectMissingError
from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.reading.event_text import event_text
from headgate.reading.topic_files import first_chunk_at
from headgate.views.cluster import EventList, LedgerEvent

MAX_CHUNKS: Final = 10_000
FOLLOW_SECONDS: Final = 1.0
Names = dict[tuple[int, str, int], str]  # (shard, "topic" or "subscription", id) → name


def names_of(topics: Iterable[Any], subscriptions: Iterable[Any]) -> Names:
    """Return the names in descriptions or summaries of topics, and of subscriptions of these topics."""
    shards = {each.topic: each.shard for each in topics}
    names = {(each.shard, "topic", each.topic_id): each.topic for each in topics}
    for each in subscriptions:
        names[shards.get(each.topic, -1), "subscription", each.subscription_id] = each.subscription
    return names


@dataclass(kw_only=True)
class LedgerEvents:
    """Looks for the newest events. `run` may be cancelled: `found` returns what was reached."""

    ledgers: InitVar[Iterable[Ledger]]
    names: Names
    topic_id: InitVar[int | None] = None
    """Only events of this topic, and of its shard. Without a limit, all chunks are read."""
    since_ms: int = 0
    before_ms: float = math.inf
    limit: int | None = None
    at_a_time: int = 16

    def __post_init__(self, ledgers: Iterable[Ledger], topic_id: int | None) -> None:
        self._shards = [_Shard(each, topic_id) for each in ledgers]

    async def run(self) -> None:
        """Read until enough is known. Raises LedgerError or StoreUnavailableError."""
        await asyncio.gather(*(each.open(self.before_ms) for each in self._shards))
        while (reached := self._reached_ms) >= self.since_ms:
            if self.limit is not None and (
                sum(at_ms > reached for at_ms in self._times()) >= self.limit
                or sum(each.chunks_read for each in self._shards) >= MAX_CHUNKS
            ):
                break
            await max(self._shards, key=lambda each: each.reached_ms).read(self.at_a_time)

    def found(self) -> EventList:
        """Return up to ``limit`` events; more only if they have the time of the last one."""
        # A chunk that was not read may have the time of the last one that was.
        first_ms = max(self._reached_ms + 1, self.since_ms)
        times = sorted((each for each in self._times() if each >= first_ms), reverse=True)
        if self.limit is not None and len(times) > self.limit:
            first_ms = times[self.limit - 1]
        events = [each for shard in self._shards for each in self._events(shard.ledger.shard, shard.chunks)]
        events.sort(key=lambda each: (each.at_ms, each.shard, each.chunk))
        newest = tuple(each for each in reversed(events) if first_ms <= each.at_ms < self.before_ms)
        return EventList(events=newest, next=int(min(first_ms, 2**53)) if first_ms > self.since_ms else None)

    async def follow(self) -> AsyncGenerator[LedgerEvent]:
        """Yield the events after those that `run` knew, the oldest first, until cancelled. Raises like `run`."""
        while True:
            for shard in self._shards:
                for event in self._events(shard.ledger.shard, await shard.load(await shard.newer())):
                    yield event
            await asyncio.sleep(FOLLOW_SECONDS)

    @property
    def _reached_ms(self) -> float:
        return max((each.reached_ms for each in self._shards), default=-math.inf)

    def _times(self) -> Iterable[int]:
        return (chunk.header.at_ms for shard in self._shards for chunk in shard.chunks for _ in chunk.entries)

    def _events(self, shard: int, chunks: Iterable[Chunk]) -> list[LedgerEvent]:
        entries = [(chunk.header, each) for chunk in chunks for each in chunk.entries]
        for _, entry in entries:
            for kind in ("topic", "subscription"):
                if (name := getattr(entry, kind, None)) is not None:
                    self.names[shard, kind, getattr(entry, f"{kind}_id")] = name

        def name_of(entry: e.AnyEntry, kind: str) -> str | None:
            found = getattr(entry, f"{kind}_id", None)
            return None if found is None else self.names.get((shard, kind, found), f"{kind} {found}")

        return [
            LedgerEvent(
                at_ms=header.at_ms,
                shard=shard,
                leader_epoch=header.leader_epoch,
                chunk=header.number,
                event=str(type(entry).__struct_config__.tag),
                topic=name_of(entry, "topic"),
                subscription=name_of(entry, "subscription"),
                text=event_text(entry) or "",
            )
            for header, entry in entries
        ]


@dataclass
class _Shard:
    """The ledger of one shard, and those of its chunks that have events, without their other entries."""

    ledger: Ledger
    topic_id: int | None
    chunks: list[Chunk] = field(default_factory=list)
    chunks_read: int = 0
    reached_ms: float = math.inf
    """Time of the oldest chunk that was read; -inf: there is no older one."""
    unread: list[int] = field(default_factory=list)
    newest: int = 0

    async def open(self, before_ms: float) -> None:
        self.unread = await self.newer()
        if before_ms < math.inf:
            del self.unread[await first_chunk_at(self.ledger, self.unread, int(before_ms)) :]
        if not self.unread:
            self.reached_ms = -math.inf

    async def read(self, count: int) -> None:
        self.chunks_read += count
        found = await self.load(self.unread[-count:])
        del self.unread[-count:]
        self.reached_ms = found[0].header.at_ms if found and self.unread else -math.inf
        self.chunks += (each for each in found if each.entries)

    async def newer(self) -> list[int]:
        """Return the numbers of chunks that were not listed before."""
        numbers = await self.ledger.numbers(after=self.newest)
        await self.ledger.make_durable()
        if self.newest and numbers:  # A listing that lags may omit some before its last one.
            numbers = list(range(self.newest + 1, numbers[-1] + 1))
        self.newest = numbers[-1] if numbers else self.newest
        return numbers

    async def load(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return these chunks with their events only, and without those that were trimmed meanwhile."""
        found = await asyncio.gather(*map(self.ledger.read, numbers), return_exceptions=True)
        chunks = list[Chunk]()
        for each in found:
            if isinstance(each, Chunk):
                chunks.append(Chunk(each.header, tuple(filter(self._is_event, each.entries))))
            elif not isinstance(each, ObjectMissingError):
                raise each
        return chunks

    def _is_event(self, entry: e.AnyEntry) -> bool:
        is_wanted = self.topic_id is None or getattr(entry, "topic_id", None) in (None, self.topic_id)
        return is_wanted and event_text(entry) is not None
