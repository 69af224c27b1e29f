"""The contract of `KinesisStream`: the same tests on the stream in memory, and on a server."""

import asyncio
import itertools
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Any

import pytest
from botocore.eventstream import EventStream, EventStreamMessage
from botocore.exceptions import ClientError

from headgate.backoff import Backoff
from headgate.errors import HeadgateError
from headgate.kinesis.position import Position, hash_of, iterator_arguments
from headgate.kinesis.stream import (
    LISTING_ATTEMPTS,
    THREADS,
    KinesisStream,
    KinesisUnavailableError,
    Page,
    ShardGoneError,
)
from headgate.process.background import end_tasks
from tests.support.fakes.kinesis_stream import FakeKinesisStream
from tests.support.servers.kinesis_server import environment, kinesis_client, kinesis_server
from tests.support.waiting import until

pytestmark = pytest.mark.real_time

NAMES = itertools.count(1)
ROOT = "shardId-000000000000"


class ServerStream(KinesisStream):
    """A stream on the server, with what the tests change on it."""

    def put(self, key: str, data: bytes) -> str:
        return str(self._client.put_record(StreamName=self.name, PartitionKey=key, Data=data)["SequenceNumber"])

    def split(self, name: str) -> list[str]:
        [shard] = [each for each in self._shards() if each["ShardId"] == name]
        first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        middle = (first + last) // 2 + 1
        return self._children(self._client.split_shard, ShardToSplit=name, NewStartingHashKey=str(middle))

    def merge(self, first: str, second: str) -> str:
        [child] = self._children(self._client.merge_shards, ShardToMerge=first, AdjacentShardToMerge=second)
        return child

    def recreate(self) -> None:
        before = self.summary()["StreamCreationTimestamp"]
        while self.summary()["StreamCreationTimestamp"] == before:  # Some servers give whole seconds.
            self._client.delete_stream(StreamName=self.name)
            self._client.get_waiter("stream_not_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})
            self._client.create_stream(StreamName=self.name, ShardCount=1)
            self._client.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})

    def summary(self) -> dict[str, Any]:
        return dict(self._client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"])

    def _shards(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.list_shards(StreamName=self.name)["Shards"]
        return found

    def _children(self, change: Any, **arguments: str) -> list[str]:
        before = {each["ShardId"] for each in self._shards()}
        change(StreamName=self.name, **arguments)
        while True:
            children = {each["ShardId"] for each in self._shards()} - before
            if children and self.summary()["StreamStatus"] == "ACTIVE":
                return sorted(children)


server = kinesis_server


@pytest.fixture(params=["fake", pytest.param("server", marks=pytest.mark.contract)])
async def stream(request: pytest.FixtureRequest) -> AsyncIterator[FakeKinesisStream | ServerStream]:
    if request.param == "fake":
        yield FakeKinesisStream()
        return
    client, name = kinesis_client(request.getfixturevalue("server")), f"s{next(NAMES)}"
    client.create_stream(StreamName=name, ShardCount=1)
    made = ServerStream(client, name)
    await until(lambda: made.summary()["StreamStatus"] == "ACTIVE")
    yield made
    made.close()


async def pages(stream: FakeKinesisStream | ServerStream, shard: str, limit: int, **arguments: Any) -> list[Page]:
    """Return the pages of a shard up to its end, or up to an empty one."""
    iterator: str | None = await stream.iterator(shard, arguments or iterator_arguments(None, None))
    found: list[Page] = []
    while iterator is not None and not (found and not found[-1].records):
        found.append(await stream.page(iterator, limit))
        iterator = found[-1].iterator
    return found


async def test_a_stream_that_is_created_again_is_not_read(stream: FakeKinesisStream | ServerStream) -> None:
    await stream.shards()
    stream.recreate()
    with pytest.raises(HeadgateError, match="deleted and created again"):
        await stream.iterator(ROOT, iterator_arguments(None, None))


async def test_a_closed_shard_ends_and_an_open_one_does_not(stream: FakeKinesisStream | ServerStream) -> None:
    sequences = [stream.put(f"k{n}", b"%d" % n) for n in range(5)]
    opened = await pages(stream, ROOT, 2)
    stream.split(ROOT)
    closed = await pages(stream, ROOT, 2)

    for found in (opened, closed):
        assert list(zip(sequences, [f"k{n}" for n in range(5)], [b"%d" % n for n in range(5)], strict=True)) == [
            record[:3] for page in found for record in page.records
        ]
        assert found[0].behind_ms >= 0
        assert max(len(page.records) for page in found) == 2
    assert opened[-1].iterator is not None
    assert closed[-1].iterator is None


async def test_the_listing_has_all_shards_their_parents_and_hashes(stream: FakeKinesisStream | ServerStream) -> None:
    first = await stream.shards()
    left, right = stream.split(ROOT)
    child = stream.merge(left, right)
    second = await stream.shards()

    assert first.source == second.source != ""
    assert [(ROOT, [], False)] == [(each.segment, each.parents, each.sealed) for each in first.segments]
    found = {each.segment: each for each in second.segments}
    assert {ROOT: True, left: True, right: True, child: False} == {name: each.sealed for name, each in found.items()}
    assert [[], [ROOT], [ROOT]] == [found[name].parents for name in (ROOT, left, right)]
    assert [left, right] == sorted(found[child].parents)
    assert found[child].hashes == found[ROOT].hashes == ("0", str(2**128 - 1))


async def test_records_go_to_the_shard_of_their_hash(stream: FakeKinesisStream | ServerStream) -> None:
    left, right = stream.split(ROOT)
    for n in range(8):
        stream.put(f"k{n}", b"")

    for shard, low in ((left, True), (right, False)):
        keys = {record[1] for page in await pages(stream, shard, 100) for record in page.records}
        assert {f"k{n}" for n in range(8) if (hash_of(f"k{n}") < 2**127) is low} == keys


async def test_an_iterator_starts_where_it_is_asked_to(stream: FakeKinesisStream | ServerStream) -> None:
    sequences = [stream.put("k", b"%d" % n) for n in range(4)]
    for position, first in ((Position(sequences[1]), 2), (Position(sequences[1], 0), 1)):
        found = await pages(stream, ROOT, 10, **iterator_arguments(position, None))
        assert [b"%d" % n for n in range(first, 4)] == [record[2] for page in found for record in page.records]


async def pushed(
    stream: FakeKinesisStream | ServerStream, consumer_arn: str, position: Position | None, wanted: int
) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < wanted:
        pages = stream.pushed(consumer_arn, ROOT, iterator_arguments(position, None))
        with suppress(KinesisUnavailableError):  # An earlier subscription lasts for some seconds.
            async with aclosing(pages):
                async for page in pages:
                    found += [record[2] for record in page.records]
                    if len(found) >= wanted:
                        break
    return found


async def test_records_are_pushed_to_a_stream_consumer_from_a_position_on(stream, monkeypatch):
    # kinesis-local omits the first event, which says nothing.
    monkeypatch.setattr(EventStream, "get_initial_response", lambda _: EventStreamMessage({}, {}, b"{}", 0))
    arn = await stream.register("headgate")
    assert arn == await stream.register("headgate")
    sequences = [stream.put("k", b"%d" % n) for n in range(4)]
    for position, first in ((None, 0), (Position(sequences[1]), 2), (Position(sequences[1], 0), 1)):
        assert await pushed(stream, arn, position, 4 - first) == [b"%d" % n for n in range(first, 4)]
    with pytest.raises(HeadgateError, match="absent") as raised:
        await pushed(stream, arn.replace("headgate", "absent"), None, 1)
    assert not isinstance(raised.value, ShardGoneError), "the shard is there, and must not count as read"


async def test_what_does_not_exist_is_named(stream: FakeKinesisStream | ServerStream) -> None:
    with pytest.raises(ShardGoneError, match="shardId-000000000009"):
        await stream.iterator("shardId-000000000009", iterator_arguments(None, None))


@pytest.mark.contract
async def test_a_stream_that_does_not_exist_is_named(server: dict[str, str]) -> None:
    with pytest.raises(HeadgateError, match=r"stream nowhere: .*nowhere") as raised:
        await KinesisStream(kinesis_client(server), "nowhere").shards()
    assert not isinstance(raised.value, KinesisUnavailableError)


class Refusing:
    """A client of boto3 that refuses every request."""

    def __init__(self, code: str, status: int) -> None:
        self._error = ClientError(
            {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
            "GetRecords",
        )
        self.asked = 0

    def get_records(self, **_: Any) -> None:
        raise self._error

    def describe_stream_summary(self, **_: Any) -> None:
        self.asked += 1
        raise self._error


@pytest.mark.parametrize(
    ("code", "status", "passes"),
    [
        ("ProvisionedThroughputExceededException", 400, True),
        ("Unknown", 503, True),
        ("AccessDeniedException", 400, False),
        ("ResourceNotFoundException", 400, False),
    ],
)
async def test_only_what_passes_is_tried_again(code: str, status: int, passes: bool) -> None:
    stream = KinesisStream(Refusing(code, status), "s")
    with pytest.raises(HeadgateError, match=code) as raised:
        await stream.page("iterator", 1)
    stream.close()
    assert passes is isinstance(raised.value, KinesisUnavailableError)


@pytest.mark.parametrize(
    ("code", "asked"), [("LimitExceededException", LISTING_ATTEMPTS), ("AccessDeniedException", 1)]
)
async def test_a_listing_that_is_refused_for_now_is_repeated(code: str, asked: int, monkeypatch: pytest.MonkeyPatch):
    """Programs that start at the same time may ask more often than Kinesis allows."""
    monkeypatch.setattr("headgate.kinesis.stream.BACKOFF", Backoff(first_seconds=0.001, longest_seconds=0.001))
    client = Refusing(code, 400)
    with pytest.raises(HeadgateError, match=code):
        await KinesisStream(client, "s").shards()
    assert asked == client.asked


class Pushing:
    """A client of boto3 whose subscriptions push the end of a shard, once they may."""

    get_records = staticmethod(lambda **_: {"Records": []})

    def __init__(self) -> None:
        self.may_push = threading.Event()
        self.waiting = self.closed = 0

    def subscribe_to_shard(self, **_: Any) -> dict[str, Any]:
        return {"EventStream": self}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.waiting += 1
        self.may_push.wait()
        yield {"SubscribeToShardEvent": {"Records": [], "ChildShards": [{}]}}
        raise AssertionError("it was read on after the end")

    def close(self) -> None:
        self.closed += 1


async def test_shards_that_wait_for_pushes_keep_no_request_waiting_and_end_with_their_shard() -> None:
    stream = KinesisStream(client := Pushing(), "s")
    shards = [stream.pushed("arn", f"shard-{n}", {"ShardIteratorType": "TRIM_HORIZON"}) for n in range(THREADS + 1)]
    reading = [asyncio.create_task(anext(each)) for each in shards]
    try:
        await until(lambda: client.waiting == len(shards))
        await stream.page("iterator", 1)
    finally:
        client.may_push.set()
    await asyncio.gather(*reading)
    assert {None} == {await anext(each, None) for each in shards}
    await until(lambda: client.closed == len(shards))
    stream.close()


async def test_the_end_of_a_push_does_not_stop_the_event_loop_until_the_next_event(monkeypatch: pytest.MonkeyPatch):
    """A connection is closed once the thread that reads it has ended, and it waits for what Kinesis pushes."""
    monkeypatch.setattr(EventStream, "get_initial_response", lambda _: EventStreamMessage({}, {}, b"{}", 0))
    asked, ended, in_time = threading.Event(), threading.Event(), list[bool]()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\n\r\n")
            asked.set()
            in_time.append(ended.wait(5))

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as server:
        server.submit(serve)
        stream = KinesisStream(kinesis_client(environment(listening.getsockname()[1])), "s")
        arn = "arn:aws:kinesis:us-east-1:111111111111:stream/s/consumer/c:1"
        reading = asyncio.create_task(anext(stream.pushed(arn, ROOT, iterator_arguments(None, None))))
        await until(lambda: asked.is_set() and any("kinesis-pushed" in each.name for each in threading.enumerate()))
        await end_tasks(reading)
        ended.set()
    stream.close()
    assert [True] == in_time
