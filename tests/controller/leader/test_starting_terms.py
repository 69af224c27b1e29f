"""How a daemon starts a term: its attempts and their pauses, what it reads, and what it reports."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.chunk_writer.builder import ChunkBuilder
from controller.leader.term import begin_term
from controller.leadership.policy.transitions import Event, Role
from headgate.errors import ConfigError, LedgerError
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH, begun_path, chunk_path
from headgate.model import entries as e
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender


class TimedStore(FakeStore):
    """Records when objects are created."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.created_at: list[float] = []

    async def create(self, path: str, data: bytes) -> None:
        self.created_at.append(asyncio.get_running_loop().time())
        await super().create(path, data)

    @property
    def pauses(self) -> list[float]:
        return [after - before for before, after in pairwise(self.created_at)]


async def test_a_contender_whose_number_is_taken_reads_it_and_takes_the_next_one_at_once() -> None:
    cluster = Cluster()
    contender = Contender(cluster, "late", TimedStore)
    create = contender.store.create

    async def too_late(path: str, data: bytes) -> None:
        contender.store.create = create  # type: ignore[method-assign]
        builder = ChunkBuilder()
        builder.add(e.TermStarted(leader_epoch=1, instance="other"))
        await cluster.ledger.append(1, builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1))
        await create(path, data)

    contender.store.create = too_late  # type: ignore[method-assign]
    async with contender.running():
        await until(lambda: contender.leads)

    assert [(1, "other"), (2, "late")] == await cluster.terms()
    assert contender.store.pauses == pytest.approx([0, 0], abs=0.1)  # type: ignore[attr-defined]


async def test_attempts_to_start_a_term_have_growing_pauses() -> None:
    contender = Contender(Cluster(), "a", TimedStore)
    contender.store.refuses_writes = True
    async with contender.running():
        await asyncio.sleep(60)
    assert [0, 0.25, 0.5, 1, 2, 4, 5] == pytest.approx(contender.store.pauses[:7], abs=0.2)  # type: ignore[attr-defined]


async def test_the_time_of_a_ledger_does_not_go_back_with_the_clock_of_a_new_leader() -> None:
    kept = LedgerInMemory(8)
    await begin_term(kept.ledger, kept.state, "late", now_ms=3, term_id=77)
    assert 8 == (await kept.ledger.header(9)).at_ms


async def test_a_daemon_with_another_ledger_than_its_cluster_ends_before_it_writes() -> None:
    cluster = Cluster()
    cluster.objects[IDENTITY_PATH] = identity_object("f" * 32)
    before = set(cluster.objects)
    contender = Contender(cluster, "a")
    async with contender.elections, contender.transport:
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(contender.controller.run(), 60)

    assert [ConfigError] == [type(error) for error in ended.value.exceptions]
    assert "is another ledger here" in str(ended.value.exceptions[0])
    assert before == set(cluster.objects)


async def test_nothing_of_another_ledger_remains_when_the_right_one_is_there() -> None:
    """A follower has read a disk that was mounted by mistake. It is refused before a term."""
    wrong, right = Cluster(), Cluster()
    await wrong.term("x", topics=5)
    del wrong.objects[IDENTITY_PATH]
    async with Contender(right, "a").leading() as a:
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="right", segments=1, token="r"))
        b = Contender(right, "b")
        b.store.objects = wrong.objects
        async with b.running():
            await until(lambda: b.controller.follower.end.chunk == 6)
            await a.stop()
            await until(lambda: b.controller.leadership.role is Role.FAILED)
            b.store.objects = right.objects
            await until(lambda: b.leads)
            assert {"right"} == set(b.leader.state.topics)


@pytest.mark.parametrize("knows_the_state", [True, False], ids=["a follower", "a daemon that starts"])
async def test_a_shard_whose_objects_are_all_gone_is_not_begun_again(knows_the_state: bool) -> None:
    cluster = Cluster()
    b = Contender(cluster, "b")
    async with AsyncExitStack() as stack:
        async with Contender(cluster, "a").leading() as a:
            a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"))
            await until(lambda: a.leader.commit.durable == 2)
            if knows_the_state:
                await stack.enter_async_context(b.running())
                await until(lambda: b.controller.follower.end.chunk == 2)
            kept = dict(cluster.objects)
            for path in [path for path in cluster.objects if "shard=0000" in path]:
                del cluster.objects[path]
        if not knows_the_state:
            await stack.enter_async_context(b.running())
        await until(lambda: b.controller.leadership.role is Role.FAILED)
        assert "chunks/shard=0000: there is no chunk, and begun/0.json says" in str(b.controller.follower.fault)
        assert not [path for path in cluster.objects if "shard=0000" in path]

        cluster.objects.update(kept)
        await until(lambda: b.leads)
        assert {"orders"} == set(b.leader.state.topics)


