"""What a daemon does while it follows a shard: pauses, listings, the health of the store, and what it logs."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from controller.chunk_writer.builder import ChunkBuilder
from controller.leader.follower import TermTail
from controller.leadership.policy.transitions import Event
from controller.snapshots.job import take_snapshot
from headgate.errors import LedgerError, ObjectMissingError, TransportError
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path, snapshot_path
from headgate.model import entries as e
from tests.support.fakes.object_store import FakeStore
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender


async def commit(leader: Contender) -> int:
    """Commit one chunk; return its number."""
    leader.leader.commit.barrier()
    await leader.leader.commit.flush()
    return leader.leader.state.chunk


async def test_a_snapshot_that_cannot_be_used_is_counted() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a:
        number = await commit(a)
        assert number == await take_snapshot(cluster.ledger, least_chunks=1, now_ms=0)
        cluster.objects[snapshot_path(0, number)] = b"no snapshot"
        async with Contender(cluster, "b").running() as b:
            await until(lambda: b.controller.follower.end.chunk == number)
            assert 1 == b.registry.get_sample_value("headgate_snapshots_unusable_total", {"shard": "0"})


async def test_leader_and_follower_of_an_idle_shard_ask_the_store_seldom_until_a_chunk_comes() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await asyncio.sleep(60)
        asked = [sum(each.store.calls.values()) for each in (a, b)]
        await asyncio.sleep(2400)
        asked = [sum(each.store.calls.values()) - before for each, before in zip((a, b), asked, strict=True)]
        assert 14 <= asked[0] <= 20, "the leader, with the chunk of an idle half hour and what the trimmer reads"
        assert asked[1] <= 40, "one a minute"
        for seconds in [2] * 6:
            await commit(a)
            await until(lambda: b.controller.follower.end.chunk == a.leader.state.chunk, seconds)


@pytest.mark.parametrize("idle_seconds", [20, 600])
async def test_a_new_term_of_an_idle_shard_is_noticed_by_those_that_do_not_lead(idle_seconds: int) -> None:
    """A daemon that has not read it would call the shard leaderless, although no chunk is announced."""
    cluster = Cluster()
    async with (
        Contender(cluster, "a").leading() as a,
        Contender(cluster, "b").running() as b,
        Contender(cluster, "c").running() as c,
    ):
        await asyncio.sleep(idle_seconds)
        b.store.latency_seconds = 1.0, 1.0  # The first read of c finds nothing yet.
        assert await a.controller.start_transfer("b", "spread") is None
        await until(lambda: b.leads)
        await until(lambda: c.controller.follower.end.leader_instance == "b", seconds=3)
        asked = sum(c.store.calls.values())
        await asyncio.sleep(600)
        assert sum(c.store.calls.values()) - asked <= 30, "it follows an idle shard as before"


@pytest.mark.parametrize("refused", [False, True])
async def test_a_replica_that_receives_no_announcement_reads_every_half_minute(refused: bool) -> None:
    """A broker drops what its rules do not let a daemon read, or refuses the subscription."""
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a:
        b = Contender(cluster, "b")
        subscribe = b.transport.subscribe

        async def deny(topic: str, *given: Any, **options: Any) -> None:
            if not topic.endswith("/head"):
                await subscribe(topic, *given, **options)
            elif refused:
                raise TransportError("not allowed")

        b.transport.subscribe = deny  # type: ignore[method-assign]
        async with b.running():
            await asyncio.sleep(600)
            for seconds in (31 if refused else 301, 31, 31):
                await commit(a)
                await until(lambda: b.controller.follower.end.chunk == a.leader.state.chunk, seconds)
                await asyncio.sleep(100)


async def test_a_replica_that_has_lost_the_broker_reads_every_half_minute() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await asyncio.sleep(600)
        cluster.broker.cut("daemon-b")
        await asyncio.sleep(301)  # It would have heard of a new chunk when the last pause began.
        for _ in range(2):
            await commit(a)
            await until(lambda: b.controller.follower.end.chunk == a.leader.state.chunk, 31)


async def test_a_term_chunk_whose_write_hangs_is_given_up_in_time_and_logged() -> None:
    cluster = Cluster()
    a = Contender(cluster, "a")
    create = a.store.create

    async def hang(path: str, data: bytes) -> None:
        a.store.create = create  # type: ignore[method-assign]
        await asyncio.get_running_loop().create_future()

    a.store.create = hang  # type: ignore[method-assign]
    with capture_logs() as logs:
        async with a.running():
            await until(lambda: a.store.create is create)
            began = asyncio.get_running_loop().time()
            await until(lambda: a.leads, 30)
            assert 10 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.9)
    assert 1 == sum(line["event"] == "term.outcome_unknown" for line in logs)


async def test_a_daemon_that_paused_for_long_before_its_term_follows_at_once_after_it() -> None:
    cluster = Cluster()
    async with (
        Contender(cluster, "a").leading() as a,
        Contender(cluster, "b").running() as b,
        Contender(cluster, "c").running() as c,
    ):
        await asyncio.sleep(1000)
        await a.stop()
        await until(lambda: b.leads or c.leads, 10)
        former, other = (b, c) if b.leads else (c, b)
        former.controller.post(Event.NUMBER_TAKEN)
        await until(lambda: other.leads, 10)
        await until(lambda: former.controller.follower.end.chunk == other.leader.state.chunk, 5)


async def append(ledger: Ledger, number: int, epoch: int, *entries: e.AnyEntry) -> None:
    builder = ChunkBuilder()
    for entry in entries:
        builder.add(entry)
    await ledger.append(number, builder.encode(shard=0, number=number, leader_epoch=epoch, at_ms=number))


@pytest.fixture
async def ledger() -> Ledger:
    """Two terms, of three chunks and of two."""
    made = Ledger(FakeStore(), 0)
    opened = e.ProducerOpened(producer_id=1, producer_epoch=0, token="t", user="anonymous")
    await append(made, 1, 1, e.TermStarted(leader_epoch=1, instance="a"))
    await append(made, 2, 1, opened)
    await append(made, 3, 1, opened)
    await append(made, 4, 2, e.TermStarted(leader_epoch=2, instance="b"))
    await append(made, 5, 2, opened)
    return made


async def test_it_knows_the_end_and_the_leader_of_the_newest_term(ledger: Ledger) -> None:
    tail = TermTail(0, 0, "")
    assert 5 == await tail.read(ledger)
    assert TermTail(5, 2, "b") == tail
    assert 0 == await tail.read(ledger)


async def test_it_starts_at_the_end_with_the_newest_term_also_where_chunks_were_trimmed(ledger: Ledger) -> None:
    for number in (2, 3):
        await ledger.delete(number)
    assert TermTail(5, 2, "b") == await TermTail.at_end(ledger)
    for number in range(6, 40):
        await append(ledger, number, 2)
    reads: list[str] = []
    store_read = ledger.store.read

    async def noted(path: str) -> bytes:
        reads.append(path)
        return await store_read(path)

    ledger.store.read = noted  # type: ignore[method-assign]
    assert TermTail(39, 2, "b") == await TermTail.at_end(ledger)
    assert len(reads) < 10


async def test_it_starts_again_if_chunks_are_trimmed_meanwhile_but_not_because_there_is_none(ledger: Ledger) -> None:
    assert TermTail(0, 0, "") == await TermTail.at_end(Ledger(FakeStore(), 0))
    ledger.numbers = AsyncMock(return_value=await ledger.numbers())  # type: ignore[method-assign]
    await ledger.delete(3)

    assert await TermTail.at_end(ledger) is None


@pytest.mark.parametrize("damaged", [3, 4])
async def test_a_damaged_chunk_is_noticed_and_one_that_is_deleted_while_its_term_is_noted(ledger, damaged: int) -> None:
    path, data = chunk_path(0, damaged), bytearray(await ledger.store.read(chunk_path(0, damaged)))
    data[len(data) // 2] ^= damaged % 2
    ledger.store.objects[path] = bytes(data)
    ledger.read = AsyncMock(side_effect=[await ledger.read(1), ObjectMissingError])
    tail = TermTail(0, 0, "")
    with pytest.raises(LedgerError, match=path):
        await tail.read(ledger)
    assert damaged - 1 == tail.chunk
