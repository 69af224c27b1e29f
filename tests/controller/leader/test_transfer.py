"""Transfers of a shard from its leader to a successor, with real controllers and fake servers."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from controller.leadership.election import SeenQueue
from controller.leadership.policy.transitions import Event, Role
from headgate.errors import StoreUnavailableError
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.waiting import never, until
from tests.support.worlds.contenders import Cluster, Contender
from tests.support.worlds.one_shard import BareClient

pytestmark = pytest.mark.looptime
Create = Callable[[str, bytes], Awaitable[None]]


@asynccontextmanager
async def three(cluster: Cluster) -> AsyncIterator[tuple[Contender, Contender, Contender]]:
    """Run a leader "a" and two followers, who wait in the order of their names and have read the ledger."""
    async with Contender(cluster, "a").running() as a:
        await until(lambda: a.leads)
        async with Contender(cluster, "b").running() as b:
            await until(lambda: a.elections.queue(0) == SeenQueue("a", frozenset("b")))
            async with Contender(cluster, "c").running() as c:
                await until(lambda: a.elections.queue(0) == SeenQueue("a", frozenset("bc")))
                await until(lambda: c.controller.follower.end.chunk > 0)
                yield a, b, c


async def test_a_transfer_makes_precisely_the_successor_the_leader_at_once() -> None:
    """Accepted requests are committed first. No wait for the interval of followers, a pause or a session timeout."""
    cluster = Cluster()
    async with three(cluster) as (a, b, c):
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="t", segments=1, token="x"))
        before = asyncio.get_running_loop().time()
        assert await a.controller.start_transfer("c", "spread") is None
        await until(lambda: c.leads)
        took = asyncio.get_running_loop().time() - before
        assert set(c.leader.state.topics) == {"t"}
        # The former leader waits again, and can lead again.
        await until(lambda: c.elections.queue(0) == SeenQueue("c", frozenset("ab")))
        assert await c.controller.start_transfer("a", "operator") is None
        await until(lambda: a.leads)
        await until(lambda: b.elections.queue(0) == SeenQueue("a", frozenset("bc"), fixed=True))
    assert await cluster.terms() == [(1, "a"), (2, "c"), (3, "a")]
    assert took < 0.2, "fifteen messages of up to 10 ms each, and some reads and writes of up to 2 ms"


async def test_a_former_leader_and_its_state_are_freed() -> None:
    """They refer to each other, so the garbage collector frees them. It is not needed for the producers."""
    cluster = Cluster()
    client = BareClient(cluster.broker)
    async with three(cluster) as (a, b, _):
        await client.open()
        leader, state = weakref.ref(a.leader), weakref.ref(a.leader.state)
        producers = weakref.ref(a.leader.state.producers)
        gc.disable()
        try:
            assert await a.controller.start_transfer("b", "spread") is None
            await until(lambda: b.leads)
            await until(lambda: a.controller.follower.end.leader_epoch == 2)
            assert producers() is None
        finally:
            gc.enable()
        gc.collect()

        assert leader() is None
        assert state() is None
        assert a.controller.term.ended == 1


async def test_a_leader_serves_until_its_successor_has_read_the_ledger() -> None:
    cluster = Cluster()
    client = BareClient(cluster.broker)
    async with three(cluster) as (a, b, _):
        await client.open()
        b.store.freeze()
        transfer = a.controller.start_transfer("b", "spread")
        for number in range(20):
            assert isinstance(await client.call(m.CreateTopic, topic=f"t{number}", token=str(number)), m.TopicReply)
        assert not transfer.done()
        b.store.thaw()
        assert await transfer is None
        await until(lambda: b.leads)
        assert len(b.leader.state.topics) == 20
        await client.transport.__aexit__(None, None, None)


async def test_a_successor_has_ten_seconds_and_the_outcome_is_logged() -> None:
    with capture_logs() as logs:
        async with three(Cluster()) as (a, b, c):
            b.store.freeze()
            began = asyncio.get_running_loop().time()
            problem = await a.controller.start_transfer("b", "spread")
            took = asyncio.get_running_loop().time() - began
            b.store.thaw()
            a.store.latency_seconds = (0.3, 0.4)
            a.leader.commit.barrier()
            assert await a.controller.start_transfer("c", "maintenance") is None
            await until(lambda: c.leads)

    assert 10 == pytest.approx(took, abs=0.1)
    assert problem is not None
    assert "within 10 s" in problem
    abandoned, completed = (line for line in logs if line["event"].startswith("transfer."))
    assert abandoned == {
        "event": "transfer.abandoned",
        "log_level": "warning",
        "shard": 0,
        "successor": "b",
        "reason": "spread",
        "problem": problem,
    }
    seconds = a.registry.get_sample_value("headgate_transfer_handover_seconds_sum")
    assert seconds is not None
    assert 0.1 < seconds < 2, "the reply to the barrier, and two reads that find the next term"
    assert completed == {
        "event": "transfer.completed",
        "log_level": "info",
        "shard": 0,
        "successor": "c",
        "reason": "maintenance",
        "handover_seconds": round(seconds, 4),
    }


async def test_the_limit_of_a_transfer_ends_with_it() -> None:
    async with three(Cluster()) as (a, b, c):
        b.store.freeze()
        first = a.controller.start_transfer("b", "spread", 3.0)
        await asyncio.sleep(0.1)
        b.elections.withdraw(0)
        assert await first is not None

        c.store.freeze()
        second = a.controller.start_transfer("c", "spread", 30.0)
        await never(second.done, 10)
        c.store.thaw()
        assert await second is None


async def test_a_successor_reads_a_hundred_times_a_second_until_it_is_the_leader_and_confirms_once() -> None:
    async with three(Cluster()) as (a, b, _):
        confirm, confirmed = b.elections.confirm, []

        def counted(shard: int) -> None:
            confirmed.append(shard)
            confirm(shard)

        b.elections.confirm = counted  # type: ignore[method-assign]
        a.store.latency_seconds = (0.5, 0.5)
        a.leader.commit.barrier()
        before = b.store.calls["read"]
        began = asyncio.get_running_loop().time()
        transfer = a.controller.start_transfer("b", "spread")
        await until(lambda: not a.leads)
        took = asyncio.get_running_loop().time() - began
        assert 60 < (b.store.calls["read"] - before) / took < 100
        assert await transfer is None
        await until(lambda: b.leads)
        before = b.store.calls["read"]
        await asyncio.sleep(20)

        assert b.store.calls["read"] - before < 25, "an idle leader looks for another term once a second"
        assert confirmed == [0]


async def test_a_successor_is_not_ready_before_it_reaches_the_broker() -> None:
    """Clients would wait until it is connected. Its log says why, to which that of the leader refers."""
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        cluster.broker.cut("daemon-b")
        with capture_logs() as logs:
            assert await a.controller.start_transfer("b", "operator", 2.0) is not None
            await until(lambda: any(line["event"] == "transfer.not_prepared" for line in logs))
        assert ["the broker is not connected"] == [x["reason"] for x in logs if x["event"] == "transfer.not_prepared"]
        assert a.leads

        transfer = a.controller.start_transfer("b", "operator")
        await asyncio.sleep(2)
        cluster.broker.heal("daemon-b")
        assert await transfer is None
        assert b.transport.connected
        await until(lambda: b.leads)


async def test_a_successor_that_was_not_ready_is_ready_for_another_attempt_for_a_minute() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, _, c):
        await until(lambda: not c.controller.follower.keeps_state)
        cluster.broker.cut("daemon-c")
        began = asyncio.get_running_loop().time()
        assert await a.controller.start_transfer("c", "operator", 2.0) is not None
        assert c.controller.follower.keeps_state
        a.elections.place_next(0, "b")
        await until(lambda: not c.controller.follower.keeps_state, 180)

        assert 60.5 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.7)


async def test_a_leader_continues_at_once_if_its_successor_leaves() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, c):
        b.store.freeze()
        transfer = a.controller.start_transfer("b", "spread")
        await asyncio.sleep(0.1)
        b.elections.withdraw(0)

        before = asyncio.get_running_loop().time()
        assert await transfer == "daemon 'b' has ended, or lost its session in ZooKeeper"
        assert asyncio.get_running_loop().time() - before < 0.1
        assert a.leads
        b.store.thaw()
        assert await a.controller.start_transfer("c", "spread") is None
        await until(lambda: c.leads)


async def test_a_transfer_ends_with_its_term() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, _, _):
        cluster.zookeeper.partition("b")
        transfer = a.controller.start_transfer("b", "spread")
        await asyncio.sleep(0.1)
        a.controller.post(Event.BROKER_UNREACHABLE)

        assert await transfer == "the term ended: broker unreachable"
        assert a.controller.transfer is None


async def test_one_shard_is_transferred_to_one_daemon_at_a_time() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, c):
        first = a.controller.start_transfer("b", "spread")

        assert a.controller.start_transfer("b", "operator") is first
        assert await a.controller.start_transfer("c", "spread") == "shard 0 is being transferred to daemon 'b'"
        assert await c.controller.start_transfer("b", "spread") == "daemon 'c' does not lead shard 0"
        await first
        await until(lambda: b.leads)


async def test_a_successor_that_cannot_read_the_ledger_does_not_confirm() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        b.store.damaged_reads = 1.0
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="t", segments=1, token="x"))

        with capture_logs() as logs:
            assert await a.controller.start_transfer("b", "spread", 3.0) is not None

        assert a.leads
        [reason] = [line["reason"] for line in logs if line["event"] == "transfer.not_prepared"]
        assert "chunk" in reason
    assert await cluster.terms() == [(1, "a")]


async def test_a_daemon_that_stops_while_it_prepares_does_not_wait_for_the_store() -> None:
    async with three(Cluster()) as (a, b, _):
        b.store.freeze()
        transfer = a.controller.start_transfer("b", "spread")
        await asyncio.sleep(0.1)
        await asyncio.wait_for(b.stop(), 1)
        assert await transfer is not None


async def test_a_term_after_a_handover_ends_for_its_own_reason() -> None:
    cluster = Cluster()
    with capture_logs() as logs:
        async with three(cluster) as (a, b, _):
            assert await a.controller.start_transfer("b", "spread") is None
            await until(lambda: b.leads)
            assert a.controller.leader is None
            assert await b.controller.start_transfer("a", "spread") is None
            await until(lambda: a.leads)
            a.controller.post(Event.BROKER_UNREACHABLE)
            await until(lambda: not a.leads)
            ended = {
                reason: a.registry.get_sample_value("headgate_leader_terms_ended_total", {"reason": reason})
                for reason in ("handover", "broker_unreachable")
            }

    assert ended == {"handover": 1, "broker_unreachable": 1}
    ends = [(line["leader_epoch"], line["reason"]) for line in logs if line["event"] == "term.ended"]
    assert ends[:3] == [(1, "handover"), (2, "handover"), (3, "broker_unreachable")]


async def test_a_successor_that_is_nominated_again_prepares_once() -> None:
    cluster = Cluster()
    async with three(cluster) as (_, b, _):
        for _ in range(3):
            b.controller.post(Event.NOMINATED)
            await asyncio.sleep(0.5)
        assert [task.get_name() for task in asyncio.all_tasks()].count("prepare-0") == 1


async def test_a_transfer_is_complete_once_the_successors_term_has_begun() -> None:
    """Neither its confirmation nor the lock suffices."""
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        writes(b, slowly := Held(b.store.create))
        transfer = a.controller.start_transfer("b", "spread")
        await until(lambda: b.controller.leadership.role is Role.CATCHING_UP)

        await never(transfer.done, 5)
        assert a.controller.transfer is not None
        slowly.allowed.set()
        assert await transfer is None
        assert await cluster.terms() == [(1, "a"), (2, "b")]
        assert 5 < (a.registry.get_sample_value("headgate_transfer_handover_seconds_sum") or 0) < 5.5
    assert a.controller.follower.end.leader_instance == "b"


async def test_a_transfer_has_failed_if_the_successor_begins_no_term_in_time() -> None:
    async with three(Cluster()) as (a, b, _):
        writes(b, Held(b.store.create))
        with capture_logs() as logs:
            problem = await a.controller.start_transfer("b", "maintenance", 3.0)

    assert problem == (
        "daemon 'b' was ready, got the lock of shard 0 and began no term within 3 s: "
        "see ledger.unreachable, term.outcome_unknown or ledger.unreadable in its log"
    )
    assert problem in [line["problem"] for line in logs if line["event"] == "transfer.abandoned"]
    labels = {"reason": "maintenance", "outcome": "abandoned"}
    assert 1 == a.registry.get_sample_value("headgate_shard_transfers_total", labels)


async def test_the_next_in_the_queue_leads_if_the_successor_cannot_begin_its_term() -> None:
    """The successor's store has failed after it confirmed."""
    async with three(Cluster()) as (a, b, c):
        writes(b, refused)
        problem = await a.controller.start_transfer("b", "spread")
        await until(lambda: c.leads)

    assert problem is not None
    assert problem.startswith(
        "daemon 'b' was ready, got the lock of shard 0 and began no term: daemon 'c' has begun one"
    )


async def test_a_leader_gets_its_shard_back_if_no_other_can_begin_a_term() -> None:
    """A transfer that follows is another one."""
    async with three(Cluster()) as (a, b, c):
        c.elections.withdraw(0)
        writable = b.store.create
        writes(b, refused)
        problem = await a.controller.start_transfer("b", "spread")
        await until(lambda: a.leads)
        assert problem is not None
        assert "began no term, and has given the lock up: " in problem
        writes(b, writable)
        assert await a.controller.start_transfer("b", "spread") is None


class Held:
    """Creations that wait until they are allowed."""

    def __init__(self, create: Create) -> None:
        self.allowed = asyncio.Event()
        self._create = create

    async def __call__(self, path: str, data: bytes) -> None:
        await self.allowed.wait()
        await self._create(path, data)


async def refused(path: str, data: bytes) -> None:
    raise StoreUnavailableError(f"{path}: the bucket refuses writes")


def writes(daemon: Contender, create: Create) -> None:
    """Let a daemon write with ``create``."""
    daemon.store.create = create  # type: ignore[method-assign]