async def test_an_operator_begins_a_shard_again_without_its_objects() -> None:
    cluster = Cluster()
    await cluster.term("a", topics=1)
    async with Contender(cluster, "a").leading():
        pass
    for path in [path for path in cluster.objects if path != IDENTITY_PATH]:
        del cluster.objects[path]
    async with Contender(cluster, "b").leading() as b:
        assert not b.leader.state.topics


async def test_a_shard_of_which_only_terms_are_stored_is_named_by_the_next_one() -> None:
    """The leader of its first term ended before it had named it."""
    cluster = Cluster()
    async with Contender(cluster, "a").leading():
        pass
    del cluster.objects[begun_path(0)]
    async with Contender(cluster, "b").leading():
        assert begun_path(0) in cluster.objects


@pytest.mark.parametrize(("term_ends", "seconds"), [(False, 5), (True, 0)])
async def test_a_handover_waits_five_seconds_for_what_was_accepted_unless_its_term_ends(term_ends, seconds) -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        async with Contender(cluster, "a").leading() as a:
            a.leader.commit.barrier()
            if term_ends:
                cluster.objects[chunk_path(0, 2)] = b"another term's"
            else:
                a.store.freeze()
            began = asyncio.get_running_loop().time()
            a.controller.post(Event.STOP_REQUESTED)
            await until(lambda: a.controller.leader is None)

    assert seconds == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.2)
    assert "hand_over" not in repr(asyncio.all_tasks()), "it would keep the state in memory"
    incomplete = [line for line in logs if line["event"] == "handover.incomplete"]
    found = [(line["log_level"], line["shard"], line["limit_seconds"]) for line in incomplete]
    assert [("warning", 0, 5.0)] * (not term_ends) == found


async def test_a_term_that_begins_has_read_what_its_daemon_could_not_read_before() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await until(lambda: b.controller.follower.end.chunk == 1)
        b.controller.follower.report(LedgerError("damaged on its way"), "read")
        await a.stop()
        await until(lambda: b.leads)
        assert b.controller.follower.fault is None
        assert 0 not in b.standby._sizes, "what it leads needs no place among what it follows"


async def test_a_follower_forgets_what_it_has_read_from_another_ledger() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").leading(), Contender(cluster, "b").running() as b:
        follower = b.controller.follower
        await until(lambda: follower.state.chunk == 1)
        cluster.objects[IDENTITY_PATH] = identity_object("f" * 32)
        async with follower.reading:
            with pytest.raises(ConfigError):
                await follower.catch_up()
            assert 0 == follower.state.chunk


async def test_a_term_makes_known_that_its_ledger_has_more_shards() -> None:
    cluster, grown = Cluster(), e.ShardsGrown(counts=(1, 2))
    async with Contender(cluster, "a").leading() as a:
        a.leader.commit.propose(grown)
        await a.stop()
    async with Contender(cluster, "b").leading() as b:
        assert [grown.counts] == [each.counts for each in b.found_shards]


async def test_while_listings_hang_a_leader_commits_and_a_follower_reads_but_no_term_begins() -> None:
    cluster = Cluster()
    a, b = Contender(cluster, "a"), Contender(cluster, "b")
    async with a.running(), b.running():
        await until(lambda: a.leads or b.leads)
        a, b = (a, b) if a.leads else (b, a)
        await until(lambda: b.controller.follower.end.chunk == 1)
        a.store.listings.clear()
        b.store.listings.clear()
        for number in range(2, 6):
            a.leader.commit.barrier()
            await until(lambda number=number: b.controller.follower.end.chunk == number, 40)  # type: ignore[misc]
            await asyncio.sleep(60)
        await a.stop()
        await asyncio.sleep(15)
        assert not b.leads, "the missing number may be a hole"
        b.store.listings.set()
        await until(lambda: b.leads)
