"""What a daemon does while it follows a shard: pauses, listings, the health of the store, and what it logs."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from controller.leadership.policy.transitions import Event, Role
from controller.snapshots.job import take_snapshot
from headgate.ledger.paths import chunk_path, snapshot_path
from headgate.model import entries as e
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender

pytestmark = pytest.mark.looptime


def damage(cluster: Cluster, number: int) -> bytes:
    """Change one bit of a chunk; return what it was."""
    path = chunk_path(0, number)
    intact = cluster.objects[path]
    cluster.objects[path] = intact[:-100] + bytes([intact[-100] ^ 1]) + intact[-99:]
    return intact


async def commit(leader: Contender) -> int:
    """Commit one chunk; return its number."""
    leader.leader.commit.barrier()
    await leader.leader.commit.flush()
    return leader.leader.state.chunk


async def test_a_follower_reads_once_a_second() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            await until(lambda: b.controller.follower.end.chunk == 1)
            before = b.store.calls["read"]
            await asyncio.sleep(60)
            assert 60 == pytest.approx(b.store.calls["read"] - before, abs=2)
            number = await commit(a)
            await until(lambda: b.controller.follower.end.chunk == number, 2)
            assert number == b.registry.get_sample_value("headgate_ledger_head_chunk", {"shard": "0"})


async def test_pauses_between_readings_of_a_damaged_ledger_grow_to_a_minute() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            await until(lambda: b.controller.follower.end.chunk == 1)
            damage(cluster, await commit(a))
            read, read_at = b.store.read, []

            async def timed(path: str) -> bytes:
                if path == chunk_path(0, 2):
                    read_at.append(asyncio.get_running_loop().time())
                return await read(path)

            b.store.read = timed  # type: ignore[method-assign]
            await asyncio.sleep(300)

    pauses = [after - before for before, after in pairwise(read_at)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60], abs=0.3)


async def test_damage_and_its_repair_are_logged() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        async with Contender(cluster, "a").running() as a:
            await until(lambda: a.leads)
            async with Contender(cluster, "b").running() as b:
                intact = damage(cluster, await commit(a))
                await until(lambda: b.controller.follower.fault is not None)
                fault = b.controller.follower.fault
                cluster.objects[chunk_path(0, 2)] = intact
                await until(lambda: b.controller.follower.fault is None)

    found = {line["event"]: line for line in logs if line["event"].startswith("ledger.")}
    assert ["ledger.unreadable", "ledger.readable"] == list(found)
    assert ("error", fault) == (found["ledger.unreadable"]["log_level"], found["ledger.unreadable"]["reason"])
    assert ("info", fault) == (found["ledger.readable"]["log_level"], found["ledger.readable"]["was"])


async def test_a_snapshot_that_cannot_be_used_is_counted() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        number = await commit(a)
        assert number == await take_snapshot(cluster.ledger, least_chunks=1, now_ms=0)
        cluster.objects[snapshot_path(0, number)] = b"no snapshot"
        async with Contender(cluster, "b").running() as b:
            await until(lambda: b.controller.follower.end.chunk == number)
            assert 1 == b.registry.get_sample_value("headgate_snapshots_unusable_total", {"shard": "0"})


async def test_pauses_begin_at_a_second_again_after_a_repair() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            for _ in range(2):
                number = await commit(a)
                intact = damage(cluster, number)
                await until(lambda: b.controller.follower.fault is not None)
                cluster.objects[chunk_path(0, number)] = intact
                await asyncio.sleep(1.1)
                assert b.controller.follower.fault is None


async def test_a_follower_without_the_state_reports_damage_once() -> None:
    """It decodes the first chunk of each term."""
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="orders", segments=4, token="t"))
        await a.leader.commit.flush()
        b = Contender(cluster, "b")
        b.standby_bytes = 0
        async with b.running():
            await until(lambda: not b.controller.follower.keeps_state)
            with capture_logs() as logs:
                b.store.freeze()
                cluster.zookeeper.partition("b")
                a.controller.post(Event.STOP_REQUESTED)
                await until(lambda: a.controller.leadership.role is Role.STOPPED)
                async with Contender(cluster, "c").running() as c:
                    await until(lambda: c.leads)
                    damage(cluster, 3)
                    b.store.thaw()
                    await asyncio.sleep(600)

    assert ["ledger.unreadable"] == [line["event"] for line in logs if re.match("ledger.(un)?readable", line["event"])]


async def test_a_follower_tells_when_the_store_can_be_reached_again() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            b.store.outage()
            with capture_logs() as logs:
                await until(lambda: b.instruments.store_problems)
            [unreachable] = [line for line in logs if line["event"] == "ledger.unreachable"]
            assert ("warning", 0) == (unreachable["log_level"], unreachable["shard"])
            assert "unreachable" in unreachable["error"]
            b.store.outage(out=False)
            await until(lambda: not b.instruments.store_problems)


async def test_an_idle_follower_lists_the_ledger_now_and_then() -> None:
    cluster = Cluster()
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            names, listed_at = b.store.names, []

            async def timed(prefix: str, after: str = "") -> list[str]:
                listed_at.append(asyncio.get_running_loop().time())
                return await names(prefix, after)

            await asyncio.sleep(200)
            b.store.names = timed  # type: ignore[method-assign]
            await asyncio.sleep(900)

    # The first second of a follower that lists after more than 300 s.
    assert [after - before for before, after in pairwise(listed_at)] == pytest.approx([300.5, 300.5], abs=0.6)


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


async def test_a_term_that_ends_as_requested_has_no_detail_of_an_earlier_one() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        async with Contender(cluster, "a").running() as a:
            await until(lambda: a.leads)
            cluster.broker.cut("daemon-a")
            await until(lambda: not a.leads, 20)
            cluster.broker.heal("daemon-a")
            await until(lambda: a.leads, 20)
            a.controller.post(Event.STOP_REQUESTED)
            await until(lambda: a.controller.leadership.role is Role.STOPPED)
    first, *_, last = [line for line in logs if line["event"] == "term.ended"]
    assert "detail" in first
    assert "detail" not in last
