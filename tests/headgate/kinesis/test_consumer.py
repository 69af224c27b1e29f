"""`KinesisConsumer` in virtual time: the real leader, and a stream in memory."""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from headgate.client.admin import Admin
from headgate.client.processing.schedule import LookAhead, RetryPolicy
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, HandlerFailedError, HeadgateError, NoLeaderError, RequestRejectedError
from headgate.kinesis import KinesisConsumer, KinesisRecord
from headgate.kinesis import consumer as module
from headgate.kinesis.stream import IteratorExpiredError, KinesisUnavailableError
from headgate.model.identifiers import Generation, Offset, SegmentId
from tests.headgate.kinesis.test_stream import PACKED, RECORDS
from tests.support.fakes.kinesis_stream import FakeKinesisStream
from tests.support.waiting import until
from tests.support.worlds.external_topic import ExternalTopicShard, world
from tests.support.worlds.one_shard_programs import client

KEYS = [f"k{number}" for number in range(8)]
SECONDS = 240


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeKinesisStream:
    made = FakeKinesisStream()
    monkeypatch.setattr(module, "KinesisStream", lambda *_: made)
    return made


@asynccontextmanager
async def consuming(cluster: ExternalTopicShard, **more: Any) -> AsyncIterator[KinesisConsumer]:
    async with (
        client(cluster, more.get("name", "a")) as shared,
        KinesisConsumer(shared, stream="s", subscription="sub", **more) as consumer,
    ):
        yield consumer


