"""STREAM: parked and resumed keys, with the real leader of a shard over a fake broker and store, in virtual time."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from headgate import ProducerSettings
from headgate.client.admin import Admin
from headgate.client.consumer import ConsumedRecord, Consumer
from headgate.client.consuming.consumer_context import ConsumerRequests
from headgate.client.consuming.dead_letters import DeadLetterSender
from headgate.client.consuming.parking import ParkedRecords
from headgate.client.open_letters import act, find_open
from headgate.client.processing.schedule import LookAhead, RetryPolicy
from headgate.client.producer import Producer
from headgate.errors import HandlerFailedError, HeadgateError, RequestRejectedError, StoreUnavailableError
from headgate.model.headers import Origin
from headgate.protocol.request_fields import MAX_PARKED_KEY_BYTES
from headgate.protocol.requests import ParkKey
from tests.support.logged import errors_of
from tests.support.worlds import one_shard
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import KEYS, client, in_order, orders, produce, reader, restored_copy

POISON, OTHER = KEYS[3], KEYS[4]


@asynccontextmanager
async def stream(records: int = 20, *, dead_letter_topic: str = "dead") -> AsyncIterator[tuple[OneShard, Admin]]:
    """Return a shard with ``records`` in topic orders, the keys in turn, and topic dead."""
    async with orders(segments=1) as (world, admin):
        await admin.create_topic("dead")
        await admin.create_subscription("orders", "billing", start="earliest")
        if dead_letter_topic:
            await admin.set_delivery_policy("orders", "billing", dead_letter_topic=dead_letter_topic)
        await produce(world, records)
        yield world, admin


class Program:
    """Handles records, and parks key `POISON` once it has handled ``spared`` records of it."""

    def __init__(self) -> None:
        self.spared = 0
        self.handled: list[ConsumedRecord] = []

    async def handle(self, consumer: Consumer, record: ConsumedRecord) -> None:
        if record.key == POISON and not self.spared:
            await consumer.park(record, reason="poison")
        else:
            self.spared -= record.key == POISON
            self.handled.append(record)
            await consumer.acknowledge(record)

    async def read(self, consumer: Consumer, seconds: float) -> None:
        """Handle what comes within ``seconds``."""
        ends_at = asyncio.get_running_loop().time() + seconds
        while (left := ends_at - asyncio.get_running_loop().time()) > 0:
            for record in await consumer.get_many(1, timeout_seconds=left):
                await self.handle(consumer, record)

    def values(self, key: bytes = POISON) -> list[int]:
        return [int(each.value) for each in self.handled if each.key == key]


async def parked(admin: Admin) -> list[tuple[bytes, int, str, bool]]:
    found = await admin.parked_keys("orders", "billing")
    return [(each.key, each.records, each.reason, each.is_resuming) for each in found]


async def open_letters(admin: Admin) -> tuple[list[int], bool]:
    """Return the values of the dead letters that are listed, and whether the topic has any."""
    found = await find_open(admin, "orders", "billing")
    return [int(record.value) async for record, _ in found.letters()], found.has_stored


async def close_letters(admin: Admin) -> None:
    await act(admin, "orders", "billing", (await find_open(admin, "orders", "billing")).through, replay=False)


async def unacknowledged(admin: Admin) -> int:
    return sum(each.unacknowledged or 0 for each in (await admin.describe_subscription("orders", "billing")).segments)


async def dead(world: OneShard) -> list[ConsumedRecord]:
    async with reader(world, "undertaker", topic="dead", subscription="dead") as consumer:
        return [record async for record in consumer.until_caught_up()]


@asynccontextmanager
async def with_a_parked_key() -> AsyncIterator[tuple[OneShard, Admin, Consumer, Program]]:
    program = Program()
    async with stream() as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        program.spared = 1000
        yield world, admin, consumer, program


@pytest.mark.parametrize(("records", "pause_seconds"), [(100, 0.3), (600, 0.06)], ids=["seldom", "all the time"])
async def test_a_resumed_key_delivers_what_is_parked_in_order_and_then_newer_records(
    records: int, pause_seconds: float
) -> None:
    """Records of the key arrive before, during and after the resumption, also more often than the leader is asked."""
    async with with_a_parked_key() as (world, admin, consumer, program):
        traffic = asyncio.create_task(produce(world, records, pause_seconds=pause_seconds))
        await program.read(consumer, 5)
        assert [] == program.values()
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 20)
        assert [] == await parked(admin)
        assert not traffic.done()
        await program.read(consumer, 50)
        await traffic
        assert [3, 13, *range(3, records, 10)] == program.values()
        assert 0 == await unacknowledged(admin)
        assert 2 < sum(1 for each in program.handled if each.parked_number)


async def test_a_key_that_the_leader_parks_for_a_cancelled_caller_is_parked_here_too() -> None:
    program = Program()
    program.spared = 1000
    async with stream() as (world, admin), reader(world) as consumer:
        while (record := (await consumer.get_many(1, timeout_seconds=5))[0]).key != POISON:
            await consumer.acknowledge(record)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await consumer.park(record, reason="poison")
        await asyncio.sleep(1)
        await program.read(consumer, 10)
        assert ([], [(POISON, 2, "poison", False)]) == (program.values(), await parked(admin))
        bound = admin.bound_to(first := await admin.seen("orders", "billing", key=POISON))
        await bound.resume_key("orders", "billing", POISON)
        await program.read(consumer, 20)
        assert ([3, 13], []) == (program.values(), await parked(admin))
        await produce(world, 10)
        record = (await consumer.get_many(4, timeout_seconds=5))[-1]
        await consumer.park(record)
        refused = rf"key 'key-3' was parked again: it has number {first.parking + 1}, .* number {first.parking}"
        with pytest.raises(RequestRejectedError, match=refused):
            await bound.resume_key("orders", "billing", POISON, drop=True)


async def test_a_resumed_record_is_delivered_once_if_its_segment_is_revoked_before_it_is_acknowledged() -> None:
    async with with_a_parked_key() as (world, admin, consumer, program):
        await admin.resume_key("orders", "billing", POISON)
        while not (record := (await consumer.get_many(1, timeout_seconds=5))[0]).parked_number:
            await consumer.acknowledge(record)
        async with reader(world, "second"):
            await asyncio.sleep(8)
            await program.handle(consumer, record)
            await program.read(consumer, 50)
        await admin.seek("orders", "billing", to="earliest")
        await asyncio.sleep(5)
        await consumer.park(record)
        assert 1 == consumer.metrics().rejected_acknowledgements, "another grant has its segment"
    assert [3, 13] == program.values()


async def test_without_an_order_the_holder_of_a_child_continues_after_that_of_its_parent_has_resumed_a_key() -> None:
    programs = Program(), Program()

    async def read(seconds: float, *consumers: Consumer) -> None:
        await asyncio.gather(*map(Program.read, programs, consumers, itertools.repeat(seconds)))

    async with stream() as (world, admin):
        await admin.set_order("orders", "billing", "none")
        await admin.split("orders", 0)
        await produce(world, 20)
        async with reader(world) as first, reader(world, "second") as second:
            await read(20, first, second)
            for each in programs:
                each.spared = 1000
            await admin.resume_key("orders", "billing", POISON)
            await read(60, first, second)
            await produce(world, 20)
            await read(60, first, second)
            assert (0, []) == (await unacknowledged(admin), await parked(admin))
    assert 3 * [3, 13] == [*programs[0].values(), *programs[1].values()][-6:]


async def test_without_an_order_a_key_is_resumed_by_the_holder_of_a_child_once_its_parent_is_drained() -> None:
    program = Program()
    async with stream() as (world, admin), reader(world) as consumer:
        await admin.set_order("orders", "billing", "none")
        await admin.split("orders", 0)
        await asyncio.sleep(10)  # The child is held before its key is parked.
        world.drained_segments[0] = 20
        await program.read(consumer, 60)
        program.spared = 1000
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 60)
        assert [] == await parked(admin)
    assert [3, 13] == program.values()


async def test_a_resumed_key_holds_no_other_one_up_while_the_dead_letter_topic_takes_no_records(monkeypatch) -> None:
    async with with_a_parked_key() as (world, admin, consumer, program):
        monkeypatch.setattr(DeadLetterSender, "start", lambda _: None)
        traffic = asyncio.create_task(produce(world, 140, pause_seconds=0.15))
        await program.read(consumer, 2)
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 40)
        await traffic
        assert [4, 14, *range(4, 140, 10)] == program.values(OTHER)
        assert [POISON] == [key for key, *_ in await parked(admin)]


async def test_a_key_that_cannot_be_resumed_is_one_error_which_a_script_prints(caplog, monkeypatch):
    program = Program()
    async with stream() as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        await produce(world, 20)
        await program.read(consumer, 10)
        program.spared = 1000
        with monkeypatch.context() as patched:
            patched.setattr(ParkedRecords, "take", AsyncMock(side_effect=StoreUnavailableError("away")))
            await admin.resume_key("orders", "billing", POISON)
            await program.read(consumer, 60)
        assert ["key.not_resumed"] == errors_of(caplog)
        await program.read(consumer, 60)
        assert [] == await parked(admin)


async def test_a_run_that_ends_when_caught_up_stores_what_it_parked_and_resumes_what_it_is_to_resume():
    """A program that runs now and then leaves nothing to the next one, which may be a day away."""
    handled: list[bytes] = []

    def handle(record: ConsumedRecord) -> None:
        if record.key == POISON and not spared:
            raise ValueError("poison")
        handled.append(record.value)

    retry, spared = RetryPolicy(attempts=2, then="park"), False
    async with stream() as (world, admin):
        async with reader(world) as consumer:
            await consumer.run(handle, retry=retry, until_caught_up=True)
        assert [3, 13] == [int(each.value) for each in await dead(world)]
        await admin.resume_key("orders", "billing", POISON)
        spared = True
        handled.clear()
        async with reader(world) as consumer:
            await consumer.run(handle, retry=retry, until_caught_up=True)
        assert ([b"3", b"13"], []) == (handled, await parked(admin))


async def test_only_the_stream_s_own_records_take_a_place_among_the_parked_ones():
    """The dead-letter topic may be put back with newer records than its stream, and topics of two shards may share it."""
    program = Program()
    async with stream() as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        origin = dict((await dead(world))[1].headers) | {"headgate-source-parked-number": b"3"}

        async def store(value: bytes, **other: bytes) -> None:
            headers = origin | {f"headgate-source-{name}": text for name, text in other.items()}
            settings = ProducerSettings(reserved_headers=True)
            async with Producer(client(world, "other"), settings=settings) as producer:
                await producer.send("dead", POISON, value, headers=headers.items())

        await store(b"999")
        await produce(world, 20)
        await program.read(consumer, 10)
        await store(b"998", topic=b"returns")
        program.spared = 1000
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 30)
        assert ([3, 13, 3, 13], []) == (program.values(), await parked(admin))


async def test_a_resumed_record_that_fails_again_stays_at_its_place():
    program = Program()
    async with stream(50) as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        assert [(POISON, 5, "poison", False)] == await parked(admin)
        for left in (3, 1):
            program.spared = 2
            await admin.resume_key("orders", "billing", POISON)
            await program.read(consumer, 20)
            assert [(POISON, left, "poison", False)] == await parked(admin)
            assert ([23, 33, 43][-left:], True) == await open_letters(admin)
        with pytest.raises(HeadgateError, match="resumed in order"):
            await close_letters(admin)
        await produce(world, 10)
        program.spared = 1000
        await program.read(consumer, 10)
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 20)
        assert ([3, 13, 23, 33, 43, 3], []) == (program.values(), await parked(admin))
        assert ([], True) == await open_letters(admin)
        await close_letters(admin)
        assert ([], False) == await open_letters(admin)


async def test_a_key_that_was_resumed_since_is_not_parked_by_a_repetition(monkeypatch) -> None:
    """The reply is late: an operator resumes the key before the request is sent once more."""
    program, ask = Program(), ConsumerRequests._ask
    async with stream() as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)

        async def twice(self, body, *more):
            if isinstance(body, ParkKey):
                await ask(self, body, *more)
                await admin.resume_key("orders", "billing", POISON)
                program.spared = 1000
            return await ask(self, body, *more)

        monkeypatch.setattr(ConsumerRequests, "_ask", twice)
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 30)
        assert ([3, 13], []) == (program.values(), await parked(admin))


async def test_more_records_than_a_segment_keeps_are_parked_by_one_acknowledgement(monkeypatch) -> None:
    monkeypatch.setattr("shard.subscriptions.deliveries.MAX_RECORDS", 3)
    async with stream(100) as (world, admin), reader(world) as consumer:
        await Program().read(consumer, 60)
        assert (0, [(POISON, 10, "poison", False)]) == (await unacknowledged(admin), await parked(admin))
        assert 10 == len(await dead(world))


async def test_other_keys_continue_if_a_resumed_record_fails_while_the_next_ones_wait_for_space(monkeypatch) -> None:
    program = Program()
    async with stream(50) as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        monkeypatch.setattr("headgate.client.consuming.record_queue.QUEUE_RECORDS", 1)
        program.spared = 1
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 20)
        await produce(world, 20)
        await program.read(consumer, 60)
        assert (0, [(POISON, 6, "poison", False)]) == (await unacknowledged(admin), await parked(admin))


async def test_what_is_dropped_while_it_is_resumed_is_not_delivered(monkeypatch) -> None:
    async with with_a_parked_key() as (world, admin, consumer, program):
        monkeypatch.setattr("headgate.client.consuming.record_queue.QUEUE_RECORDS", 1)
        for drop in (False, True):
            await admin.resume_key("orders", "billing", POISON, drop=drop)
            await asyncio.sleep(10)
        await produce(world, 10)
        await program.read(consumer, 30)
        assert ([3], []) == (program.values(), await parked(admin))


@pytest.mark.parametrize("space", [1000, 1])
async def test_what_an_ended_resumption_has_read_is_not_delivered_by_the_next_one(space: int, monkeypatch) -> None:
    """It would be delivered before the record that failed again, and acknowledge it."""
    async with stream(records=60) as (world, admin):
        program = Program()
        async with reader(world, "c") as consumer:
            await program.read(consumer, 20)
            monkeypatch.setattr("headgate.client.consuming.record_queue.QUEUE_RECORDS", space)
            for _ in range(2):
                await admin.resume_key("orders", "billing", POISON)
                await asyncio.sleep(10)
                await program.read(consumer, 0.001)
            program.spared = 99
            await admin.resume_key("orders", "billing", POISON)
            await asyncio.sleep(10)
            await program.read(consumer, 20)

    assert [3, 13, 23, 33, 43, 53] == program.values()


async def test_a_run_reads_no_further_ahead_of_its_handler_while_a_key_is_resumed(monkeypatch) -> None:
    async def handle(_: ConsumedRecord) -> None:
        await may_end.wait()

    monkeypatch.setattr("headgate.client.consuming.parking.RESUMED_RECORDS", 2)
    program, may_end, ahead = Program(), asyncio.Event(), LookAhead(max_records=4)
    async with stream(200) as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        await admin.resume_key("orders", "billing", POISON)
        running = asyncio.create_task(consumer.run(handle, look_ahead=ahead, until_caught_up=True))
        await asyncio.sleep(10)
        assert 4 <= consumer._holdings.handling.schedule.unfinished <= 6
        may_end.set()
        assert (20, []) == ((await running).handled, await parked(admin))


async def test_a_dropped_key_continues_with_what_comes_afterwards():
    async with with_a_parked_key() as (world, admin, consumer, program):
        await admin.resume_key("orders", "billing", POISON, drop=True)
        await program.read(consumer, 10)
        await produce(world, 10)
        await program.read(consumer, 10)
        assert ([3], []) == (program.values(), await parked(admin))
        assert [3, 13] == [int(each.value) for each in await dead(world)]


async def test_run_parks_the_key_of_a_record_whose_handler_fails_for_the_last_time():
    """Its later records, which wait for it, are parked with it. Without a dead-letter topic the run stops there."""
    handled: list[int] = []

    async def handle(record: ConsumedRecord) -> None:
        await asyncio.sleep(0.05)
        if record.value == b"3":
            raise ValueError("poison")
        handled.append(int(record.value))

    retry = RetryPolicy(attempts=2, then="park")
    async with stream(100, dead_letter_topic="") as (world, admin), reader(world) as consumer:
        with pytest.raises(HandlerFailedError, match="offset 3"):
            await consumer.run(handle, concurrency=4, retry=retry, until_caught_up=True)
        assert [] == await parked(admin)
    handled.clear()
    async with stream(100) as (world, admin), reader(world) as consumer:
        report = await consumer.run(handle, concurrency=4, retry=retry, until_caught_up=True)
        assert (90, 10) == (report.handled, report.parked)
        assert sorted(handled) == [n for n in range(100) if n % 10 != 3]
        assert [(POISON, 10, "ValueError('poison')", False)] == await parked(admin)
        await asyncio.sleep(10)  # Until the heartbeat that names the dead letters.
        assert [*range(3, 100, 10)] == [int(each.value) for each in await dead(world)]
        assert 0 == await unacknowledged(admin)


async def test_a_run_ends_at_once_if_a_later_record_of_its_key_cannot_be_parked(monkeypatch) -> None:
    async with stream() as (world, admin), reader(world) as consumer:
        await admin.set_order("orders", "billing", "none")
        await admin.split("orders", 0)
        await produce(world, 20)
        refusal, retry = (
            RequestRejectedError("invalid", "no"),
            RetryPolicy(attempts=2, first_pause_seconds=3, then="park"),
        )
        monkeypatch.setattr(consumer._membership.requests, "park", AsyncMock(side_effect=[None, refusal]))
        with pytest.raises(HandlerFailedError):
            await consumer.run(AsyncMock(side_effect=lambda record: 1 / (record.key != POISON)), retry=retry)


async def test_what_cannot_be_parked_is_refused_in_one_line_and_stays():
    async with stream(4, dead_letter_topic="") as (world, admin), reader(world) as consumer:
        records = [await anext(consumer) for _ in range(4)]
        with pytest.raises(RequestRejectedError, match="subscription set orders billing --dead-letter TOPIC"):
            await consumer.park(records[3])
        with pytest.raises(TypeError):
            await consumer.park("3")  # type: ignore[arg-type]
        assert 4 == await unacknowledged(admin)
        with pytest.raises(RequestRejectedError, match="has not parked key"):
            await admin.resume_key("orders", "billing", b"\xff")
    async with stream(0) as (world, admin), reader(world) as consumer:
        async with Producer(client(world, "long")) as producer:
            await producer.send_and_wait("orders", b"k" * (MAX_PARKED_KEY_BYTES + 1), b"0")
        (record,) = await consumer.get_many(1, timeout_seconds=10)
        with pytest.raises(RequestRejectedError, match="at most 256"):
            await consumer.park(record)


async def test_keys_that_are_resumed_after_each_other_read_each_chunk_once():
    program = Program()
    program.handle = lambda consumer, record: consumer.park(record)  # type: ignore[method-assign]
    async with stream(100) as (world, admin), reader(world) as consumer:
        await program.read(consumer, 10)
        del program.handle
        program.spared = 1000
        reads = world.store.calls["read"]
        for key in KEYS:
            await admin.resume_key("orders", "billing", key)
        await program.read(consumer, 100)
        assert ([], in_order(100)) == (await parked(admin), {key: program.values(key) for key in KEYS})
        assert 2 * len(world.store.objects) > world.store.calls["read"] - reads


async def test_what_keeps_parked_records_exists_once_the_policy_can_be_set(monkeypatch: pytest.MonkeyPatch):
    async with stream(0, dead_letter_topic="") as (_, admin):
        with pytest.raises(RequestRejectedError, match="only a QUEUE"):
            await admin.set_delivery_policy("orders", "billing", dead_letter_topic="dead", max_deliveries=3)
        assert [] == await admin.list_subscriptions("dead")  # Retention would wait for it.
        monkeypatch.setattr(Admin, "create_subscription", AsyncMock(side_effect=HeadgateError("it was lost")))
        with pytest.raises(HeadgateError):
            await admin.set_delivery_policy("orders", "billing", dead_letter_topic="dead")
        assert "" == (await admin.describe_subscription("orders", "billing")).policy.dead_letter_topic


async def test_a_dead_letter_topic_that_is_created_again_keeps_parked_records():
    """Retention would delete them before their key is resumed."""
    async with stream() as (world, admin), reader(world) as consumer:
        await admin.delete_topic("dead")
        await admin.create_topic("dead")
        await Program().read(consumer, 20)
        (keeper,) = await admin.list_subscriptions("dead")
        assert 2 == sum(each.unacknowledged or 0 for each in keeper.segments)


async def test_parked_records_that_are_lost_are_passed_over_if_later_ones_are_there(caplog) -> None:
    async with with_a_parked_key() as (world, admin, consumer, program):
        await admin.delete_topic("dead", force=True)
        await admin.create_topic("dead")
        program.spared = 0
        await produce(world, 20)
        await program.read(consumer, 10)
        program.spared = 1000
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 30)
        assert ([3, 13], []) == (program.values(), await parked(admin))
        assert ["key.records_missing"] == errors_of(caplog)


async def test_a_restored_copy_of_the_ledger_has_the_parked_records(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(one_shard, "TERM_IDS", itertools.count(7**20))  # random as usual, and so are ids of topics
    async with with_a_parked_key() as (world, _, _, program):
        assert [] == program.values()
    copied = restored_copy(world)
    async with copied.leader(), Admin(client(copied, "admin")) as admin, reader(copied) as consumer:
        assert (in_order(20)[POISON], True) == await open_letters(admin)
        await admin.resume_key("orders", "billing", POISON)
        await program.read(consumer, 30)
        assert ([], in_order(20)[POISON]) == (await parked(admin), program.values())


ORIGIN = Origin(
    ledger="l", topic="orders", topic_id=1, subscription="s", subscription_id=1, segment=0, offset=0, deliveries=1, reason="", died_at_ms=1
)  # fmt: skip


async def bury(world: OneShard, value: bytes, numbers: int) -> None:
    """Store parked records of two keys with numbers from 1 on."""
    async with Producer(client(world, "p"), settings=ProducerSettings(reserved_headers=True)) as producer:
        for number in range(1, numbers + 1):
            for key in (POISON, OTHER):
                headers = replace(ORIGIN, parked_number=number).headers()
                await producer.send_and_wait("dead", key, value + b"%d" % number, headers=headers)


async def take(records: ParkedRecords, key: bytes, first: int, end: int) -> list[bytes]:
    found, _ = await records.take("dead", key, range(first, end), (POISON, OTHER))
    return [found[number].value for number in sorted(found)]


@pytest.mark.parametrize("kept_bytes", [0, 1000, 10**6])
async def test_parked_records_are_found_whatever_is_kept_of_them(kept_bytes: int):
    async with stream(0) as (world, _), client(world, "undertaker") as connected:
        records = ParkedRecords(connected, lambda _: True, kept_bytes)
        await bury(world, b"a", 5)
        assert [b"a1", b"a2"] == await take(records, POISON, 1, 3)
        assert [b"a1", b"a2", b"a3", b"a4"] == await take(records, OTHER, 1, 5)
        await bury(world, b"b", 7)
        assert [b"b3", b"b4", b"b5", b"b6", b"b7"] == await take(records, POISON, 3, 9)
        assert [b"b1", b"b2"] == await take(records, POISON, 1, 3)


@pytest.mark.parametrize("event", ["an older ledger was put back", "the topic was created again"])
async def test_parked_records_of_a_lost_history_are_not_used_when(event: str):
    world = OneShard()
    async with client(world, "undertaker") as connected, Admin(client(world, "admin")) as admin:
        records = ParkedRecords(connected, lambda _: True)
        async with world.leader("a"):
            await admin.create_topic("dead")
        backup = dict(world.store.objects)
        async with world.leader("b"):
            await bury(world, b"lost", 3)
            assert [b"lost1"] == await take(records, POISON, 1, 2)
        if event == "an older ledger was put back":
            world.store.objects.clear()
            world.store.objects.update(backup)
        async with world.leader("c"):
            if event == "the topic was created again":
                await admin.delete_topic("dead")
                await admin.create_topic("dead")
            await bury(world, b"present", 3)
            assert [b"present2", b"present3"] == await take(records, POISON, 2, 4)
