"""Exactly once and in order over a real broker and real daemons, whatever happens to messages, leaders and deadlines.

The ledger is the judge each time. A rule of the meddler stands for the network; SIGSTOP and SIGKILL for the machine.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headgate import FencedError, OutcomeUnknownToProducerError, Producer, ProducerSettings, RefusedError, Stored
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.cluster import Cluster
from tests.support.fault_injecting_transport import as_it_is, lost
from tests.support.ingest_environment import Bare, World, assert_stored_exactly, meddler_of, outcomes, send
from tests.support.programs import PATIENCE, TEST_SECONDS, eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS), pytest.mark.asyncio(loop_scope="module")]

QUICK = ProducerSettings(batch_bytes=200, request_timeout_seconds=0.4)
"""Batches of a few records, asked for again soon."""
DELIVERY_SECONDS = 2.5 * PATIENCE
"""Where a record is to expire: what is not kept from arriving must make it in time on a slow machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Two daemons that lead two shards; a test that kills one starts another."""
    async with Cluster(tmp_path_factory.mktemp("ingest")) as cluster:
        await cluster.start_servers()
        made = World(cluster)
        first = await made.start("first")
        await first.until_leading()
        await made.start("second")
        yield made


def some(rng: random.Random, probability: float, otherwise: Any = as_it_is) -> Any:
    """A rule that loses messages with ``probability``."""
    return lambda message: lost(message) if rng.random() < probability else otherwise(message)


def late_and_doubled(rng: random.Random) -> Any:
    """A rule that delays everything by up to 60 ms, so that it arrives in any order, and doubles a third."""
    return lambda message: [(rng.uniform(0.001, 0.06), message) for _ in range(1 + (rng.random() < 0.35))]


@pytest.mark.parametrize("weather", ["replies dropped", "requests dropped", "delayed and doubled", "all at once"])
async def test_every_record_is_stored_once_and_in_order_in(weather: str, world: World) -> None:
    topic, rng = await world.topic(), random.Random(weather)
    async with world.client() as client, Producer(client, settings=QUICK) as producer:
        meddler = meddler_of(client)
        if weather in ("replies dropped", "all at once"):
            meddler.on_reply = some(rng, 0.2)
        if weather in ("requests dropped", "all at once"):
            meddler.on_request = some(rng, 0.2)
        if weather == "delayed and doubled":
            meddler.on_reply = meddler.on_request = late_and_doubled(rng)
        if weather == "all at once":
            meddler.on_reply = meddler.on_request = some(rng, 0.1, late_and_doubled(rng))
        told = await outcomes(await send(producer, topic, range(200), pause_seconds=0.002))
        batches = [request for request in meddler.requests if isinstance(request, m.ProduceBatch)]

    assert producer.resent_batches > 0 or weather == "delayed and doubled"
    assert len({batch.sequence for batch in batches}) > 10
    await assert_stored_exactly(world, topic, range(200), told)


async def test_a_leader_paused_across_a_batch_is_succeeded_and_what_it_was_sent_is_stored_once(world: World) -> None:
    """Past its session's time-out; another leads, takes the batch; the first one wakes with the batch in its hands."""
    topic = await world.topic()
    async with world.client() as client, Producer(client, settings=QUICK) as producer:
        bare = Bare(client, 0)
        told = await outcomes(await send(producer, topic, range(20)))
        epoch, known = await bare.epoch(), client.leader(0)
        assert known is not None
        paused = world.daemons[known.instance]
        paused.running.signal(signal.SIGSTOP)
        deliveries = await send(producer, topic, range(20, 120))
        try:
            told += await outcomes(deliveries, 40)
            after = client.leader(0)
            assert after is not None
            assert (after.leader_epoch > epoch, after.instance != known.instance) == (True, True)
        finally:
            paused.running.signal(signal.SIGCONT)

        async def follows() -> bool:
            return await paused.leads() == 0

        # What it was sent while it stood still reaches it now.
        await eventually(follows, "the paused daemon knows that it no longer leads")
        told += await outcomes(await send(producer, topic, range(120, 140)))

    await assert_stored_exactly(world, topic, range(140), told)


