"""Named producers with the real leader of a shard: what survives, and how an import continues exactly once."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from controller.settings.sections import IngestSettings
from headgate.client.admin import Admin
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, ForgottenError, RequestRejectedError
from headgate.protocol.replies import ProducerIdentity
from headgate.protocol.requests import OpenProducer
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, create, orders

LINES = [b"line %d" % number for number in range(5)]


async def import_lines(world: OneShard, name: str = "import-1", topic: str = "orders") -> bool:
    """Store the lines that the producer has not stored yet, one position per line; return whether it was new."""
    async with Producer(client(world, "importer"), name=name) as producer:
        await producer.open(topic)
        first = 0 if producer.source_position is None else int(producer.source_position)
        for number, line in enumerate(LINES[first:], start=first + 1):
            await producer.send(topic, b"k", line, source_position=b"%d" % number)
        return producer.created


@pytest.mark.parametrize("batch_bytes", [1, 50_000], ids=["batches of one", "one batch"])
async def test_the_position_passes_no_record_that_was_not_stored(batch_bytes):
    """The network is back when the first record has expired and the others have not. The next run stores them all."""
    settings = ProducerSettings(batch_bytes=batch_bytes, delivery_timeout_seconds=10, request_timeout_seconds=1)
    async with orders() as (world, _):
        async with Producer(client(world, "importer"), name="import-1", settings=settings) as producer:
            await producer.open("orders")
            world.broker.stop()
            deliveries = []
            for number, line in enumerate(LINES, start=1):
                deliveries.append(await producer.send("orders", b"k", line, source_position=b"%d" % number))
                await asyncio.sleep(2)
            await asyncio.sleep(0.5)
            world.broker.start()
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            assert [DeliveryFailedError] * len(LINES) == [type(each) for each in outcomes]
            assert "an earlier record of its source was not stored" in str(outcomes[-1])
            await producer.open("orders")
            assert producer.source_position is None
            await producer.send_and_wait("orders", b"k", LINES[0], source_position=b"1")
        await import_lines(world)
    assert LINES == await stored(world)


async def stored(world: OneShard) -> list[bytes]:
    chunks = [(await world.ledger.read_records(n))[1] for n in range(1, await world.ledger.newest() + 1)]
    return [value for chunk in chunks for value in chunk.value]


@pytest.mark.parametrize("deleted", ["topic", "producer"])
async def test_a_producer_that_runs_ends_with_its_name_and_continues_in_no_later_topic(deleted: str):
    """A position in the topic that is created again would skip the lines of the first one."""
    async with orders() as (world, admin):
        async with Producer(client(world, "importer"), name="import-1") as running:
            await running.open("orders")
            await running.send_and_wait("orders", b"k", LINES[0], source_position=b"1")
            errors = [(ForgottenError, "is not known")] * 2
            if deleted == "topic":
                await admin.delete_topic("orders")
                await create(world)
                errors = [(RequestRejectedError, "'orders' was deleted and created again: it has id")]
            else:
                await admin.delete_producer("import-1")
            for error, text in errors:
                with pytest.raises(error, match=text):
                    await running.send_and_wait("orders", b"k", LINES[1], source_position=b"2")
        assert (deleted == "producer") == await import_lines(world), "whether the name is new"

    assert [LINES[0], *LINES] == await stored(world)


async def test_an_anonymous_producer_that_was_forgotten_continues_under_a_new_identity():
    """It opens its identity before it sends the next batch, so nothing that was sent is unknown."""
    async with (
        orders(ingest=IngestSettings(producer_idle_seconds=60)) as (world, _),
        Producer(client(world, "sensor")) as producer,
    ):
        for line in LINES:
            metadata = await producer.send_and_wait("orders", b"k", line)
            assert not metadata.duplicate
            await asyncio.sleep(70)
        session = producer.sessions[0].session
        assert (0, len(LINES) - 1) == (session.resent_batches, session.epoch_bumps)

    assert LINES == await stored(world)


async def test_named_producers_are_listed_described_and_deleted():
    async with orders() as (world, admin):
        for name in ("import-2", "import-1"):
            await import_lines(world, name)
        async with world.client("devices") as devices:  # an anonymous one, which is not listed
            assert isinstance(await devices.call(OpenProducer, token="d", leader_epoch=None), ProducerIdentity)
        listed = await admin.list_producers()
        described = await admin.describe_producer("import-1")
        await admin.delete_producer("import-1")
        left = await admin.list_producers()
        for command in (admin.describe_producer, admin.delete_producer):
            with pytest.raises(RequestRejectedError, match="no shard has a producer 'import-1'"):
                await command("import-1")

    assert ["import-1", "import-2"] == [info.producer for info in listed]
    assert listed[:1] == described
    [first] = described
    positions = [(each.topic, each.position) for each in first.positions]
    assert (0, 0, 1, [("orders", b"5")]) == (first.shard, first.producer_epoch, first.next_sequence, positions)
    assert listed[1:] == left


async def test_a_position_belongs_to_one_topic():
    """For another topic of the shard, or one that was created again, the import starts at the beginning."""
    world = OneShard()
    async with world.leader(), Admin(client(world, "admin")) as admin:
        for topic in ("orders", "returns"):
            await admin.create_topic(topic)
            for _ in range(2):
                await import_lines(world, topic=topic)
        await admin.delete_topic("orders")
        await admin.create_topic("orders")
        for _ in range(2):
            assert not await import_lines(world), "the name stays"
        described = await admin.describe_producer("import-1")

    assert [*LINES, *LINES, *LINES] == await stored(world)
    assert {("orders", b"5"), ("returns", b"5")} == {(each.topic, each.position) for each in described[0].positions}


@pytest.mark.parametrize("lost", ["records", "records, long ago", "an opening"])
async def test_an_import_that_runs_while_an_older_ledger_is_put_back_skips_no_record(lost: str):
    """The ledger lacks line 3. It learns that from the first line behind it, whose sequence may be the next one."""

    async def send(producer: Producer, *numbers: int) -> None:
        for number in numbers:
            await producer.send_and_wait("orders", b"k", LINES[number - 1], source_position=b"%d" % number)

    world = OneShard()
    async with AsyncExitStack() as programs:
        async with world.leader():
            await create(world)
            running = await programs.enter_async_context(Producer(client(world, "importer"), name="import-1"))
            await running.open("orders")
            await send(running, 1, 2)
            backup = dict(world.store.objects)
            await send(running, 3)
            await asyncio.sleep(100 if lost == "records, long ago" else 1)
            if lost == "an opening":
                running = await programs.enter_async_context(Producer(client(world, "again"), name="import-1"))
                await running.open("orders")
        world.store.objects.clear()
        world.store.objects.update(backup)
        async with world.leader("b"):
            with pytest.raises(
                RequestRejectedError, match=r"an older ledger was put back; open the topic again|at epoch 0"
            ):
                await send(running, 4)
            if lost != "an opening":  # That has ended the program.
                await running.open("orders")
                assert running.source_position == b"2"
                await send(running, 3, 4)
            await import_lines(world)
            assert LINES == await stored(world)
