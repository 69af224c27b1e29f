"""Followers keep states within the memory limit, and follow the terms of the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from controller.leader.follower import LISTING_INTERVAL_SECONDS
from controller.leader.standby_memory import READERS, TURN_SECONDS
from controller.snapshots.job import take_snapshot
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from tests.support.fakes.object_store import FakeStore
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender


def propose_topic(leader: Contender, name: str = "orders") -> None:
    state = leader.leader.state
    leader.leader.commit.propose(e.TopicCreated(topic_id=state.ids.next_id, topic=name, segments=4, token=name))


@asynccontextmanager
async def led(cluster: Cluster) -> AsyncIterator[Contender]:
    """A leader with one topic."""
    async with Contender(cluster, "a").leading() as leader:
        propose_topic(leader)
        await leader.leader.commit.flush()
        yield leader


def follower_of(cluster: Cluster, name: str, memory_bytes: int) -> Contender:
    follower = Contender(cluster, name)
    follower.standby_bytes = memory_bytes
    return follower


async def test_a_follower_without_memory_follows_the_terms_without_a_state_and_takes_over_with_the_whole_one() -> None:
    cluster = Cluster()
    async with led(cluster) as leader, follower_of(cluster, "b", 0).running() as follower:
        await until(lambda: not follower.controller.follower.keeps_state)
        propose_topic(leader, "other")
        await until(lambda: follower.controller.follower.end.chunk == 3)

        end = follower.controller.follower.end
        assert ("a", 1) == (end.leader_instance, end.leader_epoch)
        assert not follower.controller.follower.state.topics
        await leader.stop()
        await until(lambda: follower.leads)

        assert {"orders", "other"} == set(follower.leader.state.topics)
        assert follower.controller.follower.keeps_state


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

        await until(lambda: follower.controller.follower.end.chunk == 6, seconds=2 * LISTING_INTERVAL_SECONDS)
        await asyncio.sleep(3)
        assert not follower.controller.follower.keeps_state
        assert follower.controller.follower.state.chunk == 0, "the state that was read for the listing is released"


async def test_a_state_that_was_read_and_does_not_fit_is_released_at_once_although_the_shard_is_idle() -> None:
    cluster = Cluster()
    async with led(cluster):
        await take_snapshot(Ledger(FakeStore(objects=cluster.objects), 0), least_chunks=1, now_ms=0)
        async with follower_of(cluster, "b", 1).running() as follower:
            await until(lambda: follower.controller.follower.end.chunk == 2)
            await asyncio.sleep(3)

            assert not follower.controller.follower.keeps_state
            assert not follower.controller.follower.state.chunk


async def test_a_decision_ends_the_pauses_of_idle_shards() -> None:
    """A state that has no more use leaves the memory before the next one is read into it."""
    cluster = Cluster()
    async with led(cluster), follower_of(cluster, "b", 1 << 30).running() as follower:
        await until(lambda: follower.controller.follower.state.chunk == 2)
        await asyncio.sleep(100)
        for successors, limit_bytes, kept in (({0: ["b"]}, 1, 0), ({0: ["b"]}, 1 << 30, 2)):
            follower.standby_bytes = limit_bytes
            follower.standby.assign(successors)
            await asyncio.sleep(0.5)

            assert kept == follower.controller.follower.state.chunk


async def test_a_state_that_is_read_again_waits_to_be_restored_until_its_turn() -> None:
    """Its term can be left to another daemon until then."""
    cluster = Cluster()
    async with led(cluster):
        await take_snapshot(cluster.ledger, least_chunks=1, now_ms=0)
        async with follower_of(cluster, "b", 1 << 30).running() as follower:
            followed, restoring = follower.controller.follower, follower.controller._context.restoring
            await until(lambda: followed.state.chunk == 2)
            restoring.budget.spend = lambda _: asyncio.sleep(100)
            other = asyncio.create_task(restoring.complete((each for each in (1,)), lambda: True))
            for limit_bytes, reads in ((1, False), (1 << 30, True)):
                follower.standby_bytes = limit_bytes
                follower.standby.assign({0: ["b"]})
                await until(lambda wanted=reads: not followed.state.chunk and wanted == followed.reading.locked())
            assert not followed.restoring
            await other


async def test_a_read_that_takes_too_long_loses_its_turn() -> None:
    memory = Contender(Cluster(), "b").standby
    async with AsyncExitStack() as slow, asyncio.timeout(TURN_SECONDS + 1):
        for _ in range(READERS + 1):
            await slow.enter_async_context(memory.turn_to_read())


async def test_a_chunk_that_is_announced_between_two_pauses_ends_the_second_one() -> None:
    memory = Contender(Cluster(), "b").standby
    await memory.pause(0, 0.1)
    memory.wake(0)
    async with asyncio.timeout(2):
        await memory.pause(0, 100)