class Reader:
    """Remembers what it handled, in order."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, str]] = []
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.busy: set[bytes] = set()
        self.fails_at: bytes | None = None
        self.pace_seconds = 0.01
        self.readers: list[str] = []
        """Who has handled each record."""

    async def __call__(self, record: KinesisRecord) -> None:
        assert record.key not in self.busy, "one key, two handlers"
        self.busy.add(record.key)
        try:
            await asyncio.sleep(self.pace_seconds)
            if record.value == self.fails_at:
                raise ValueError(record.value)
        finally:
            self.busy.remove(record.key)
        self.handled.append((record.shard, record.value.decode()))
        self.by_key[record.key.decode()].append(int(record.value))

    @asynccontextmanager
    async def reading(self, cluster: ExternalTopicShard, **more: Any) -> AsyncIterator[asyncio.Task[Any]]:
        async with consuming(cluster, **more) as consumer:

            async def handle(record: KinesisRecord) -> None:
                await self(record)
                self.readers.append(consumer.name)

            task = asyncio.create_task(consumer.run(handle, concurrency=4, look_ahead=LookAhead(max_records=50)))
            try:
                yield task
            finally:
                consumer.stop()
                await asyncio.wait([task])


def put(stream: FakeKinesisStream, first: int, end: int) -> None:
    for number in range(first, end):
        for key in KEYS:
            stream.put(key, str(number).encode())


def whole(end: int, first: int = 0) -> dict[str, list[int]]:
    return {key: list(range(first, end)) for key in KEYS}


@pytest.mark.parametrize("stream_consumer", [None, "headgate"], ids=["asked", "pushed"])
async def test_a_stream_that_is_resharded_is_read_once_and_in_order_by_two_programs(stream, stream_consumer):
    reader, more = Reader(), {"stream_consumer": stream_consumer}
    put(stream, 0, 5)
    left, right = stream.split("shardId-000000000000")
    put(stream, 5, 10)
    async with (
        world() as (cluster, _),
        reader.reading(cluster, name="one", **more),
        reader.reading(cluster, name="two", **more),
    ):
        await until(lambda: reader.by_key == whole(10), SECONDS)
        lower, upper = stream.split(left)
        put(stream, 10, 15)
        stream.merge(upper, right)
        put(stream, 15, 20)
        await until(lambda: reader.by_key == whole(20), 20)  # sooner than the next listing
        stream.refusals = 7
        stream.expire_iterators()
        put(stream, 20, 25)
        await until(lambda: reader.by_key == whole(25), SECONDS)
    assert lower in {shard for shard, _ in reader.handled}
    assert (stream.pushed_records > 0) == (stream_consumer is not None)


async def test_a_busy_shard_moves_to_a_program_that_joins_and_no_record_is_handled_twice(stream: FakeKinesisStream):
    reader = Reader()
    reader.pace_seconds = 0.5
    stream.split("shardId-000000000000")
    put(stream, 0, 40)
    async with world() as (cluster, _), reader.reading(cluster, name="one", max_records=5):
        await until(lambda: len(reader.handled) > 20, SECONDS)
        assert len(stream.requests) < 20, "a program reads no further ahead than `max_records`"
        async with reader.reading(cluster, name="two"):
            await until(lambda: "two" in reader.readers, 5)
            await until(lambda: reader.by_key == whole(40), SECONDS)


async def test_the_backlog_has_the_age_of_the_oldest_unhandled_record_while_a_program_reads_it(stream) -> None:
    reader = Reader()
    reader.pace_seconds = 30.0
    async with world() as (cluster, admin):

        async def seen() -> tuple[int | None, float | None]:
            (found,) = await admin.backlog("s", "sub")
            return found.records, found.oldest_ms and round((found.as_of_ms - found.oldest_ms) / 60_000, 1)

        stream.now_ms = cluster.now_ms() - 500_000
        put(stream, 0, 1)
        async with reader.reading(cluster):
            await asyncio.sleep(20)
            assert await seen() == (None, pytest.approx(8.5, abs=0.2))
            await until(lambda: reader.by_key == whole(1), SECONDS * 2)
            await asyncio.sleep(20)
            assert await seen() == (0, None)
        assert await seen() == (None, None), "no worker reads it"


async def test_a_program_continues_where_another_one_stopped_within_a_packed_record(stream: FakeKinesisStream) -> None:
    stream.put("customer-1", PACKED)
    seen: list[bytes] = []

    async def some(record: KinesisRecord) -> None:
        if len(seen) == 2:
            await asyncio.sleep(SECONDS)
        seen.append(record.value)

    async def rest(record: KinesisRecord) -> None:
        seen.append(record.value)

    async with world() as (cluster, _):
        for handler, count in ((some, 2), (rest, 5)):
            async with consuming(cluster) as consumer:
                task = asyncio.create_task(consumer.run(handler, stop_seconds=1))
                await until(lambda wanted=count: len(seen) == wanted, SECONDS)
                consumer.stop()
                await task
    assert sorted(each.data for each in RECORDS) == sorted(seen)


@pytest.mark.parametrize("expired", [True, False])
async def test_what_was_resharded_twice_meanwhile_is_read_and_what_has_expired_is_reported(stream, caplog, expired):
    reader = Reader()
    put(stream, 0, 3)
    async with world() as (cluster, _):
        async with reader.reading(cluster):
            await until(lambda: reader.by_key == whole(3), SECONDS)
        put(stream, 3, 5)
        children = stream.split("shardId-000000000000")
        put(stream, 5, 7)
        for child in children:
            stream.split(child)
        put(stream, 7, 9)
        stream.expire(*["shardId-000000000000", *children] * expired)
        async with reader.reading(cluster):
            wanted = {key: [0, 1, 2, 7, 8] for key in KEYS} if expired else whole(9)
            await until(lambda: reader.by_key == wanted, SECONDS)
    assert ("kinesis.shard_expired shard='shardId-000000000000'" in caplog.text) == expired


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000], ids=["", "leader is an hour ahead"])
@pytest.mark.parametrize("start", ["latest", "time"])
async def test_a_new_subscription_may_start_late(stream: FakeKinesisStream, start: str, ahead_ms: int) -> None:
    reader = Reader()
    async with world() as (cluster, _):
        stream.now_ms = cluster.now_ms() - 60_000
        put(stream, 0, 3)
        [left, _right] = stream.split("shardId-000000000000")
        put(stream, 3, 5)
        wanted = stream.at()
        stream.now_ms += 120_000 if start == "latest" else 0
        cluster.clock_ahead_ms = ahead_ms
        async with reader.reading(cluster, start="latest" if start == "latest" else wanted):
            put(stream, 5, 7)
            stream.split(left)
            put(stream, 7, 9)
            await until(lambda: reader.by_key == whole(9, 5), SECONDS)


async def test_a_later_start_skips_nothing_of_a_subscription_and_after_a_seek_the_oldest_record_is_the_first(stream):
    """A program that names the present time is started again: shards without a checkpoint, and new ones, lose nothing.

    Nor do they if the order of the subscription is changed meanwhile.
    """
    reader = Reader()
    async with world() as (cluster, _), client(cluster, "admin") as shared, Admin(shared) as admin:
        stream.now_ms = cluster.now_ms() - 1
        put(stream, 0, 1)
        for first in (1, 4):
            async with reader.reading(cluster, start=stream.at()):
                await asyncio.sleep(30)
            stream.now_ms = cluster.now_ms()
            put(stream, first, first + 2)
            await asyncio.sleep(1)
            await admin.set_order("s", "sub", "none" if first == 1 else "strict")
            stream.split(next(name for name, shard in stream.known.items() if not shard.closed))
            put(stream, first + 2, first + 3)
        async with reader.reading(cluster, start="latest"):
            await until(lambda: reader.by_key == whole(7, 1), SECONDS)
            reader.by_key.clear()
            await admin.seek("s", "sub", to="earliest")
            await until(lambda: reader.by_key == whole(7), SECONDS)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize("expired", [0, 1, 2, 3])
async def test_records_that_may_have_expired_unread_are_reported(stream, caplog, expired, closed):
    reader = Reader()
    stream.put("k", b"0")
    async with world() as (cluster, _):
        async with reader.reading(cluster):
            await until(lambda: reader.by_key["k"] == [0], SECONDS)
        for number in (1, 2):
            stream.put("k", b"%d" % number)
        del stream.known["shardId-000000000000"].records[:expired]
        if closed:
            stream.split("shardId-000000000000")
        stream.put("k", b"3")
        async with reader.reading(cluster):
            await until(lambda: reader.by_key["k"][-1] == 3, SECONDS)
    left = [1, 2][max(0, expired - 1) :]
    assert reader.by_key["k"] == [0, *left, 3]
    assert caplog.text.count("kinesis.records_expired shard='shardId-000000000000'") == (expired > 0)


async def test_a_stream_that_was_created_again_is_another_source(stream: FakeKinesisStream) -> None:
    reader = Reader()
    put(stream, 0, 3)
    async with world() as (cluster, _):
        async with reader.reading(cluster) as running:
            await until(lambda: reader.by_key == whole(3), SECONDS)
            stream.recreate()
            put(stream, 0, 1)
            await asyncio.wait([running], timeout=SECONDS)
            with pytest.raises(HeadgateError, match="deleted and created again"):
                await running
        with pytest.raises(RequestRejectedError, match=r"its source is 's of 1\.250'"):
            async with reader.reading(cluster):
                pass
    assert whole(3) == reader.by_key


async def test_a_record_whose_handler_fails_is_the_first_of_the_next_program(stream: FakeKinesisStream) -> None:
    reader = Reader()
    reader.fails_at = b"3"
    put(stream, 0, 6)
    async with world() as (cluster, _):
        async with consuming(cluster) as consumer:
            with pytest.raises(ConfigError, match="use 'stop' or 'skip'"):
                await consumer.run(reader, retry=RetryPolicy(then="park"))
            with pytest.raises(HandlerFailedError, match="the record of s in segment 0 at offset"):
                await consumer.run(reader, retry=RetryPolicy(attempts=2))
        assert whole(3) == reader.by_key
        reader.fails_at = None
        async with reader.reading(cluster):
            await until(lambda: reader.by_key == whole(6), SECONDS)


async def test_a_second_cancellation_cancels_the_handlers_and_nothing_runs_on(stream: FakeKinesisStream) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(_: KinesisRecord) -> None:
        began.set()
        try:
            await asyncio.sleep(SECONDS)
        finally:
            ended.set()

    put(stream, 0, 1)
    async with world() as (cluster, _), consuming(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await began.wait()
        for _ in range(2):
            assert running.cancel()
            await asyncio.sleep(1)
        assert running.cancelled()
        assert ended.is_set()
        left = {each.get_coro().__qualname__ for each in asyncio.all_tasks()}
        assert {"KinesisConsumer._follow", "Runner.run"}.isdisjoint(left)


@pytest.mark.parametrize("what", ["close: it would wait", "run: this consumer has run"])
async def test_a_handler_that_would_wait_for_itself_fails_at_once(what: str, stream: FakeKinesisStream) -> None:
    async def handle(_: KinesisRecord) -> None:
        await (consumer.__aexit__() if what.startswith("close") else consumer.run(handle))

    put(stream, 0, 1)
    async with world() as (cluster, _), consuming(cluster) as consumer:
        with pytest.raises(HandlerFailedError, match=what):
            await asyncio.wait_for(consumer.run(handle, retry=RetryPolicy(attempts=1)), 4)


async def test_a_program_that_starts_lists_the_shards_again_if_another_one_has_imported_newer_ones(stream, monkeypatch):
    reader = Reader()
    old = await stream.shards()
    put(stream, 0, 3)
    stream.split("shardId-000000000000")
    put(stream, 3, 6)
    listings, list_now = [old], stream.shards

    async def listed() -> ExternalLayout:
        return listings.pop() if listings else await list_now()

    async with world() as (cluster, admin):
        await admin.import_topic("s", await list_now())
        monkeypatch.setattr(stream, "shards", listed)
        async with reader.reading(cluster):
            await until(lambda: reader.by_key == whole(6), SECONDS)


async def test_what_was_read_of_a_shard_that_is_not_held_any_more_is_not_handled() -> None:
    shards = module._Shards()
    for generation in (1, 2, 3):
        shards.queue.put_nowait(KinesisRecord("s", SegmentId(0), Offset(0), b"k", b"", 0, Generation(generation)))
    shards.holdings |= {(0, generation): module._HeldShard(cast("Any", None)) for generation in (2, 3)}
    shards.holdings[0, 2].stopped = True
    assert [3] == [each.generation for each in await anext(shards.records())]


def test_more_records_at_once_than_kinesis_returns_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_records=10001 has to be 1 to 10000"):
        KinesisConsumer(cast("Any", None), stream="s", subscription="sub", max_records=10_001)


async def test_a_packed_record_of_another_shard_is_dropped_also_by_a_program_that_did_not_import_the_shards(
    stream: FakeKinesisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finds no leader to import them, or may not list them for a moment."""
    seen: list[bytes] = []
    imported, refused = list[int](), itertools.cycle((True, False))
    import_topic, list_now = Admin.import_topic, stream.shards

    async def import_once(admin: Admin, topic: str, layout: ExternalLayout) -> Any:
        imported.append(len(layout.segments))
        if imported.count(5) > 1:
            raise NoLeaderError("no leader")
        return await import_topic(admin, topic, layout)

    async def listed() -> ExternalLayout:
        if 5 in imported and next(refused):
            raise KinesisUnavailableError("slow down")
        return await list_now()

    monkeypatch.setattr(Admin, "import_topic", import_once)
    monkeypatch.setattr(stream, "shards", listed)

    async def handle(record: KinesisRecord) -> None:
        seen.append(record.value)

    _, upper = stream.split("shardId-000000000000")
    async with world() as (cluster, _), contextlib.AsyncExitStack() as stack:
        programs = [await stack.enter_async_context(consuming(cluster, name=name)) for name in ("one", "two", "three")]
        tasks = [asyncio.create_task(each.run(handle)) for each in programs]
        await asyncio.sleep(10)
        stream.split(upper)
        for key in ("k1", "k3"):  # One in each of the new shards, as the packed records are.
            stream.put(key, PACKED)
        await asyncio.sleep(15)
        for each in programs:
            each.stop()
        await asyncio.gather(*tasks)
    assert sorted(each.data for each in RECORDS) == sorted(seen)