async def test_refused_once_and_accepted_in_the_same_epoch_loses_nothing(world: World) -> None:
    """The leader itself refuses one batch, by the epoch written on it, while it takes those around it."""
    topic, refused = await world.topic(), set[int]()

    def wrong_epoch_once(request: m.AnyRequest) -> Sequence[tuple[float, m.AnyRequest]]:
        if isinstance(request, m.ProduceBatch) and request.sequence % 7 == 3 and request.sequence not in refused:
            refused.add(request.sequence)
            assert request.leader_epoch is not None
            return [(0.0, msgspec.structs.replace(request, leader_epoch=request.leader_epoch - 1))]
        return [(0.0, request)]

    async with world.client() as client, Producer(client, settings=QUICK) as producer:
        meddler_of(client).on_request = wrong_epoch_once
        told = await outcomes(await send(producer, topic, range(300)))
        verdicts = {reply.verdict for reply in meddler_of(client).replies if isinstance(reply, m.Refused)}

    assert len(refused) > 3
    assert {"not_leader", "out_of_order"} <= verdicts, "what came behind was kept out, in the same epoch"
    await assert_stored_exactly(world, topic, range(300), told)


async def test_the_first_batch_refused_and_the_second_offered(world: World) -> None:
    """The second must not pass; then both go through in their order."""
    topic = await world.topic(segments=1)
    async with world.client() as client:
        bare = Bare(client, 0)
        batches = await numbered(bare, topic, 2)
        epoch = await bare.epoch()
        first, second = await asyncio.gather(
            bare.ask(m.ProduceBatch, **batches[0], leader_epoch=epoch - 1), bare.ask(m.ProduceBatch, **batches[1])
        )
        again = [await bare.ask(m.ProduceBatch, **each) for each in batches]

    assert ("not_leader", "out_of_order") == (first.verdict, second.verdict)
    assert [0, 1] == [reply.placements[0].first_offset for reply in again]
    await assert_stored_exactly(world, topic, range(2))


async def numbered(bare: Bare, topic: str, count: int, **opening: Any) -> list[dict[str, Any]]:
    """The fields of ``count`` batches of one record, under an identity of their own."""
    identity = await bare.ask(m.OpenProducer, token=bare.client.new_token(), **opening)
    return [
        {
            "topic": topic,
            "records": [m.Record(f"key-{sequence % 7}".encode(), b"%d" % sequence, 0)],
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
            "sequence": sequence,
        }
        for sequence in range(count)
    ]


@pytest.mark.parametrize("fate", ["stored", "lost"])
async def test_a_batch_in_flight_at_its_deadline_is_unknown_and_the_producer_goes_on_by_itself(
    fate: str, world: World
) -> None:
    """Its reply, or itself, never arrives. What comes after it has the next epoch, from 0; a late copy is fenced."""
    topic = await world.topic()
    settings = ProducerSettings(batch_bytes=200, request_timeout_seconds=0.2, delivery_timeout_seconds=DELIVERY_SECONDS)
    async with world.client() as client, Producer(client, settings=settings) as producer:
        meddler = meddler_of(client)
        assert all(isinstance(each, Stored) for each in await outcomes(await send(producer, topic, range(10))))
        if fate == "stored":
            meddler.on_reply = lost
        else:
            meddler.on_request = lost
        sent_before = len(meddler.requests)
        unknown = await outcomes(await send(producer, topic, range(10, 12)))
        late = [each for each in meddler.requests[sent_before:] if isinstance(each, m.ProduceBatch)]
        meddler.on_request = meddler.on_reply = as_it_is
        told = await outcomes(await send(producer, topic, range(12, 40)))
        bare = Bare(client, 0)
        fields = {name: getattr(late[0], name) for name in ("topic", "records", "producer_id", "sequence")}
        copy = await bare.ask(m.ProduceBatch, **fields, producer_epoch=late[0].producer_epoch)
        entries = await world.entries()

    assert all(isinstance(each, OutcomeUnknownToProducerError) for each in unknown)
    assert all(isinstance(each, Stored) for each in told)
    assert "fenced" == copy.verdict
    epochs = [
        (entry.producer_epoch, entry.sequence)
        for entry in entries
        if isinstance(entry, e.RecordsStored) and entry.producer_id == late[0].producer_id
    ]
    assert (1, 0) in epochs
    assert sorted(set(epochs)) == epochs, "each epoch counts from 0, once, and epochs do not go back"
    stored = range(40) if fate == "stored" else [*range(10), *range(12, 40)]
    await assert_stored_exactly(world, topic, stored)


