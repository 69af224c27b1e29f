"""Producers that a leader forgets when they are idle or too many, and the table that its successor finds."""

import asyncio

import pytest

from controller.settings.load import IngestSettings
from headgate.protocol import messages as m
from tests.support.whole_state import everything
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.producing_clients import batch, created, opened, producing

pytestmark = pytest.mark.looptime


DAY_MS = 86_400_000


async def test_idle_producers_expire_through_an_entry() -> None:
    shard = OneShard(ingest=IngestSettings(producer_idle_seconds=100))
    async with shard.leader() as leader, shard.client() as client:
        await opened(client)
        await asyncio.sleep(99)
        assert 1 == len(leader.state.producers)
        await asyncio.sleep(3)
        assert 0 == len(leader.state.producers)
        newest = await shard.ledger.read(await shard.ledger.newest())

    assert "ProducersExpired" == type(newest.entries[-1]).__name__


async def test_no_producer_expires_because_the_clock_jumps() -> None:
    """Neither in a term whose clock is set, nor in the next one, whose machine is wrong from the start."""
    shard = OneShard()
    async with shard.leader() as leader, shard.client() as client:
        await asyncio.sleep(1)
        await opened(client)
        shard.clock_ahead_ms = 8 * DAY_MS
        await asyncio.sleep(2)
        await opened(client, "second")
        assert 2 == len(leader.state.producers)
        assert leader.state.at_ms > 8 * DAY_MS
    shard.clock_ahead_ms = 16 * DAY_MS
    async with shard.leader("b") as leader:
        await asyncio.sleep(60)
        assert 2 == len(leader.state.producers)


async def test_idle_time_counts_although_nothing_is_stored() -> None:
    """Otherwise a shard without traffic would keep everything permanently."""
    shard = OneShard(ingest=IngestSettings(producer_idle_seconds=1.25 * 3600))
    async with shard.leader() as leader, shard.client() as client:
        await asyncio.sleep(1)
        await opened(client)
        before = leader.state.chunk
        await asyncio.sleep(1.25 * 3600 - 10)
        assert (1, 2) == (len(leader.state.producers), leader.state.chunk - before), "an empty chunk per half hour"
        await asyncio.sleep(20)
        assert 0 == len(leader.state.producers)


async def test_beyond_the_producer_limit_the_least_recently_used_expire() -> None:
    shard = OneShard(ingest=IngestSettings(max_producers=2))
    async with shard.leader() as leader, shard.client() as client:
        await created(client)
        identities = [await opened(client, token) for token in "ab"]
        await client.call(m.ProduceBatch, **batch(identities[0], 0))
        third = await opened(client, "c")
        await asyncio.sleep(1)

        assert {identities[0].producer_id, third.producer_id} == set(leader.state.producers)


async def test_a_producer_with_a_batch_in_flight_does_not_expire_at_the_limit() -> None:
    """Its next batch, or a repetition of this one, needs its history."""
    shard = OneShard(ingest=IngestSettings(max_producers=2))
    async with shard.leader() as leader, shard.client() as client:
        await created(client)
        first, second = [await opened(client, token) for token in "ab"]
        shard.store.freeze()
        batches = [client.send(m.ProduceBatch, **batch(each, 0)) for each in (first, second)]
        third = client.send(m.OpenProducer, token="c")
        await asyncio.sleep(3)
        assert 3 == len(leader.state.producers)
        again = client.send(m.ProduceBatch, **batch(first, 0))
        shard.store.thaw()
        assert all([isinstance(await client.reply(each), m.Committed) for each in batches])
        assert (await client.reply(again)).duplicate
        third_id = (await client.reply(third)).producer_id
        await asyncio.sleep(1)

        assert {second.producer_id, third_id} == set(leader.state.producers)


async def test_an_idle_producer_with_a_batch_in_flight_does_not_expire() -> None:
    """A slow write can take longer than the idle limit."""
    patient = IngestSettings(producer_idle_seconds=60, write_timeout_seconds=300, unreachable_seconds=300)
    shard = OneShard(ingest=patient)
    async with shard.leader() as leader, producing(shard) as (client, identity):
        shard.store.freeze()
        request = client.send(m.ProduceBatch, **batch(identity, 0))
        await asyncio.sleep(100)
        assert {identity.producer_id} == set(leader.state.producers)
        shard.store.thaw()
        assert isinstance(await client.reply(request), m.Committed)
        await asyncio.sleep(1)

        assert {} == dict(leader.state.producers)


async def test_an_expired_producer_must_open_a_new_identity() -> None:
    shard = OneShard(ingest=IngestSettings(producer_idle_seconds=60))
    async with shard.leader(), producing(shard) as (client, identity):
        await client.call(m.ProduceBatch, **batch(identity, 0))
        await asyncio.sleep(70)
        rejected = await client.call(m.ProduceBatch, **batch(identity, 1))

    assert "forgotten" == rejected.verdict


async def test_the_producer_table_survives_a_change_of_leader() -> None:
    """Identities, epochs, windows, tokens, positions and the order of use are replayed from the ledger."""
    shard = OneShard(ingest=IngestSettings(max_producers=3))
    async with shard.client() as client:
        async with shard.leader("a") as leader:
            await created(client)
            for token in "abcd":
                identity = await opened(client, token)
                for sequence in range(3):
                    await client.call(m.ProduceBatch, **batch(identity, sequence))
            for incarnation, token in enumerate("xyz"):
                loader = await client.call(m.OpenProducer, token=token, name="loader", incarnation=incarnation)
            await client.call(m.ProduceBatch, **batch(loader, 0, source_position=b"7", topic_id=1))
            await client.call(
                m.OpenProducer, token="bump", producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
            )
            await asyncio.sleep(1)
            before, known = everything(leader.state.producers), len(leader.state.producers)
        async with shard.leader("b") as leader:
            after = everything(leader.state.producers)

    assert 3 + 1 == known
    assert before == after
