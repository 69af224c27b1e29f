"""Transfers of a shard from its leader to a successor, with real controllers and fake servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
from structlog.testing import capture_logs

from controller.leader.term import begin_term
from controller.leadership.policy.queue_order import SeenQueue
from controller.leadership.policy.transitions import Event, Role
from controller.snapshots.restore import apply_new_chunks
from headgate.errors import LedgerError, StoreUnavailableError
from headgate.ledger.objects import chunk_folder, chunk_path
from headgate.model import entries as e
from headgate.protocol.replies import TopicReply
from headgate.protocol.requests import CreateTopic
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore, Fault, Operation
from tests.support.waiting import until
from tests.support.worlds.contenders import Cluster, Contender
from tests.support.worlds.one_shard import BareClient

Create = Callable[[str, bytes], Awaitable[None]]


@asynccontextmanager
async def three(cluster: Cluster) -> AsyncIterator[tuple[Contender, Contender, Contender]]:
    """Run a leader "a" and two followers, who wait in the order of their names and have read the ledger."""
    async with Contender(cluster, "a").leading() as a, Contender(cluster, "b").running() as b:
        await until(lambda: a.elections.queue(0) == SeenQueue("a", frozenset("b")))
        async with Contender(cluster, "c").running() as c:
            await until(lambda: a.elections.queue(0) == SeenQueue("a", frozenset("bc")))
            await until(lambda: c.controller.follower.end.chunk > 0)
            yield a, b, c


async def test_a_leader_serves_until_its_successor_has_read_the_ledger() -> None:
    cluster = Cluster()
    client = BareClient(cluster.broker)
    async with three(cluster) as (a, b, _):
        await client.open()
        b.store.freeze()
        transfer = a.controller.start_transfer("b", "spread")
        for number in range(20):
            assert isinstance(await client.call(CreateTopic, topic=f"t{number}", token=str(number)), TopicReply)
        assert not transfer.done()
        b.store.thaw()
        assert await transfer is None
        await until(lambda: b.leads)
        assert len(b.leader.state.topics) == 20
        await client.transport.__aexit__(None, None, None)


async def test_a_leader_continues_at_once_if_its_successor_leaves() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, c):
        b.store.freeze()
        transfer = a.controller.start_transfer("b", "spread")
        await asyncio.sleep(0.1)
        before = asyncio.get_running_loop().time()
        async with asyncio.timeout(1):
            await b.stop()
        assert await transfer == (
            "daemon 'b' does not contend for shard 0 any more: it has ended, lost its session in ZooKeeper, or cannot read "
            "the ledger"
        )
        assert asyncio.get_running_loop().time() - before < 0.1
        assert a.leads
        b.store.thaw()
        assert await a.controller.start_transfer("c", "spread") is None
        await until(lambda: c.leads)


async def test_one_shard_is_transferred_to_one_daemon_at_a_time() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, c):
        first = a.controller.start_transfer("b", "spread")

        assert a.controller.start_transfer("b", "operator") is first
        assert await a.controller.start_transfer("c", "spread") == "shard 0 is being transferred to daemon 'b'"
        assert await c.controller.start_transfer("b", "spread") == "daemon 'c' does not lead shard 0"
        await first
        await until(lambda: b.leads)
        b.controller.post(Event.STORE_UNREACHABLE)
        async with asyncio.timeout(5):
            assert "the term ended: store unreachable" == await b.controller.start_transfer("a", "spread")


async def test_a_successor_that_cannot_read_the_ledger_does_not_confirm_until_it_is_repaired() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        b.controller.follower.report(LedgerError("a hole"), "read")
        b.store.fail_next("unavailable", "names", 99)
        assert "has not seen within 1 s" in str(await a.controller.start_transfer("b", "spread", 1.0)), "unlisted"
        b.store._next["names"].clear()
        b.controller.follower.recover()
        b.store.damaged_reads = 1.0
        a.leader.commit.propose(e.TopicCreated(topic_id=1, topic="t", segments=1, token="x"))
        with capture_logs() as logs:
            assert await a.controller.start_transfer("b", "spread", 3.0) is not None
        assert a.leads
        [reason] = [line["reason"] for line in logs if line["event"] == "transfer.not_prepared"]
        assert "chunk" in reason
        await until(lambda: b.controller.follower.fault is not None)
        b.store.damaged_reads = 0.0
        cluster.broker.cut("daemon-b")
        assert await a.controller.start_transfer("b", "spread", 3.0) is not None, "nor one without the broker"
        assert await cluster.terms() == [(1, "a")]
        cluster.broker.heal("daemon-b")
        await until(lambda: b.transport.connected)
        assert await a.controller.start_transfer("b", "operator", 1.0) is None
        await until(lambda: a.elections.queue(0).fixed)


async def test_a_transfer_has_failed_if_the_successor_begins_no_term_in_time() -> None:
    async with three(Cluster()) as (a, b, c):
        writes(b, Held(b.store.create))
        with capture_logs() as logs:
            problem = await a.controller.start_transfer("b", "maintenance")
            await until(lambda: c.leads, seconds=0.5)

    assert problem == (
        "daemon 'b' was ready, and was given the lock of shard 0; it began no term within 3 s: "
        "see ledger.unreachable, term.outcome_unknown or ledger.unreadable in its log"
    )
    assert problem in [line["problem"] for line in logs if line["event"] == "transfer.abandoned"]
    labels = {"reason": "maintenance", "outcome": "abandoned"}
    assert 1 == a.registry.get_sample_value("headgate_shard_transfers_total", labels)


async def test_the_time_in_which_a_successor_has_to_be_ready_does_not_limit_its_term() -> None:
    async with three(Cluster()) as (a, b, _):
        held = Held(b.store.create)
        writes(b, held)
        transfer = a.controller.start_transfer("b", "operator", 0.5)
        await until(lambda: a.controller.leader is None)
        await asyncio.sleep(1)
        held.allowed.set()
        assert await transfer is None


async def test_a_transfer_has_failed_if_another_daemon_than_the_successor_begins_the_next_term() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        writes(b, Held(b.store.create))
        transfer = a.controller.start_transfer("b", "operator")
        await until(lambda: a.controller.leader is None)
        state = ShardState(0)
        await apply_new_chunks(cluster.ledger, state)
        assert await begin_term(cluster.ledger, state, "z", 0, term_id=5)
        assert "daemon 'z' has begun the newest term" in str(await transfer)


async def test_a_daemon_that_cannot_read_the_ledger_does_not_pass_its_successor_over() -> None:
    cluster = Cluster()
    async with three(cluster) as (a, b, _):
        a.store.read = partial(refused, data=b"")  # type: ignore[assignment]
        assert str(await a.controller.start_transfer("b", "maintenance")).endswith(
            "this daemon could not read the ledger to its end for 3 s, so it does not know of a term: see "
            "ledger.unreachable in its own log"
        )
        await asyncio.sleep(3)

        assert b.leads
        assert [(1, "a"), (2, "b")] == await cluster.terms()


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
    assert "within 10 s" in problem
    abandoned, completed = (line for line in logs if line["event"].startswith("transfer."))
    of_b = {"shard": 0, "successor": "b", "reason": "spread", "problem": problem}
    assert abandoned == of_b | {"event": "transfer.abandoned", "log_level": "warning"}
    assert ["handover"] == [line["reason"] for line in logs if line["event"] == "term.ended"]
    seconds = a.registry.get_sample_value("headgate_transfer_handover_seconds_sum")
    assert 0.1 < seconds < 2, "the reply to the barrier, and two reads that find the next term"
    of_c = {"shard": 0, "successor": "c", "reason": "maintenance", "handover_seconds": round(seconds, 4)}
    assert completed == of_c | {"event": "transfer.completed", "log_level": "info"}


# Shards that fail on their own, with the real parts of two daemons on fake servers: the other shards do not notice.


HANGING = range(4)
"""As many as states may be read at a time."""
HEALTHY = (4, 5)
DAMAGED = 6
ERRORS = 7
SHARDS = 8


class PartlyBrokenStore(FakeStore):
    """The objects of some shards cannot be reached, or their requests hang."""

    broken = False

    async def _begin(self, operation: Operation, path: str) -> Fault | None:
        shard = int(path.split("shard=")[1][:4]) if "shard=" in path else None
        if self.broken and shard in HANGING:
            await asyncio.get_running_loop().create_future()
        if self.broken and shard == ERRORS:
            self.fail_next("unavailable", operation)
        return await super()._begin(operation, path)


def contender(cluster: Cluster, name: str) -> Contender:
    return Contender(cluster, name, PartlyBrokenStore, shards=SHARDS, contends_for=SHARDS)


async def longest_commit_seconds(contenders: Sequence[Contender], seconds: float) -> float:
    """Commit to the healthy shards all the time, and return how long one commit took at most."""
    loop = asyncio.get_running_loop()
    end, longest = loop.time() + seconds, 0.0
    while loop.time() < end:
        for shard in HEALTHY:
            (leader,) = [each.controllers[shard].leader for each in contenders if shard in each.led]
            began, durable = loop.time(), asyncio.Event()
            leader.commit.when_durable(leader.commit.barrier(), durable.set)
            await durable.wait()
            longest = max(longest, loop.time() - began)
        await asyncio.sleep(0.05)
    return longest


async def test_shards_that_fail_while_they_are_led_leave_the_others_alone() -> None:
    cluster = Cluster()
    async with contender(cluster, "a").running() as a, contender(cluster, "b").running() as b:
        await until(lambda: len(a.led | b.led) == SHARDS)
        usual = await longest_commit_seconds([a, b], 5)
        path = max(path for path in cluster.objects if path.startswith(chunk_folder(DAMAGED)))
        intact = cluster.objects[path]
        cluster.objects[path] = intact[:40] + bytes([intact[40] ^ 1]) + intact[41:]
        for each in (a, b):
            each.store.broken = True  # with that, six shards of eight
            for shard in each.led - set(HEALTHY):
                each.controllers[shard].leader.commit.barrier()
        before = a.led & set(HEALTHY), b.led & set(HEALTHY)

        assert await longest_commit_seconds([a, b], 20) < 2 * usual

        assert before == (a.led & set(HEALTHY), b.led & set(HEALTHY))
        await until(lambda: ERRORS not in a.led | b.led)


async def test_an_endless_object_as_the_next_chunk_fails_only_its_shard() -> None:
    cluster = Cluster()
    daemon = contender(cluster, "a")
    async with daemon.running():
        await until(lambda: len(daemon.led) == SHARDS)
        before = {each.shard: each.term.ended for each in daemon.controllers}
        leader = daemon.controllers[DAMAGED].leader
        path = chunk_path(DAMAGED, leader.commit.durable + 1)
        daemon.store.endless.add(path)
        leader.commit.barrier()
        await until(lambda: daemon.controllers[DAMAGED].leadership.role is Role.FAILED)
        fault = daemon.controllers[DAMAGED].follower.fault

        daemon.store.endless.clear()
        await until(lambda: len(daemon.led) == SHARDS, 120)

    assert fault.startswith(f"{path} is not a regular file")
    ended = {each.shard for each in daemon.controllers if each.term.ended > before[each.shard]}
    assert {DAMAGED} == ended


async def test_an_idle_leader_notices_an_endless_object_as_the_next_chunk() -> None:
    cluster = Cluster()
    daemon = contender(cluster, "a")
    async with daemon.running():
        await until(lambda: len(daemon.led) == SHARDS)
        daemon.store.endless.add(chunk_path(DAMAGED, 2))
        await until(lambda: daemon.controllers[DAMAGED].leadership.role is Role.FAILED, 60)
        assert set(range(SHARDS)) - {DAMAGED} == daemon.led
