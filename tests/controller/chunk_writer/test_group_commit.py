"""Group commit: nothing is sent before it is durable, and an unclear outcome ends the term."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from controller.chunk_writer.group_commit import EMPTY_CHUNK_BURST as BURST
from controller.chunk_writer.group_commit import EMPTY_CHUNK_INTERVAL_SECONDS as INTERVAL_SECONDS
from controller.chunk_writer.group_commit import (
    MAX_WAITING_BARRIERS,
    RETRY_SECONDS,
    GroupCommit,
    TermEndedError,
)
from controller.leadership.policy.safety import YIELD_SECONDS
from controller.leadership.policy.transitions import Event
from headgate.errors import NotDurableError
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from metrics import events
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.recording_observer import RecordingObserver

pytestmark = pytest.mark.looptime

ReportedAfterCommit = events.StoreOperationSucceeded | events.ChunkCommitted | events.BatchCommitted


class CommitObserver(RecordingObserver):
    """What the commit reports."""

    @property
    def commit_seconds(self) -> list[float]:
        return [event.seconds for event in self.of(events.ChunkCommitted)]

    @property
    def batch_seconds(self) -> list[float]:
        return [event.seconds for event in self.of(events.BatchCommitted)]

    @property
    def failed_operations(self) -> list[str]:
        return [event.operation for event in self.of(events.StoreOperationFailed)]


class Shard:
    """A term on a store that takes one second per write."""

    def __init__(self, *, yields_to_contender: bool = False) -> None:
        self.store = FakeStore(latency_seconds=(1.0, 1.0))
        self.ledger = Ledger(self.store, 0)
        self.state = ShardState(0)
        self.state.apply_all([e.TermStarted(leader_epoch=1, instance="a")], chunk=1, at_ms=0)
        self.heads: list[int] = []
        self.observer = CommitObserver()
        self.commit = GroupCommit(
            self.ledger,
            self.state,
            now_ms=lambda: 0,
            observer=self.observer,
            write_timeout_seconds=10,
            unreachable_seconds=15,
            yields_to_contender=lambda: yields_to_contender,
            on_durable=self.heads.append,
            on_records=lambda _: None,
        )
        self.sent: list[str] = []

    def create(self, name: str) -> None:
        """Propose a topic, and say its name once that is durable."""
        self.commit.propose(e.TopicCreated(topic_id=self.state.next_id, topic=name, segments=1, token=name))
        self.commit.when_durable(self.commit.newest, lambda: self.sent.append(name))


@asynccontextmanager
async def running(shard: Shard) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(shard.commit.run())
    try:
        async with asyncio.timeout(600):
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(task: asyncio.Task[None]) -> Event:
    with pytest.raises(TermEndedError) as caught:
        await task
    return caught.value.event


async def test_entries_proposed_during_a_write_share_the_next_chunk(looptime: Any) -> None:
    """Group commit: three proposals, two chunks, no artificial delay."""
    shard = Shard()
    async with running(shard):
        shard.create("a")
        await asyncio.sleep(0.1)
        shard.create("b")
        shard.create("c")
        assert {"a", "b", "c"} == set(shard.state.topics), "applied at once"
        assert [] == shard.sent, "sent only when durable"
        await shard.commit.flush()

    assert ["a", "b", "c"] == shard.sent
    assert [2, 3] == shard.heads
    assert 2 == looptime
    replayed = ShardState(0)
    replayed.begin_chunk(1, 0)
    for number in (2, 3):
        chunk = await shard.ledger.read(number)
        replayed.apply_all(chunk.entries, chunk=number, at_ms=chunk.header.at_ms)
    assert set(shard.state.topics) == set(replayed.topics)


async def test_commits_are_reported_after_the_replies() -> None:
    """Replies do not wait for metrics: they are written to the socket one turn of the loop earlier."""
    shard = Shard()
    reported_by_then: list[int] = []

    def reply() -> None:
        asyncio.get_running_loop().call_soon(lambda: reported_by_then.append(len(reported())))

    def reported() -> list[ReportedAfterCommit]:
        return [event for event in shard.observer.events if isinstance(event, ReportedAfterCommit)]

    async with running(shard):
        shard.create("a")
        shard.commit.batch_accepted()
        shard.commit.when_durable(shard.commit.newest, reply)
        await shard.commit.flush()
        await asyncio.sleep(0.01)

    assert [0] == reported_by_then
    succeeded, committed, batch = reported()
    assert events.StoreOperationSucceeded(operation="create") == succeeded
    assert isinstance(committed, events.ChunkCommitted)
    assert (1.0, 0) == (committed.seconds, committed.records)
    assert events.BatchCommitted(shard=0, seconds=1.0) == batch


async def test_the_commit_time_excludes_the_time_of_the_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write takes a second, and the replies to the first chunk three; a batch waits for both, its commit for neither."""
    shard, loop = Shard(), asyncio.get_running_loop()
    virtual_time, replied_seconds = loop.time, 0.0

    def reply() -> None:
        nonlocal replied_seconds
        replied_seconds += 3

    monkeypatch.setattr(loop, "time", lambda: virtual_time() + replied_seconds)
    async with running(shard):
        shard.create("a")
        shard.commit.batch_accepted()
        shard.commit.when_durable(shard.commit.newest, reply)
        await asyncio.sleep(0.25)
        shard.create("b")
        shard.commit.batch_accepted()
        await shard.commit.flush()
        await asyncio.sleep(0)

    assert ["a", "b"] == shard.sent
    assert [1.0, 1.0] == pytest.approx(shard.observer.commit_seconds)
    assert [1.0, 4.75] == pytest.approx(shard.observer.batch_seconds)


