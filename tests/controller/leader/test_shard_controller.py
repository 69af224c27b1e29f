"""Contending, leading and handing over, with the real controller and fake servers."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.chunk_writer.builder import ChunkBuilder
from controller.leadership.policy.safety import yields_to_contender
from controller.leadership.policy.transitions import Event, Role
from controller.snapshots.job import take_snapshot
from headgate.errors import ConfigError
from headgate.ledger import chunk
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.model.layout import shard_of
from headgate.protocol.codec import leader_topic
from headgate.protocol.replies import TopicReply
from headgate.protocol.requests import CreateTopic
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender
from tests.support.worlds.one_shard import CLUSTER, BareClient


async def test_a_stop_hands_over_at_once() -> None:
    """Accepted requests are committed and the lock is released, without a session timeout. Later ones do not delay it."""
    cluster = Cluster()
    client = BareClient(cluster.broker)
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await client.open()
        await asyncio.sleep(3)
        a.store.latency_seconds = (0.1, 0.1)
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="t", segments=1, token="x"))
        before = asyncio.get_running_loop().time()
        a.controller.post(Event.STOP_REQUESTED)
        later = iter(range(1000))
        while not b.leads:
            client.send(CreateTopic, topic=f"later-{(number := next(later))}", token=str(number))
            await asyncio.sleep(0.01)
        took = asyncio.get_running_loop().time() - before
        assert "t" in b.leader.state.topics
        await client.transport.__aexit__(None, None, None)
    assert [(1, "a"), (2, "b")] == await cluster.terms()
    assert took < 1


async def test_a_stop_does_not_wait_until_the_daemon_would_contend_again() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        a.store.refuses_writes = True
        await until(lambda: a.store.calls["create"] == 6, 60)
        async with asyncio.timeout(1):
            await a.stop()


async def test_a_zookeeper_outage_ends_no_term_and_stops_no_ingestion() -> None:
    cluster = Cluster()
    client = BareClient(cluster.broker)
    async with Contender(cluster, "a").leading() as a:
        await client.open()
        cluster.zookeeper.stop()
        await asyncio.sleep(60)
        assert a.leads
        assert yields_to_contender(a.controller.leadership)
        assert isinstance(await client.call(CreateTopic, topic="t", token="x"), TopicReply)
        cluster.zookeeper.start()
        await asyncio.sleep(20)
        assert a.leads
        assert not yields_to_contender(a.controller.leadership)
        await client.transport.__aexit__(None, None, None)
    assert [(1, "a")] == await cluster.terms()


@pytest.mark.parametrize("fault", ["unknown_written", "unknown_lost", "repeated"])
async def test_a_term_chunk_of_unknown_outcome_is_resolved_by_reading(fault: Any) -> None:
    """The attempt recognizes its own chunk. If there is none, the next attempt starts at the end of the ledger."""
    cluster = Cluster()
    contender = Contender(cluster, "a")
    contender.store.fail_next(fault)
    async with contender.running():
        await until(lambda: contender.leads, 30)
        assert 0 == contender.controller.term.attempts
    assert [(1, "a")] == await cluster.terms()


async def test_a_term_chunk_of_an_earlier_process_of_the_same_name_is_not_its_own() -> None:
    """Both attempts have the same number, epoch, instance and time, and differ in the random id of the attempt."""
    cluster = Cluster()
    contender = Contender(cluster, "a")
    create = contender.store.create

    async def after_a_late_copy(path: str, data: bytes) -> None:
        if path == chunk_path(0, 1):
            at_ms = chunk.decode(data, shard=0, number=1).header.at_ms
            builder = ChunkBuilder()
            builder.add(e.TermStarted(leader_epoch=1, instance="a", term_id=5))
            cluster.objects[path] = builder.encode(shard=0, number=1, leader_epoch=1, at_ms=at_ms)
        await create(path, data)

    contender.store.create = after_a_late_copy  # type: ignore[method-assign]
    async with contender.running():
        await until(lambda: contender.leads, 30)
    assert [(1, "a"), (2, "a")] == await cluster.terms()


async def test_two_nodes_with_a_zookeeper_each_that_take_a_shard_from_each_other_both_say_so() -> None:
    mine, other = Cluster(), Cluster()
    other.objects = mine.objects
    async with Contender(mine, "a").leading() as a, Contender(other, "b").leading() as b:
        await until(lambda: a.controller.is_contested and b.controller.is_contested, 60)
        await b.stop()
        await asyncio.sleep(121)
        ended = a.controller.term.ended
        for number in range(1, 3):
            for event in (Event.CONTACT_LOST, Event.NUMBER_TAKEN, Event.CONTACT_REGAINED):
                a.controller.post(event)
            await until(lambda number=number: a.leads and a.controller.term.ended >= ended + number)  # type: ignore[misc]
        assert not a.controller.is_contested, "another may begin a term while it has no contact"


CHUNK_2 = chunk_path(0, 2)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "a flipped bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "not a chunk": lambda _: b"read me",
    "another chunk": lambda _: ChunkBuilder().encode(shard=0, number=7, leader_epoch=1, at_ms=0),
    "missing": lambda _: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_unreadable_object_fails_the_shard_until_it_is_repaired(damage: str) -> None:
    """No daemon decides on incomplete state: nothing is written into or after the object."""
    cluster = Cluster()
    await cluster.term("a", topics=2)
    intact = dict(cluster.objects)
    if (data := DAMAGES[damage](cluster.objects.pop(CHUNK_2))) is not None:
        cluster.objects[CHUNK_2] = data
    before = dict(cluster.objects)

    async with Contender(cluster, "b").running() as b, Contender(cluster, "c").running() as c:
        for _ in range(3):
            await asyncio.sleep(600)
            for each in (b, c):
                assert each.controller.leadership.role is Role.FAILED
                assert re.match(
                    rf"{CHUNK_2} (is|states)|chunks/shard=0000: chunk 2 is missing", str(each.controller.follower.fault)
                )
        assert before == cluster.objects
        cluster.objects.update(intact)
        await until(lambda: b.leads or c.leads, 61)
        assert [(1, "a"), (2, "b" if b.leads else "c")] == await cluster.terms()
        await asyncio.sleep(61)
        assert [b.controller.follower.fault, c.controller.follower.fault] == [None, None]


async def test_an_idle_leader_whose_reads_hang_makes_way_for_others() -> None:
    """Nothing else would show that its term is over: it has the lock again, and another daemon waits for it."""
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await until(lambda: b.controller.follower.end.chunk == 1)
        a.store.read = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
        await asyncio.sleep(2)
        cluster.zookeeper.expire_session("a")
        await until(lambda: b.leads)
        await until(lambda: a.controller.leadership.role is Role.FOLLOWING, 10)


async def test_an_idle_leader_looks_for_a_successor_often_again_after_it_was_busy() -> None:
    async with Contender(Cluster(), "a").leading() as a:
        await asyncio.sleep(1200)
        for _ in range(3):
            a.leader.commit.barrier()
            await a.leader.commit.flush()
        before = a.store.calls["read"]
        await asyncio.sleep(5)
        assert a.store.calls["read"] > before


async def test_a_leader_that_misses_an_old_chunk_leads_again_once_it_is_back() -> None:
    """Its snapshot includes the chunk, so nothing but the end of the term says what is wrong."""
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a:
        for _ in range(2):
            a.leader.commit.barrier()
            await a.leader.commit.flush()
        assert await take_snapshot(cluster.ledger, least_chunks=1, now_ms=0)
        lost = cluster.objects.pop(CHUNK_2)
        await until(lambda: a.controller.leadership.role is Role.FAILED, 31)
        assert "chunk 2 is missing" in str(a.controller.follower.fault)
        cluster.objects[CHUNK_2] = lost
        await until(lambda: a.leads, 61)


async def test_a_follower_that_meets_a_hole_contends_only_when_it_is_filled() -> None:
    """By number, the hole looks like the end of the ledger; only a listing shows what follows."""
    cluster = Cluster()
    with capture_logs() as logs:
        async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
            await until(lambda: b.controller.follower.end.chunk == 1)
            b.store.freeze()
            for _ in range(2):
                a.leader.commit.barrier()
                await a.leader.commit.flush()
            chunk = cluster.objects.pop(CHUNK_2)
            a.controller.post(Event.STOP_REQUESTED)
            b.store.thaw()
            await asyncio.sleep(600)
            assert b.controller.leadership.role is Role.FAILED
            assert "chunk 2 is missing" in str(b.controller.follower.fault)
            cluster.objects[CHUNK_2] = chunk
            await until(lambda: b.leads, 61)
    assert 1 == sum(line["event"] == "leadership.changed" and line["after"] == "failed" for line in logs)
    assert [(1, "a"), (2, "b")] == await cluster.terms()


async def test_a_term_chunk_with_a_trimmed_number_before_the_start_of_a_term_is_not_read_by_its_writer() -> None:
    """The contender was suspended after it had read the end. The chunk after the wrong one seems to continue it."""
    cluster = Cluster()
    late = Contender(cluster, "late")
    create = late.store.create
    wanted: list[str] = []

    async def append(number: int, entry: e.AnyEntry, leader_epoch: int) -> None:
        builder = ChunkBuilder()
        builder.add(entry)
        data = builder.encode(shard=0, number=number, leader_epoch=leader_epoch, at_ms=number)
        await cluster.ledger.append(number, data)

    async def frozen(path: str, data: bytes) -> None:
        late.store.create = create  # type: ignore[method-assign]
        await append(2, e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"), 1)
        await append(3, e.TermStarted(leader_epoch=2, instance="other"), 2)
        assert 3 == await take_snapshot(cluster.ledger, least_chunks=1, now_ms=0)
        await append(4, e.LedgerTrimmed(below=3), 2)
        del cluster.objects[CHUNK_2]
        wanted.append(path)
        await create(path, data)

    await append(1, e.TermStarted(leader_epoch=1, instance="other"), 1)
    late.store.create = frozen  # type: ignore[method-assign]
    with capture_logs() as logs:
        async with late.running():
            await until(lambda: late.leads, 30)

            assert wanted == [CHUNK_2]
            assert [1, 3, 5] == late.leader.state.terms.start_chunks
            assert ["orders"] == list(late.leader.state.topics)
    assert "ledger.unreadable" not in [line["event"] for line in logs]


async def test_a_ledger_of_a_cluster_with_fewer_shards_ends_the_daemon_before_it_writes() -> None:
    """New topics would be stored in shards where the cluster that wrote the ledger does not look."""
    cluster = Cluster()
    topic = next(name for name in "abcdef" if shard_of(name, 2) == 1)
    async with Contender(cluster, "a").running():
        await until(lambda: leader_topic(CLUSTER, 0) in cluster.broker.retained)
        client = BareClient(cluster.broker)
        await client.open()
        await client.call(CreateTopic, topic=topic, token="x")
    before = set(cluster.objects)

    other = Contender(cluster, "b", shards=2)
    async with other.elections, other.transport:
        with pytest.raises(ExceptionGroup) as ended:
            await asyncio.wait_for(other.controller.run(), 60)

    reason = f"cluster.shards is 2, but topic '{topic}' is in shard 0 and belongs to shard 1 of 2: "
    assert [ConfigError] == [type(error) for error in ended.value.exceptions]
    assert reason in str(ended.value.exceptions[0])
    assert before == set(cluster.objects)