async def test_a_shard_whose_program_hangs_is_read_by_another_until_it_continues(stream: FakeKinesisStream) -> None:
    reader, slow, released = Reader(), Reader(), asyncio.Event()
    stream.split("shardId-000000000000")
    async with world() as (cluster, admin):
        stream.now_ms = cluster.now_ms() - 3_600_000  # Both are behind, and one of them makes progress.
        async with reader.reading(cluster, name="one"), consuming(cluster, name="two") as two:

            async def hang(record: KinesisRecord) -> None:
                await released.wait()
                await slow(record)

            running = asyncio.create_task(two.run(hang))
            await until(lambda: len(two._external.segments) == 1, SECONDS)
            await admin.set_delivery_policy("s", "sub", max_processing_seconds=60)
            for number in range(30):
                put(stream, number, number + 1)
                await asyncio.sleep(5)
            await until(lambda: reader.by_key == whole(30), 30)
            assert ([], {}) == (two._external.segments, slow.by_key)
            released.set()
            await until(lambda: len(two._external.segments) == 1, SECONDS)
            two.stop()
            await running
    assert 1 == cluster.registry.get_sample_value("headgate_segments_stalled_total", {"outcome": "moved"})


async def test_a_program_that_has_lost_a_shard_begins_no_record_of_it(stream: FakeKinesisStream) -> None:
    """One that was only revoked would: records before one that was begun, because the next program repeats them."""
    begun: list[tuple[str, bytes]] = []

    async def handle(name: str, seconds: dict[bytes, float], record: KinesisRecord) -> None:
        begun.append((name, record.key + record.value))
        await asyncio.sleep(seconds[record.key])

    for key, value in ("a0", "a1", "b0"):
        stream.put(key, value.encode())
    async with world() as (cluster, _), consuming(cluster, name="one") as one:
        running = asyncio.create_task(one.run(partial(handle, "one", {b"a": 300, b"b": 400}), concurrency=2))
        await until(lambda: len(begun) == 2)
        cluster.broker.cut("one")
        async with consuming(cluster, name="two") as two:
            following = asyncio.create_task(two.run(partial(handle, "two", {b"a": 0, b"b": 0})))
            await asyncio.sleep(350)
            assert [("one", b"a0"), ("one", b"b0"), *(("two", each) for each in (b"a0", b"a1", b"b0"))] == begun
            for each in (one, two):
                each.stop()
            await asyncio.wait([running, following])