async def test_the_commit_time_includes_retries() -> None:
    shard = Shard()
    shard.store.fail_next("unavailable")
    async with running(shard):
        shard.create("a")
        await shard.commit.flush()
        await asyncio.sleep(0)

    # Half a second to the store, the pause, and a whole write.
    assert [0.5 + RETRY_SECONDS + 1.0] == pytest.approx(shard.observer.commit_seconds)


async def test_a_taken_number_ends_the_term_without_a_reply() -> None:
    shard = Shard()
    shard.store.objects["chunks/shard=0000/000000000002.parquet"] = b"another term's"
    async with running(shard) as task:
        shard.create("a")
        assert Event.NUMBER_TAKEN is await ended(task)
    assert [] == shard.sent


@pytest.mark.parametrize("fault", ["unknown_written", "repeated"])
async def test_a_leader_recognizes_the_chunk_that_it_has_written_itself(fault: Any) -> None:
    """A bucket that stores the chunk and cuts the connection ended every term at its first commit."""
    shard = Shard()
    shard.store.fail_next(fault, times=2)
    async with running(shard):
        shard.create("a")
        await shard.commit.flush()
        shard.create("b")
        await shard.commit.flush()

    assert ["a", "b"] == shard.sent
    assert 2 == shard.store.calls["make_durable"]