async def test_a_zombie_with_an_old_producer_epoch_is_fenced_and_stores_nothing(world: World) -> None:
    topic = await world.topic()
    async with (
        world.client() as one,
        world.client() as two,
        Producer(one, name=f"loader-{topic}", settings=QUICK) as zombie,
        Producer(two, name=f"loader-{topic}", settings=QUICK) as successor,
    ):
        told = await outcomes(await send(zombie, topic, range(10)))
        told += await outcomes(await send(successor, topic, range(10, 20)))
        (fenced,) = await outcomes([await zombie.send(topic, b"key-0", b"777")])
        told += await outcomes(await send(successor, topic, range(20, 30)))
        with pytest.raises(FencedError):
            await zombie.open(topic)

    assert isinstance(fenced, RefusedError)
    assert "fenced" == fenced.verdict
    await assert_stored_exactly(world, topic, range(30), told)


async def test_a_reopened_identity_whose_reply_was_lost_gets_the_same_answer(world: World) -> None:
    """At the first opening, and at the bump after a gap: one token, one entry, one epoch, however often asked."""
    topic = await world.topic()
    settings = ProducerSettings(batch_bytes=200, request_timeout_seconds=0.2, delivery_timeout_seconds=DELIVERY_SECONDS)
    dropped: dict[int, int] = {}

    def twice_lost(reply: m.AnyReply) -> Sequence[tuple[float, m.AnyReply]]:
        if isinstance(reply, m.ProducerIdentity):
            dropped[reply.producer_epoch] = dropped.get(reply.producer_epoch, 0) + 1
            if dropped[reply.producer_epoch] <= 2:
                return []
        return [(0.0, reply)]

    async with world.client() as client, Producer(client, name=f"n-{topic}", settings=settings) as producer:
        meddler = meddler_of(client)
        meddler.on_reply = twice_lost
        await producer.open(topic)
        told = await outcomes(await send(producer, topic, range(10)))
        meddler.on_request = lost
        await outcomes(await send(producer, topic, range(10, 11)))
        meddler.on_request = as_it_is
        after = await outcomes(await send(producer, topic, range(11, 20)), 60)
        openings = [request for request in meddler.requests if isinstance(request, m.OpenProducer)]
        entries = await world.entries()

    assert all(isinstance(each, Stored) for each in (*told, *after))
    opened = [entry for entry in entries if isinstance(entry, e.ProducerOpened) and entry.name == f"n-{topic}"]
    assert [0, 1] == [entry.producer_epoch for entry in opened]
    assert 6 <= len(openings), "each was asked for three times"
    assert {entry.token for entry in opened} == {request.token for request in openings}
    await assert_stored_exactly(world, topic, [*range(10), *range(11, 20)])


async def test_a_shard_without_a_leader_starves_no_other_of_bytes(world: World) -> None:
    """Its records fill the buffer, and whoever sends more of them waits; the other shard's go through meanwhile."""
    stuck, moving = await world.topic(shard=1), await world.topic(shard=0)
    settings = ProducerSettings(batch_bytes=200, buffer_bytes=20_000, guaranteed_bytes=4_000)
    async with world.client() as client:
        meddler, leader_topic = meddler_of(client), m.leader_topic(world.cluster.name, 1)
        meddler.hold_leader(leader_topic)
        async with Producer(client, settings=settings) as producer:
            filling = asyncio.create_task(send(producer, stuck, range(1000)))
            await eventually(lambda: producer.buffered_bytes >= 15_000, "the stuck shard's records fill the buffer")
            told = await outcomes(await send(producer, moving, range(500)))
            assert not filling.done(), "the stuck shard's sender waits for room"
            assert all(isinstance(each, Stored) for each in told)
            meddler.release_leader(leader_topic)
            late = await outcomes(await filling)

    await assert_stored_exactly(world, moving, range(500), told)
    await assert_stored_exactly(world, stuck, range(1000), late)


async def test_seconds_without_any_leader_and_then_flow_again(world: World) -> None:
    """Both daemons are killed, and a third one is started; the producer is never told of any of it."""
    topic = await world.topic()
    async with world.client() as client, Producer(client, settings=QUICK) as producer:
        deliveries = await send(producer, topic, range(50))
        loop = asyncio.get_running_loop()
        for name in list(world.daemons):
            await world.daemons.pop(name).running.kill()
        without_since = loop.time()
        deliveries += await send(producer, topic, range(50, 250), pause_seconds=0.025)
        pending = [each for each in deliveries if not each.done()]
        assert loop.time() - without_since >= 10 * QUICK.request_timeout_seconds
        assert len(pending) >= 200
        await world.start("third")
        told = await outcomes(deliveries, 40)
        began_again = loop.time()
        told += await outcomes(await send(producer, topic, range(250, 300)))
        assert loop.time() - began_again < 5 * PATIENCE

    await assert_stored_exactly(world, topic, range(300), told)
