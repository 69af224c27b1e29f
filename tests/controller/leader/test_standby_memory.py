"""Followers keep states within the memory limit, and follow the terms of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from controller.leader.follower import LISTING_INTERVAL_SECONDS
from controller.leader.standby_memory import READERS, TURN_SECONDS, StandbyMemory
from controller.leadership.election import SeenQueue
from controller.snapshots.job import take_snapshot
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_path
from headgate.model import entries as e
from tests.support.fakes.object_store import FakeStore
from tests.support.waiting import never, until
from tests.support.worlds.contenders import Cluster, Contender

pytestmark = pytest.mark.looptime


def propose_topic(leader: Contender, name: str = "orders") -> None:
    state = leader.leader.state
    leader.leader.commit.propose(e.TopicCreated(topic_id=state.next_id, topic=name, segments=4, token=name))


@asynccontextmanager
async def led(cluster: Cluster) -> AsyncIterator[Contender]:
    """A leader with one topic."""
    async with Contender(cluster, "a").running() as leader:
        await until(lambda: leader.leads)
        propose_topic(leader)
        await leader.leader.commit.flush()
        yield leader


def follower_of(cluster: Cluster, name: str, memory_bytes: int) -> Contender:
    follower = Contender(cluster, name)
    follower.standby_bytes = memory_bytes
    return follower


async def test_a_follower_without_memory_releases_the_state_and_follows_the_terms() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 0).running() as follower:
        await until(lambda: not follower.controller.follower.keeps_state)
        propose_topic(leader, "other")
        await until(lambda: follower.controller.follower.end.chunk == 3)

        assert ("a", 1) == (
            follower.controller.follower.end.leader_instance,
            follower.controller.follower.end.leader_epoch,
        )
        assert not follower.controller.follower.state.topics


async def test_a_follower_that_releases_a_state_continues_from_its_chunk_without_a_listing() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        async with led(cluster) as leader, follower_of(cluster, "b", 1 << 30).running() as follower:
            await until(lambda: follower.controller.follower.end.chunk == 2)
            listings = follower.store.calls["names"]
            follower.standby_bytes = 0
            await until(lambda: not follower.controller.follower.keeps_state)
            propose_topic(leader, "other")
            await until(lambda: follower.controller.follower.end.chunk == 3)
            assert listings == follower.store.calls["names"]

    assert [{"event": "standby.released", "log_level": "info", "shard": 0, "chunk": 2}] == [
        line for line in logs if line["event"] == "standby.released"
    ]


async def test_a_follower_that_keeps_no_state_starts_at_the_end_of_the_ledger() -> None:
    """Another one is next in the queue."""
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 0).running() as other:
        await until(lambda: leader.elections.queue(0) == SeenQueue("a", frozenset("b")))
        await until(lambda: not other.controller.follower.keeps_state)
        for number in range(50):
            propose_topic(leader, f"t{number}")
            await leader.leader.commit.flush()
        with capture_logs() as logs:
            async with follower_of(cluster, "c", 0).running() as follower:
                await until(lambda: follower.controller.follower.end.chunk == 52)
                assert follower.store.calls["read"] < 20
    assert "standby.released" not in [line["event"] for line in logs]


async def test_only_states_that_are_not_in_memory_wait_for_their_turn_to_be_read() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, AsyncExitStack() as turns:
        warm, cold = (follower_of(cluster, name, 1 << 30) for name in "bc")
        async with warm.running():
            await until(lambda: warm.controller.follower.end.chunk == 2)
            for _ in range(4):
                await turns.enter_async_context(warm.standby.turn_to_read())
            propose_topic(leader, "other")
            await until(lambda: warm.controller.follower.end.chunk == 3, 3)

        for _ in range(4):
            await turns.enter_async_context(cold.standby.turn_to_read())
        async with cold.running():
            await never(lambda: cold.controller.follower.end.chunk, 20)
            await turns.aclose()
            await until(lambda: cold.controller.follower.end.chunk == 3, 3)


async def test_a_term_starts_while_its_state_waits_for_its_turn_and_the_state_is_not_read_then() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, AsyncExitStack() as turns:
        follower = follower_of(cluster, "b", 1 << 30)
        for _ in range(4):
            await turns.enter_async_context(follower.standby.turn_to_read())
        async with follower.running():
            await asyncio.sleep(3)
            await leader.stop()
            await until(lambda: follower.leads, 3)
            await turns.aclose()
            await asyncio.sleep(3)

            assert {"orders"} == set(follower.leader.state.topics)
            assert follower.controller.follower.state.chunk == 0, "it would be in memory twice"


async def test_a_term_starts_after_a_read_of_the_follower_that_hangs() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 1 << 30).running() as follower:
        await until(lambda: follower.controller.follower.end.chunk == 2)
        follower.store.freeze()
        for number in range(3):
            propose_topic(leader, f"t{number}")
            await leader.leader.commit.flush()
        await asyncio.sleep(2)
        await leader.stop()
        await asyncio.sleep(2)
        follower.store.thaw()
        await until(lambda: follower.leads, 3)

        assert {"orders", "t0", "t1", "t2"} == set(follower.leader.state.topics)


async def test_a_shard_that_the_daemon_leads_needs_no_memory_for_followed_states() -> None:
    """Two shards, of which one fits. When the first one is led, the second one is read."""
    cluster = Cluster()
    leader = Contender(cluster, "a", shards=1, contends_for=2)
    async with leader.running():
        await until(lambda: leader.led == {0, 1})
        for controller in leader.controllers:
            assert controller.leader is not None
            controller.leader.commit.propose(e.TopicCreated(topic_id=1, topic="orders", segments=4, token="t"))
            await controller.leader.commit.flush()
        follower = Contender(cluster, "b", shards=1, contends_for=2)
        follower.standby_bytes = 3000
        async with follower.running():
            await until(lambda: [each.follower.keeps_state for each in follower.controllers] == [True, False])
            assert await leader.controllers[0].start_transfer("b", "operator") is None
            await until(lambda: follower.led == {0})

            await until(lambda: follower.controllers[1].follower.keeps_state, 5)


async def test_a_follower_without_memory_takes_over_with_the_whole_state() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 0).running() as follower:
        await until(lambda: not follower.controller.follower.keeps_state)
        await leader.stop()
        await until(lambda: follower.leads)

        assert {"orders"} == set(follower.leader.state.topics)
        assert follower.controller.follower.keeps_state


async def test_the_state_is_read_again_once_there_is_memory() -> None:
    cluster = Cluster()
    async with led(cluster), follower_of(cluster, "b", 0).running() as follower:
        await until(lambda: not follower.controller.follower.keeps_state)
        follower.standby_bytes = 1 << 30
        await until(lambda: follower.controller.follower.keeps_state)

        await until(lambda: bool(follower.controller.follower.state.topics))


async def test_the_next_in_the_queue_keeps_the_state() -> None:
    """Two shards, of which one fits. The follower is next for shard 1 only, so it keeps that one."""
    cluster = Cluster()
    leader = Contender(cluster, "a", shards=1, contends_for=2)
    async with leader.running():
        await until(lambda: leader.led == {0, 1})
        for controller in leader.controllers:
            assert controller.leader is not None
            controller.leader.commit.propose(e.TopicCreated(topic_id=1, topic="orders", segments=4, token="t"))
            await controller.leader.commit.flush()
        async with Contender(cluster, "b").running() as other:
            await until(lambda: other.elections.queue(0) is not None)
            follower = Contender(cluster, "c", shards=1, contends_for=2)
            follower.standby_bytes = 3000
            async with follower.running():
                await until(lambda: [each.follower.keeps_state for each in follower.controllers] == [False, True])
                seen = [follower.elections.queue(shard) for shard in (0, 1)]
                assert ["b", "c"] == [queue.next for queue in seen if queue is not None]


async def test_the_lag_grows_while_the_ledger_cannot_be_read() -> None:
    cluster = Cluster()
    async with led(cluster), follower_of(cluster, "b", 1 << 30).running() as follower:
        await until(lambda: follower.controller.follower.end.chunk == 2)
        assert follower.controller.follower.lag_seconds < 2
        follower.store.freeze()
        await asyncio.sleep(30)

        assert follower.controller.follower.lag_seconds > 25
        follower.store.thaw()
        await until(lambda: follower.controller.follower.lag_seconds < 2)


async def test_chunks_that_were_trimmed_before_they_were_read_are_noticed() -> None:
    """The follower waits for a number that does not come; a listing shows later ones."""
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 0).running() as follower:
        await until(lambda: not follower.controller.follower.keeps_state)
        follower.store.freeze()
        for number in range(3):
            propose_topic(leader, f"topic-{number}")
            await leader.leader.commit.flush()
        await take_snapshot(Ledger(FakeStore(objects=cluster.objects), 0), least_chunks=1, now_ms=0)
        leader.leader.commit.propose(e.LedgerTrimmed(below=4))
        await leader.leader.commit.flush()
        for number in (2, 3):
            del cluster.objects[chunk_path(0, number)]
        follower.store.thaw()

        await until(lambda: follower.controller.follower.end.chunk == 6, seconds=LISTING_INTERVAL_SECONDS + 60)
        await asyncio.sleep(3)
        assert not follower.controller.follower.keeps_state
        assert follower.controller.follower.state.chunk == 0, "the state that was read for the listing is released"


@pytest.mark.parametrize(("seconds", "keeps"), [(59.5, True), (60.0, False)])
async def test_a_state_stays_for_a_minute_after_the_daemon_was_a_successor(seconds: float, keeps: bool) -> None:
    memory = StandbyMemory("a", Cluster().zookeeper.elections("a", lambda _: None), lambda: 1 << 30)
    memory.assign({0: ("b", "a")})
    assert memory.keeps(0, 100)
    memory.assign({})
    await asyncio.sleep(seconds)

    assert keeps == memory.keeps(0, 100)


async def test_a_read_that_hangs_gives_up_its_turn_once() -> None:
    """Other shards can be read then, and never more than as many at a time."""
    cluster = Cluster()
    memory = StandbyMemory("a", cluster.zookeeper.elections("a", lambda _: None), lambda: 1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    turns: list[float] = []

    async def read(seconds: float) -> None:
        async with memory.turn_to_read():
            turns.append(loop.time() - began)
            await asyncio.sleep(seconds)

    hanging = [asyncio.create_task(read(1000)) for _ in range(READERS)]
    await asyncio.gather(*(read(1) for _ in range(2 * READERS)))
    assert turns == [0.0] * READERS + [TURN_SECONDS] * READERS + [TURN_SECONDS + 1] * READERS

    await asyncio.gather(*hanging)
    began = loop.time()
    turns.clear()
    await asyncio.gather(*(read(1) for _ in range(2 * READERS)))
    assert turns == [0.0] * READERS + [1.0] * READERS