@pytest.mark.parametrize("cause", ["not written", "unreadable", "not durable"])
async def test_an_unknown_outcome_ends_the_term_without_a_reply(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk may or may not have been written, or may be lost in a power failure; this leader must not guess."""
    shard = Shard()
    shard.store.fail_next("unknown_lost" if cause == "not written" else "unknown_written")
    if cause == "unreadable":
        shard.store.fail_next("unavailable", "read")
    elif cause == "not durable":
        monkeypatch.setattr(shard.store, "create", AsyncMock(side_effect=NotDurableError("cannot sync")))
        monkeypatch.setattr(shard.store, "read", AsyncMock(side_effect=AssertionError("the cache proves nothing")))
    async with running(shard) as task:
        shard.create("a")
        assert Event.OUTCOME_UNKNOWN is await ended(task)
    assert [] == shard.sent


async def test_a_write_that_times_out_has_an_unknown_outcome(looptime: Any) -> None:
    shard = Shard()
    shard.store.freeze()
    async with running(shard) as task:
        shard.create("a")
        assert Event.OUTCOME_UNKNOWN is await ended(task)
    assert 10 == looptime


async def test_a_write_that_certainly_failed_is_retried() -> None:
    """A full disk that is freed in time causes only a delay."""
    shard = Shard()
    shard.store.fail_next("unavailable", times=3)
    async with running(shard):
        shard.create("a")
        await shard.commit.flush()

    assert ["a"] == shard.sent
    assert ["create"] * 3 == shard.observer.failed_operations
    assert 1 == len(shard.observer.of(events.StoreOperationSucceeded)), "the store is reported as reachable again"


async def test_an_unreachable_store_ends_the_term() -> None:
    shard = Shard()
    shard.store.outage()
    async with running(shard) as task:
        shard.create("a")
        assert Event.STORE_UNREACHABLE is await ended(task)


async def test_a_barrier_is_a_chunk_created_afterwards() -> None:
    """Also while another chunk is being written, which may have been created before the decision."""
    shard = Shard()
    async with running(shard):
        shard.create("a")
        await asyncio.sleep(0.9)
        shard.commit.when_durable(shard.commit.barrier(), lambda: shard.sent.append("after barrier"))
        assert 3 == shard.commit.newest
        await shard.commit.flush()

    assert ["a", "after barrier"] == shard.sent
    assert () == (await shard.ledger.read(3)).entries


async def test_barriers_one_after_the_other_cost_a_burst_of_empty_chunks_and_then_one_per_second() -> None:
    shard = Shard()
    shard.store.latency_seconds = (0.0, 0.0)
    loop = asyncio.get_running_loop()
    async with running(shard):
        for number in range(40):
            passed, before = asyncio.Event(), loop.time()
            shard.commit.after_barrier(passed.set)
            await passed.wait()
            assert loop.time() - before <= (0 if number < BURST else INTERVAL_SECONDS)

    assert 1 + 40 == shard.commit.durable
    assert 40 - BURST == loop.time() == len(shard.observer.of(events.BarrierDelayed))


async def test_barriers_that_wait_share_the_next_chunk_whatever_opens_it() -> None:
    shard = Shard()
    shard.store.latency_seconds = (0.0, 0.0)
    passed: list[int] = []
    async with running(shard):
        for _ in range(BURST):
            shard.commit.after_barrier(lambda: None)
            await shard.commit.flush()
        for number in range(5):
            shard.commit.after_barrier(partial(passed.append, number))
        await asyncio.sleep(INTERVAL_SECONDS / 2)
        assert [] == passed
        shard.create("a")
        await asyncio.sleep(0.01)
        assert (list(range(5)), ["a"]) == (passed, shard.sent), "the entry did not wait for the barriers"
        assert 1 + BURST + 1 == shard.commit.durable
        await asyncio.sleep(10)

    assert 1 + BURST + 1 == shard.commit.durable, "no empty chunk is written for barriers that have passed"


async def test_a_flush_and_too_many_barriers_do_not_wait() -> None:
    shard = Shard()
    shard.store.latency_seconds = (0.0, 0.0)
    passed: list[int] = []
    loop = asyncio.get_running_loop()
    async with running(shard):
        for _ in range(BURST):
            shard.commit.after_barrier(lambda: None)
            await shard.commit.flush()
        shard.commit.after_barrier(partial(passed.append, 0))
        await shard.commit.flush()
        assert ([0], 0) == (passed, loop.time())
        for number in range(MAX_WAITING_BARRIERS + 1):
            shard.commit.after_barrier(partial(passed.append, number))
        await asyncio.sleep(0)
        await shard.commit.flush()
        assert (MAX_WAITING_BARRIERS + 2, 0) == (len(passed), loop.time())
        shard.commit.after_barrier(partial(passed.append, 0))
        await asyncio.sleep(INTERVAL_SECONDS + 0.01)
        assert MAX_WAITING_BARRIERS + 3 == len(passed), "later barriers wait no longer than usual"


async def test_a_term_that_ended_opens_no_chunk_for_waiting_barriers() -> None:
    shard = Shard()
    shard.store.latency_seconds = (0.0, 0.0)
    async with running(shard):
        for _ in range(BURST):
            shard.commit.after_barrier(lambda: None)
            await shard.commit.flush()
        shard.commit.after_barrier(lambda: None)
    await asyncio.sleep(10)

    assert 1 + BURST == shard.commit.newest


async def test_callbacks_of_durable_chunks_run_at_once() -> None:
    shard = Shard()
    shard.commit.when_durable(1, lambda: shard.sent.append("now"))

    assert ["now"] == shard.sent


async def test_a_leader_that_yields_pauses_between_commits(looptime: Any) -> None:
    """A contender can create the next number during the pause."""
    shard = Shard(yields_to_contender=True)
    async with running(shard):
        shard.create("a")
        await asyncio.sleep(0.5)
        shard.create("b")
        await shard.commit.flush()
    assert 2 + YIELD_SECONDS == looptime


async def test_an_idle_leader_notices_its_successor() -> None:
    shard = Shard()
    async with running(shard):
        await shard.commit.check_for_successor()
        await shard.ledger.append(2, b"another term's")
        with pytest.raises(TermEndedError) as caught:
            await shard.commit.check_for_successor()
    assert Event.NUMBER_TAKEN is caught.value.event


async def test_a_leaders_own_chunk_is_not_mistaken_for_a_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written during the check."""
    shard = Shard()
    exists = shard.ledger.exists

    async def late(number: int) -> bool:
        shard.create("a")
        await shard.commit.flush()
        assert await exists(number)
        return True

    monkeypatch.setattr(shard.ledger, "exists", late)
    async with running(shard):
        await shard.commit.check_for_successor()


async def test_an_unreadable_store_does_not_end_an_idle_term() -> None:
    """The next commit will show."""
    shard = Shard()
    shard.store.outage()
    await shard.commit.check_for_successor()

    assert ["read"] == shard.observer.failed_operations


async def test_the_loop_does_not_wait_while_a_large_chunk_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one is encoded at once: a thread would delay the reply."""
    threads: list[int] = []
    encode = ChunkBuilder.encode

    def recorded(builder: ChunkBuilder, **header: int) -> bytes:
        threads.append(threading.get_ident())
        return encode(builder, **header)

    monkeypatch.setattr(ChunkBuilder, "encode", recorded)
    shard = Shard()
    async with running(shard):
        shard.create("small")
        await shard.commit.flush()
        shard.commit.propose(
            *(e.ProducerOpened(producer_id=n, producer_epoch=0, token="t" * 50) for n in range(2, 400))
        )
        await shard.commit.flush()

    assert [True, False] == [thread == threading.get_ident() for thread in threads]
