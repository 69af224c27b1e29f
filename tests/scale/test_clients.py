"""Generated clients with the real leader of a shard, over a fake broker and store, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.protocol import messages as m
from scale.clients import TIMEOUT_SECONDS, GeneratedClients, Notify, Shares
from scale.sizes import Sizes, topic_name
from scale.watch import Probe
from tests.support.worlds.one_shard import CLUSTER, OneShard, now_ms

pytestmark = pytest.mark.looptime

SIZES = Sizes(shards=1, daemons=1, topics=2, segments=16, consumers=6, producers=40)


def client(world: OneShard, client_id: str) -> Client:
    description = m.ClusterDescription(protocol=m.PROTOCOL_VERSION, shards=1, ledger_url="file:///x")
    world.broker.retained[m.cluster_topic(CLUSTER)] = m.encode(description)
    return Client(
        transport=world.broker.transport(client_id, will=Client.will(CLUSTER, client_id)),
        store=None,
        cluster=CLUSTER,
        client_id=client_id,
        now_ms=now_ms,
        rng=random.Random(client_id),
    )


@asynccontextmanager
async def generated(
    world: OneShard, number: int = 0, processes: int = 1, notify: Notify = lambda _: None
) -> AsyncIterator[GeneratedClients]:
    shares = Shares(sizes=asdict(SIZES), number=number, processes=processes, connections=2, in_flight=8)
    async with client(world, f"{number}-a") as first, client(world, f"{number}-b") as second:
        yield GeneratedClients(shares, [first, second], notify)


async def create_topics(world: OneShard) -> None:
    async with Admin(client(world, "admin")) as admin:
        for number in range(SIZES.topics):
            await admin.create_topic(topic_name(number), segments=8)


async def test_the_clients_of_a_shard_open_producers_and_hold_all_segments_and_keep_them_under_a_new_leader() -> None:
    world = OneShard()
    async with generated(world) as first, generated(world, 1, 2) as second:
        async with world.leader("a"):
            await create_topics(world)
            assert 6 == len((await first.join())["took_ms"])
            await asyncio.sleep(5)
            state = await first.state()
            assert {"consumers": 6, "segments": 16, "idle": 0} == {name: state[name] for name in list(state)[:3]}
            assert 6 == state["registrations"]
            answer = await second.open()
            assert (40, 0) == (answer["opened"], answer["failed"])
        async with world.leader("b") as leader:
            assert 40 == (await first.open())["opened"]
            state = await first.state()
            assert {"consumers": 6, "segments": 16, "idle": 0} == {name: state[name] for name in list(state)[:3]}
            assert 12 == state["registrations"], "each registered again"
            assert 80 == len(leader.state.producers), "each of the two has the only shard"


async def test_a_process_reports_its_progress_while_openings_wait_and_ends_when_too_many_have_failed() -> None:
    world, notified = OneShard(), list[dict[str, int]]()
    async with generated(world, notify=notified.append) as clients:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ExceptionGroup) as caught:
            await clients.open()
        assert TIMEOUT_SECONDS == pytest.approx(asyncio.get_running_loop().time() - began, abs=10)
        assert {"done": 0, "of": 40} == notified[0]
        assert 11 <= len(notified) <= 13, "every ten seconds"
        assert "1 of 40 openings failed, after 0 that did not; the last one:" in str(caught.value.exceptions[0])
        async with world.leader("a"):
            notified.clear()
            assert 40 == (await clients.open())["opened"]
            await asyncio.sleep(60)
            assert [] == notified, "nothing comes after the answer"


async def test_a_probe_waits_as_long_as_a_shard_has_no_leader() -> None:
    world = OneShard()
    async with client(world, "probe") as connected:
        probe = Probe(connected, {0: topic_name(0)})
        async with world.leader("a"):
            await create_topics(world)
            await probe.__aenter__()
            await asyncio.sleep(1.0)
            assert 0.2 > max(probe.take()[0])
        await asyncio.sleep(4.0)
        async with world.leader("b"):
            await asyncio.sleep(5.0)
            assert 4.0 <= max(probe.take()[0]) < 9.0
            assert [] == probe.failures
            await probe.__aexit__(None, None, None)
