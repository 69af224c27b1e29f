"""QUEUE: negative acknowledgements, time-outs, delivery counts and dead letters, with the real leader of a shard.

Over a fake broker and store, in virtual time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from controller.cluster.own_status import shard_statuses
from controller.leader.shard_controller import ShardController
from controller.leadership.policy.transitions import Role
from headgate.client.admin import Admin
from headgate.client.consumer import ConsumedRecord, Consumer
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.client.processing.schedule import BatchPolicy, LookAhead, RetryPolicy
from headgate.client.producer import Producer
from headgate.errors import ConfigError, DeliveryFailedError, HeadgateError, NoLeaderError, RequestRejectedError
from headgate.model.headers import MAX_HEADER_BYTES, MAX_HEADERS, Header, origin_of, without_origin
from headgate.protocol.replies import Acknowledged
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from shard.subscriptions.deliveries import MAX_DEAD_LETTERS
from tests.support.logged import errors_of
from tests.support.waiting import until
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, orders, produce, reader

QUEUE: dict[str, Any] = {"subscription": "jobs", "type": "QUEUE"}
REDELIVER = RetryPolicy(attempts=1, then="redeliver")


@asynccontextmanager
async def jobs(records: int = 3, segments: int = 1, **policy: Any) -> AsyncIterator[tuple[OneShard, Admin]]:
    """Return a shard with ``records`` in topic orders, a queue of that policy, and topic dead."""
    async with orders(segments) as (world, admin):
        await admin.create_topic("dead")
        await admin.create_subscription("orders", "jobs", type="QUEUE", start="earliest")
        if policy:
            await admin.set_delivery_policy("orders", "jobs", **policy)
        await produce(world, records)
        yield world, admin


async def take(consumer: Consumer, number: int) -> list[ConsumedRecord]:
    async with asyncio.timeout(600):
        return [await anext(consumer) for _ in range(number)]


async def nothing_comes(consumer: Consumer, seconds: float) -> None:
    assert [] == await consumer.get_many(1, timeout_seconds=seconds)


async def unacknowledged(admin: Admin) -> int:
    described = await admin.describe_subscription("orders", "jobs")
    return sum(each.unacknowledged or 0 for each in described.segments)


async def test_a_record_that_failed_comes_again_after_its_delay_and_nothing_waits_for_it():
    async with jobs() as (world, admin), reader(world, **QUEUE) as consumer:
        first, second, third = await take(consumer, 3)
        began = asyncio.get_running_loop().time()
        await consumer.negative_acknowledge(second, delay_seconds=20, reason="no network")
        await consumer.acknowledge(first)
        await consumer.acknowledge(third)
        await produce(world, 1)
        (newer,) = await take(consumer, 1)
        await consumer.acknowledge(newer)
        assert 5 > asyncio.get_running_loop().time() - began
        (again,) = await take(consumer, 1)
        assert 20 <= asyncio.get_running_loop().time() - began < 21
        assert (second.offset, second.value, 2) == (again.offset, again.value, again.delivery_count)
        await consumer.acknowledge(again)
        await consumer.flush()
        assert 0 == await unacknowledged(admin)
        assert 0 == consumer.metrics().rejected_acknowledgements


async def test_what_is_due_later_is_kept_once_however_often_its_segment_moves():
    async with jobs(1) as (world, _), reader(world, **QUEUE) as consumer:
        await consumer.negative_acknowledge(*await take(consumer, 1), delay_seconds=9000)
        async with reader(world, "d", **QUEUE):
            await asyncio.sleep(30)
        await asyncio.sleep(30)
        assert 1 == len(consumer._deliveries._due)


async def test_what_comes_after_the_end_of_a_delivery_has_no_effect_and_is_counted():
    """Neither an acknowledgement nor an extension overrides the negative acknowledgement before it."""
    async with jobs(1, ack_timeout_seconds=100) as (world, admin), reader(world, **QUEUE) as consumer:
        (first,) = await take(consumer, 1)
        await consumer.negative_acknowledge(first)
        await consumer.extend(first, 1000)
        await consumer.acknowledge(first)
        assert 2 == consumer.metrics().rejected_acknowledgements
        (second,) = await take(consumer, 1)
        assert 2 == second.delivery_count
        await consumer.acknowledge(first)
        await consumer.negative_acknowledge(first)
        await consumer.flush()
        assert (4, 1) == (consumer.metrics().rejected_acknowledgements, await unacknowledged(admin))
        await consumer.acknowledge(second)
        await consumer.flush()
        assert 0 == await unacknowledged(admin)


async def test_a_delivery_times_out_unless_it_is_acknowledged_or_extended():
    async with jobs(3, ack_timeout_seconds=10) as (world, admin), reader(world, **QUEUE) as consumer:
        acknowledged, extended, forgotten = await take(consumer, 3)
        await consumer.acknowledge(acknowledged)
        await asyncio.sleep(8)
        await consumer.extend(extended, 30)
        (again,) = await take(consumer, 1)
        assert (forgotten.offset, 2) == (again.offset, again.delivery_count)
        await consumer.acknowledge(again)
        await nothing_comes(consumer, 25)
        (again,) = await take(consumer, 1)
        assert (extended.offset, 2) == (again.offset, again.delivery_count)
        assert "not acknowledged within 10 s" in str(await admin.explain("orders", "jobs"))
        await consumer.acknowledge(again)


async def crash(world: OneShard, consumer: Consumer) -> None:
    """End a consumer without a farewell."""
    world.broker.cut(f"client-{consumer.name}")
    await consumer._tasks.cancel()
    await consumer._release()


@pytest.mark.parametrize(
    ("error", "delivery"),
    [(ValueError(), 2), (SystemExit(1), 2), (SystemExit(0), 1), (asyncio.CancelledError(), 1), (None, 1)],
    ids=repr,
)
async def test_a_consumer_that_ends_with_an_error_fails_what_it_has_begun_and_one_that_leaves_hands_it_back(
    error: BaseException | None, delivery: int
):
    async with jobs(1, max_deliveries=9, dead_letter_topic="dead") as (world, _):
        with pytest.raises(BaseException) if error else contextlib.nullcontext():
            async with reader(world, **QUEUE) as first:
                await take(first, 1)
                if error is not None:
                    raise error
        async with reader(world, "other", **QUEUE) as second:
            (again,) = await take(second, 1)
            assert delivery == again.delivery_count
            await second.acknowledge(again)


async def dead_letters(world: OneShard, seconds: float = 30) -> list[tuple[bytes, bytes]]:
    """Return key and value of each record in topic dead, after so many seconds."""
    await asyncio.sleep(seconds)
    async with reader(world, "undertaker", topic="dead", subscription="undertakers") as consumer:
        return [(each.key, each.value) async for each in consumer.until_caught_up()]


async def fail_until_dead(consumer: Consumer, deliveries: int) -> None:
    """Fail the first record so often that it is dead, and acknowledge all others."""
    failed = 0
    while failed < deliveries:
        (record,) = await take(consumer, 1)
        if record.offset == 0:
            failed += 1
            assert failed == record.delivery_count
            await consumer.negative_acknowledge(record, reason="no such order")
        else:
            await consumer.acknowledge(record)
    await consumer.flush()


async def test_a_record_that_fails_too_often_goes_to_the_dead_letter_topic_and_its_key_is_delivered_on():
    async with jobs(2, max_deliveries=3, dead_letter_topic="dead") as (world, admin):
        async with reader(world, **QUEUE) as consumer:
            await fail_until_dead(consumer, 3)
            assert [(b"key-0", b"0")] == await dead_letters(world)
            async with reader(world, "clerk", topic="dead", subscription="clerks") as clerk:
                (dead,) = await take(clerk, 1)
                origin, described = origin_of(dead.headers), await admin.describe_subscription("orders", "jobs")
                source = origin.topic, origin.subscription, origin.subscription_id
                assert ("orders", "jobs", described.subscription_id) == source
                assert (0, 0, 3, "no such order") == (origin.segment, origin.offset, origin.deliveries, origin.reason)
            await produce(world, 1)
            (next_of_key,) = await take(consumer, 1)
            assert (b"key-0", 1) == (next_of_key.key, next_of_key.delivery_count)
            await consumer.acknowledge(next_of_key)
            await consumer.flush()
            assert 0 == await unacknowledged(admin)
        described = await admin.describe_subscription("orders", "jobs")
        assert (0, 0) == (described.failed, described.dead)


async def test_a_queue_that_is_caught_up_has_stored_its_dead_letters(caplog):
    """A program that ends then leaves none for the next one. Each batch opens their producer again, and fences none."""
    records = MAX_DEAD_LETTERS + 1
    async with jobs(records, max_deliveries=1, dead_letter_topic="dead") as (world, admin):
        async with reader(world, **QUEUE) as consumer:
            async for record in consumer.until_caught_up():
                await consumer.negative_acknowledge(record)
        assert records == len(await dead_letters(world, 2))
        assert 0 == await unacknowledged(admin)
    assert "fenced" not in caplog.text


async def test_a_dead_letter_that_is_not_stored_stays_and_is_sent_again_and_is_one_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    async with jobs(2, max_deliveries=1, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(DeliveryFailedError("not now"))
        with monkeypatch.context() as patched:
            patched.setattr(Producer, "send", AsyncMock(return_value=failed))
            await fail_until_dead(consumer, 1)
            await asyncio.sleep(60)
        assert [(b"key-0", b"0")] == await dead_letters(world, 120)
    assert ["dead_letters.not_sent"] == errors_of(caplog)


async def test_a_new_leader_soon_gets_dead_letters_sent_while_ledger_time_waits_for_a_clock():
    async with jobs(51, max_deliveries=1, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        world.clock_ahead_ms = 86_400_000
        await produce(world, 1)
        world.clock_ahead_ms = 0
        for record in await take(consumer, 51):
            await consumer.negative_acknowledge(record)
            await asyncio.sleep(10)
        assert 51 == len(await dead_letters(world))
        async with world.leader("b"):
            await consumer.negative_acknowledge((await take(consumer, 1))[0])
            assert 52 == len(await dead_letters(world, 60))


@pytest.mark.parametrize(
    ("headers", "value_bytes"),
    [
        ([(f"h{n}", b"x") for n in range(MAX_HEADERS)], 1),
        ([("h", bytes(MAX_HEADER_BYTES - 1))], 1),
        ([], MAX_RECORD_BYTES - 1),
    ],
    ids=["as many headers as possible", "as large as possible", "as large a record as possible"],
)
async def test_a_dead_letter_has_the_headers_of_its_record_and_its_origin(headers: list[Header], value_bytes: int):
    """One that had to be refused would hold up all later ones."""
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        async with Producer(client(world, "producer")) as producer:
            await producer.send_and_wait("orders", b"k", b"v" * value_bytes, headers=headers)
        await fail_until_dead(consumer, 1)
        async with reader(world, "clerk", topic="dead", subscription="clerks") as clerk:
            (dead,) = await take(clerk, 1)
    assert (headers, value_bytes) == (list(without_origin(dead.headers)), len(dead.value))
    assert origin_of(dead.headers) is not None


def delivery_counts(world: OneShard) -> tuple[int, ...]:
    controller = SimpleNamespace(leader=world.led, leadership=SimpleNamespace(role=Role.LEADING), shard=0)
    (status,) = shard_statuses([cast("ShardController", controller)])
    found = status.counts
    return found.kept_deliveries, found.dead_records, found.unsent_dead_letters, found.full_segments


async def test_a_segment_that_keeps_too_many_records_pauses_and_continues_when_one_is_settled():
    """A topic of 200 segments keeps 200 records of each. The other segments continue, and nothing is asked repeatedly."""
    limit = 200
    async with jobs(0, 200, max_deliveries=9, dead_letter_topic="dead") as (world, admin):
        async with Producer(client(world, "producer")) as producer:
            for n in range(limit + 20):
                await producer.send("orders", b"busy", str(n).encode())
        async with reader(world, **QUEUE) as consumer:
            held = await take(consumer, limit)
            await asyncio.sleep(5)
            chunk = world.led.state.chunk
            await nothing_comes(consumer, 60)
            delayed = world.registry.get_sample_value("headgate_redeliveries_total", {"outcome": "delayed"})
            assert 0 < delayed < 70, "one record is tried again each second"
            assert chunk == world.led.state.chunk, "a trial that begins nothing is not stored"
            assert (limit, 0, 0, 1) == delivery_counts(world)
            assert "No further record of segment" in " ".join((await admin.explain("orders", "jobs")).summary)
            async with Producer(client(world, "other")) as producer:
                await producer.send_and_wait("orders", b"quiet", b"quiet")
                for n in range(limit + 20, limit + 40):
                    await producer.send("orders", b"busy", str(n).encode())
            (quiet,) = await take(consumer, 1)
            await consumer.negative_acknowledge(held[0])
            (again,) = await take(consumer, 1)
            assert (b"quiet", b"0", 2) == (quiet.value, again.value, again.delivery_count)
            for settled in (again, *held[1:]):
                await consumer.acknowledge(settled)
            rest = await take(consumer, 40)
            assert [*range(limit, limit + 40)] == sorted(int(each.value) for each in rest), "a queue has no order"


async def test_a_batch_acknowledges_only_those_of_its_records_that_its_handler_got():
    """The leader lets some begin later. They are queued again before the handler of the batch has returned."""
    handled: list[int] = []

    async def handle(records: list[ConsumedRecord]) -> None:
        handled.extend(int(each.value) for each in records)
        await asyncio.sleep(5)

    async with jobs(0, 200, max_deliveries=9, dead_letter_topic="dead") as (world, _):
        async with Producer(client(world, "producer")) as producer:
            for n in range(300):
                await producer.send("orders", b"busy", str(n).encode())
        async with reader(world, **QUEUE) as consumer:
            for each in await take(consumer, 190):
                await consumer.negative_acknowledge(each, delay_seconds=300)
            run = asyncio.create_task(consumer.run(handle, batch=BatchPolicy(max_records=50, max_wait_seconds=0.5)))
            await until(lambda: set(handled) == set(range(300)), 3600)
            consumer.stop()
            assert len(handled) == (await run).handled


@pytest.mark.parametrize(("of", "calls"), [(None, 6), ({"max_records": 2}, 4), ({"max_wait_seconds": 600}, 2)])
async def test_a_run_does_not_end_before_what_its_handler_fails_late_is_handled(of: Any, calls: int):
    async def work(given: Any) -> None:
        await asyncio.sleep(30)
        assert all(each.delivery_count > 1 for each in ([given] if of is None else given))

    async with asyncio.timeout(300), jobs(3) as (_, admin), reader(_, **QUEUE) as consumer:
        run = consumer.run(work, concurrency=3, batch=of and BatchPolicy(**of), retry=REDELIVER, until_caught_up=True)
        assert (3, calls, 0) == ((await run).handled, consumer.metrics().handler_calls, await unacknowledged(admin))


async def test_a_run_that_is_far_enough_ahead_of_its_handler_gets_nothing_again(monkeypatch):
    async def handle(_: ConsumedRecord) -> None:
        await may_end.wait()

    may_end, ahead = asyncio.Event(), LookAhead(max_records=4)
    async with jobs(20) as (world, admin), reader(world, **QUEUE) as consumer:
        for record in await take(consumer, 20):
            await consumer.negative_acknowledge(record)
        monkeypatch.setattr("headgate.client.consuming.record_queue.QUEUE_RECORDS", 1)
        running = asyncio.create_task(consumer.run(handle, look_ahead=ahead, until_caught_up=True))
        await asyncio.sleep(10)
        assert 4 <= consumer._holdings.handling.schedule.unfinished <= 6
        may_end.set()
        assert (20, 0) == ((await running).handled, await unacknowledged(admin))


async def test_a_record_whose_delivery_cannot_begin_is_not_skipped(monkeypatch):
    async with jobs(1) as (world, admin), reader(world, **QUEUE) as consumer:
        monkeypatch.setattr(consumer._deliveries, "begin", AsyncMock(side_effect=HeadgateError("no right")))
        with pytest.raises(HeadgateError, match="no right"):
            await asyncio.wait_for(consumer.run(print, retry=RetryPolicy(attempts=1, then="skip")), 60)
        await consumer.flush()
        assert 1 == await unacknowledged(admin)


async def test_a_delivery_whose_beginning_is_answered_after_the_lease_waits_for_a_registration():
    """Another consumer may have the segment by then."""
    async with jobs(1, max_deliveries=9, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        await asyncio.sleep(5)
        taking = asyncio.create_task(take(consumer, 1))
        await asyncio.sleep(0)
        consumer._feed.queue.lease._set_end(0.0)
        assert ([1], True) == ([each.delivery_count for each in await taking], consumer._feed.may_deliver)


async def test_without_its_dead_letter_topic_a_record_stays_others_continue_and_it_is_explained():
    async with jobs(2, max_deliveries=2, dead_letter_topic="dead") as (world, admin):
        await admin.delete_topic("dead")
        async with reader(world, **QUEUE) as consumer:
            await fail_until_dead(consumer, 2)
            await asyncio.sleep(60)
            assert 1 == await unacknowledged(admin)
            explained = " ".join((await admin.explain("orders", "jobs")).summary)
            assert "1 record waits" in explained
            assert "topic 'dead' does not exist" in explained
            assert (1, 1, 1, 0) == delivery_counts(world)
            await admin.create_topic("dead")
            assert [(b"key-0", b"0")] == await dead_letters(world, 120)
            assert 0 == await unacknowledged(admin)


async def test_a_failure_whose_reply_was_lost_is_stored_although_its_record_is_a_dead_letter_by_now():
    """It stops neither the reading of the segment nor the end of what waits for it."""
    async with (
        jobs(1, max_deliveries=1, dead_letter_topic="dead") as (world, admin),
        reader(world, **QUEUE) as consumer,
    ):
        send, lost = consumer._acknowledger._send, False

        async def send_and_lose(batch: AcknowledgementBatch, number: int) -> Acknowledged:
            nonlocal lost
            reply = await send(batch, number)
            if batch.negative and not lost:
                lost = True
                assert [(b"key-0", b"0")] == await dead_letters(world, 60)
                raise NoLeaderError("no reply")
            return reply

        consumer._acknowledger._send = send_and_lose
        async with asyncio.timeout(240):
            async for record in consumer.until_caught_up():
                await consumer.negative_acknowledge(record)
            await produce(world, 2)
            assert 2 == len([await consumer.acknowledge(record) async for record in consumer.until_caught_up()])
        assert 0 == await unacknowledged(admin)


async def test_get_many_returns_a_record_that_failed_before_alone():
    """If it ends the program, no other record counts as failed with it."""
    async with jobs(3, max_deliveries=9, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        (first, *_) = await consumer.get_many(timeout_seconds=5)
        await consumer.negative_acknowledge(first)
        await consumer.flush()
        await produce(world, 2)
        await asyncio.sleep(5)
        assert [[2], [1, 1]] == sorted(
            [[each.delivery_count for each in await consumer.get_many()] for _ in range(2)], reverse=True
        )


async def test_until_caught_up_does_not_end_before_a_record_that_get_many_put_back():
    """It comes once the lease has begun again, which had ended in between."""
    async with jobs(2, max_deliveries=9, dead_letter_topic="dead") as (world, _), reader(world, **QUEUE) as consumer:
        (failed, other) = await take(consumer, 2)
        await consumer.acknowledge(other)
        await produce(world, 1)
        await consumer.negative_acknowledge(failed)
        await asyncio.sleep(5)
        assert [2] == [each.offset for each in await consumer.get_many()]
        assert not await consumer.caught_up()
        consumer._feed.queue.lease._set_end(0.0)
        async with asyncio.timeout(60):
            assert [0] == [each.offset async for each in consumer.until_caught_up()]


@pytest.mark.parametrize(
    ("topic", "policy", "error"),
    [
        ("orders", {"max_deliveries": 3}, "max_deliveries needs a dead-letter topic"),
        ("orders", {"dead_letter_topic": "orders"}, "would return in a circle: orders to orders"),
        ("dead", {"dead_letter_topic": "orders"}, "would return in a circle: dead to orders to dead"),
        ("orders", {"dead_letter_topic": "nothing"}, "topic 'nothing' does not exist"),
        ("orders", {"max_deliveries": 1001}, "Expected `int` <= 1000"),
        ("orders", {"ack_timeout_seconds": 86401}, "ack_timeout_seconds=86401 is above a day"),
    ],
    ids=["no topic", "itself", "circle", "unknown", "many", "long"],
)
async def test_a_policy_that_cannot_work_is_refused(topic: str, policy: dict[str, Any], error: str):
    async with jobs(0) as (_, admin):
        await admin.create_subscription("dead", "jobs", type="QUEUE")
        if topic == "dead":
            await admin.set_delivery_policy("orders", "jobs", dead_letter_topic="dead")
        with pytest.raises((ConfigError, RequestRejectedError), match=error):
            await admin.set_delivery_policy(topic, "jobs", **policy)


async def test_only_a_queue_fails_and_extends():
    async with jobs(1) as (world, admin), reader(world) as stream:
        (record,) = await take(stream, 1)
        with pytest.raises(HeadgateError, match="only QUEUE delivers again"):
            await stream.negative_acknowledge(record)
        with pytest.raises(HeadgateError, match="only QUEUE delivers again"):
            await stream.extend(record, 1)
        with pytest.raises(RequestRejectedError, match="of type STREAM: only a QUEUE delivers again"):
            await admin.set_delivery_policy("orders", "billing", ack_timeout_seconds=1)


async def test_a_run_begins_what_its_handler_gets_and_fails_what_it_cannot_handle():
    """Records that are read ahead are not begun, so a crash in the handler counts for one record."""
    async with jobs(8, max_deliveries=2, dead_letter_topic="dead") as (world, admin):
        crashing, at_work = reader(world, "crashing", **QUEUE), asyncio.Event()
        await crashing.__aenter__()

        async def hang(_: ConsumedRecord) -> None:
            at_work.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(crashing.run(hang))
        await at_work.wait()
        await asyncio.sleep(1)
        running.cancel()
        await crash(world, crashing)
        counts: dict[int, list[int]] = {}

        def work(record: ConsumedRecord) -> None:
            counts.setdefault(record.offset, []).append(record.delivery_count)
            if record.offset == 5:
                raise ValueError("unlucky")

        async with reader(world, "steady", **QUEUE) as steady:
            with pytest.raises(ConfigError, match="then='redeliver' is for type QUEUE"):
                async with reader(world, "stream") as stream:
                    await stream.run(work, retry=RetryPolicy(then="redeliver"))
            handling = asyncio.create_task(steady.run(work, concurrency=4, retry=REDELIVER))
            assert [(b"key-5", b"5")] == await dead_letters(world, 200)
            steady.stop()
            await handling
        assert {n: [1] for n in range(8)} | {0: [2], 5: [1, 2]} == counts
        assert 0 == await unacknowledged(admin)