async def test_no_shard_moves_while_the_programs_are_the_same(stream: FakeKinesisStream) -> None:
    reader = Reader()
    stream.split(stream.split("shardId-000000000000")[0])
    async with world() as (cluster, admin), reader.reading(cluster, name="one"), reader.reading(cluster, name="two"):

        async def held() -> list[Any]:
            found = (await admin.describe_subscription("s", "sub")).segments
            return [(each.segment, each.consumer, each.generation) for each in found if each.consumer]

        await asyncio.sleep(60)
        before = await held()
        put(stream, 0, 6)
        await asyncio.sleep(10 * module.LISTING_SECONDS)
        assert (before, reader.by_key) == (await held(), whole(6))


async def test_an_iterator_that_always_expires_is_paced_and_a_shard_that_cannot_be_read_ends_the_program(
    stream: FakeKinesisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as (cluster, _), Reader().reading(cluster) as running:
        monkeypatch.setattr(stream, "page", page := AsyncMock(side_effect=[IteratorExpiredError("x")] * 1000))
        await asyncio.sleep(60)
        assert 100 < page.await_count <= 300, "five requests a second"
        page.side_effect = HeadgateError("stream s: AccessDenied")
        with pytest.raises(HeadgateError, match="AccessDenied"):
            await asyncio.wait_for(running, 5)
