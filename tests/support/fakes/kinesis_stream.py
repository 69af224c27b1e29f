"""A stream in memory, with the interface of `headgate.kinesis.stream.KinesisStream`."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headgate.client.source_listing import KINESIS_HASH_BITS, ExternalLayout
from headgate.errors import HeadgateError
from headgate.kinesis.position import hash_of
from headgate.kinesis.stream import IteratorExpiredError, KinesisUnavailableError, Page, ShardGoneError
from headgate.protocol.requests import SegmentImport

Record = tuple[str, str, bytes, int]


@dataclass
class Shard:
    hashes: tuple[int, int]
    parents: list[str]
    records: list[Record] = field(default_factory=list)
    closed: bool = False


class FakeKinesisStream:
    """Time is ``now_ms``, which each record moves by one millisecond."""

    def __init__(self, name: str = "s") -> None:
        self.name, self.id = name, ""
        self.created = 1
        self.now_ms = 1_800_000_000_000
        self.refusals = 0
        """So many of the next requests for records are refused for now."""
        self.requests: list[str] = []
        self.registered: set[str] = set()
        self.pushes = 3
        self.pushed_records = 0
        self.known: dict[str, Shard] = {}
        self._made = self._shards_made = 0
        self._epoch = 0
        """Iterators of earlier epochs have expired."""
        self._add((0, 2**KINESIS_HASH_BITS - 1))

    def close(self) -> None:
        self.listed = 0

    def _require_same(self) -> None:
        self.listed = getattr(self, "listed", 0) or self.created
        if self.listed != self.created:
            raise HeadgateError(f"stream {self.name} was deleted and created again: it needs another topic")

    async def shards(self) -> ExternalLayout:
        self._require_same()
        segments = [
            SegmentImport(
                segment=name,
                parents=shard.parents,
                hashes=(str(shard.hashes[0]), str(shard.hashes[1])),
                sealed=shard.closed,
            )
            for name, shard in self.known.items()
        ]
        return ExternalLayout(segments, "opaque", KINESIS_HASH_BITS, f"{self.name} of {self.created}.250", "expired")

    async def iterator(self, shard: str, arguments: dict[str, Any]) -> str:
        self._require_same()
        if shard not in self.known:
            raise ShardGoneError(f"{shard} does not exist")
        records = self.known[shard].records
        at, sequence = 0, arguments.get("StartingSequenceNumber")
        if sequence is not None and int(sequence) > self._made:
            raise HeadgateError(f"{sequence} is of another stream")
        match arguments["ShardIteratorType"]:
            case "AT_SEQUENCE_NUMBER":
                at = sum(int(each[0]) < int(sequence) for each in records)
            case "AFTER_SEQUENCE_NUMBER":
                at = sum(int(each[0]) <= int(sequence) for each in records)
            case "AT_TIMESTAMP":
                at = sum(each[3] < arguments["Timestamp"].timestamp() * 1000 for each in records)
        return f"{shard} {at} {self._epoch}"

    async def page(self, iterator: str, max_records: int) -> Page:
        name, at, epoch = iterator.split()
        self.requests.append(name)
        if self.refusals:
            self.refusals -= 1
            raise KinesisUnavailableError("slow down")
        if int(epoch) != self._epoch:
            raise IteratorExpiredError(iterator)
        shard = self.known[name]
        end = min(int(at) + max_records, len(shard.records))
        ended = shard.closed and end == len(shard.records)
        behind_ms = 0 if end == len(shard.records) else self.now_ms - shard.records[end][3]
        return Page(shard.records[int(at) : end], None if ended else f"{name} {end} {epoch}", behind_ms)

    async def register(self, name: str) -> str:
        self.registered.add(name)
        return f"{self.name}/{name}"

    async def pushed(self, consumer_arn: str, shard: str, arguments: dict[str, Any]) -> AsyncGenerator[Page]:
        """Yield a page each second, and as many as `pushes` says."""
        if consumer_arn.removeprefix(f"{self.name}/") not in self.registered:
            raise HeadgateError(f"{consumer_arn} does not exist")
        _, at, _ = (await self.iterator(shard, arguments)).split()
        for _ in range(self.pushes):
            await asyncio.sleep(1)
            records = self.known[shard].records[int(at) :]
            at = str(int(at) + len(records))
            self.pushed_records += len(records)
            yield Page(records, None, 0)

    def put(self, key: str, data: bytes) -> str:
        """Store a record in the open shard of its key; return its sequence number."""
        self._made += 1
        self.now_ms += 1
        [shard] = [
            each for each in self.known.values() if not each.closed and each.hashes[0] <= hash_of(key) <= each.hashes[1]
        ]
        shard.records.append((str(self._made), key, data, self.now_ms))
        return str(self._made)

    def split(self, name: str) -> list[str]:
        self.known[name].closed = True
        first, last = self.known[name].hashes
        middle = (first + last) // 2
        return [self._add((first, middle), name), self._add((middle + 1, last), name)]

    def merge(self, first: str, second: str) -> str:
        for name in (first, second):
            self.known[name].closed = True
        return self._add((self.known[first].hashes[0], self.known[second].hashes[1]), first, second)

    def expire(self, *names: str) -> None:
        for name in names:
            del self.known[name]

    def expire_iterators(self) -> None:
        self._epoch += 1

    def recreate(self) -> None:
        """Delete the stream, and create one of its name."""
        self.__init__(self.name)  # type: ignore[misc]
        self.created = 2

    def at(self) -> datetime:
        """Return the time of the next record."""
        return datetime.fromtimestamp((self.now_ms + 1) / 1000).astimezone()

    def _add(self, hashes: tuple[int, int], *parents: str) -> str:
        name = f"shardId-{self._shards_made:012}"
        self._shards_made += 1
        self.known[name] = Shard(hashes, list(parents))
        return name
