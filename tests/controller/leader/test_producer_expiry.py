"""Producers that a leader forgets when they are idle or too many, and the table that its successor finds."""

import asyncio

import pytest

from controller.settings.sections import IngestSettings
from headgate.protocol.requests import OpenProducer, ProduceBatch
from tests.support.whole_state import everything
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import batch, created, opened

pytestmark = pytest.mark.looptime


DAY_MS = 86_400_000


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


async def test_the_producer_table_survives_a_change_of_leader() -> None:
    """Identities, epochs, windows, tokens, positions and the order of use are replayed from the ledger."""
    shard = OneShard(ingest=IngestSettings(max_producers=3))
    async with shard.client() as client:
        async with shard.leader("a") as leader:
            await created(client)
            for token in "abcd":
                identity = await opened(client, token)
                for sequence in range(3):
                    await client.call(ProduceBatch, **batch(identity, sequence))
            for incarnation, token in enumerate("xyz"):
                loader = await client.call(OpenProducer, token=token, name="loader", incarnation=incarnation)
            await client.call(ProduceBatch, **batch(loader, 0, source_position=b"7", topic_id=1))
            await client.call(
                OpenProducer, token="bump", producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
            )
            await asyncio.sleep(1)
            before, known = everything(leader.state.producers), len(leader.state.producers)
        async with shard.leader("b") as leader:
            after = everything(leader.state.producers)

    assert 3 + 1 == known
    assert before == after
