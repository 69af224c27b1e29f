"""Group commit: nothing is sent before it is durable, and an unclear outcome ends the term."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from controller.chunk_writer.group_commit import EMPTY_CHUNK_BURST as BURST
from controller.chunk_writer.group_commit import EMPTY_CHUNK_INTERVAL_SECONDS as INTERVAL_SECONDS
from controller.chunk_writer.group_commit import MAX_WAITING_BARRIERS, GroupCommit, TermEndedError
from controller.leadership.policy.safety import YIELD_SECONDS
from controller.leadership.policy.transitions import Event
from controller.settings.sections import IngestSettings
from headgate.errors import NotDurableError
from headgate.ledger.chunk import RecordColumns
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from metrics import events
from shard.state.shard_state import ShardState
from tests.support.fakes.object_store import FakeStore
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.stored_batches import stored_batch


class Shard:
    """A term on a store that takes one second per write."""

    def __init__(self, *, yields_to_contender: bool = False, commit_interval_ms: int = 0) -> None:
        self.store = FakeStore(latency_seconds=(1.0, 1.0))
        self.ledger = Ledger(self.store, 0)
        self.state = ShardState(0)
        self.state.apply_all([e.TermStarted(leader_epoch=1, instance="a")], chunk=1, at_ms=0)
        self.heads: list[int] = []
        self.observer = RecordingObserver()
        self.commit = GroupCommit(
            SimpleNamespace(
                trace_commits=None,
                ledger=self.ledger,
                ingest=IngestSettings(
                    write_timeout_seconds=10, unreachable_seconds=15, commit_interval_ms=commit_interval_ms
                ),
                observer=self.observer,
                now_ms=lambda: 0,
            ),
            self.state,
            yields_to_contender=lambda: yields_to_contender,
            on_durable=lambda number, _: self.heads.append(number),
            on_records=lambda _: None,
        )
        self.sent: list[str] = []

    def create(self, name: str) -> None:
        """Propose a topic, and say its name once that is durable."""
        self.commit.propose(e.TopicCreated(topic_id=self.state.ids.next_id, topic=name, segments=1, token=name))
        self.commit.when_durable(self.commit.newest, lambda: self.sent.append(name))


@asynccontextmanager
async def running(given: Shard | None = None) -> AsyncIterator[tuple[Shard, asyncio.Task[None]]]:
    shard = given or Shard()
    task = asyncio.create_task(shard.commit.run())
    try:
        async with asyncio.timeout(600):
            yield shard, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(task: asyncio.Task[None]) -> Event:
    with pytest.raises(TermEndedError) as caught:
        await task
    return caught.value.event


async def test_entries_proposed_during_a_write_share_the_next_chunk() -> None:
    """Group commit: three proposals, two chunks, no artificial delay."""
    async with running() as (shard, _):
        shard.create("a")
        await asyncio.sleep(0.1)
        shard.create("b")
        shard.create("c")
        assert {"a", "b", "c"} == set(shard.state.topics), "applied at once"
        assert [] == shard.sent, "sent only when durable"
        await shard.commit.flush()

    assert ["a", "b", "c"] == shard.sent
    assert [2, 3] == shard.heads
    assert 2 == asyncio.get_running_loop().time()
    replayed = ShardState(0)
    replayed.begin_chunk(1, 0)
    for number in (2, 3):
        chunk = await shard.ledger.read(number)
        replayed.apply_all(chunk.entries, chunk=number, at_ms=chunk.header.at_ms)
    assert set(shard.state.topics) == set(replayed.topics)


def propose_many(shard: Shard, count: int = 2000) -> ChunkBuilder:
    """Propose a batch whose encoding takes longer than its turn of the loop should; return the builder of its chunk."""
    entry = stored_batch(count=count, topic_id=shard.state.topics["a"].topic_id, size_bytes=count)
    records = RecordColumns(*(column * count for column in ([1], [0], [0], [0], [b"k"], [b""], [()])))
    shard.commit.propose_records(entry, records)
    return shard.commit._pending.builder


async def test_many_records_are_encoded_in_a_turn_of_their_own_while_the_chunk_before_is_written() -> None:
    async with running() as (shard, _):
        shard.create("a")
        await asyncio.sleep(0.1)
        builder = propose_many(shard)
        assert builder.has_many_waiting, "the turn of the batch does not encode"
        await asyncio.sleep(0)
        assert not builder.has_many_waiting
        await shard.commit.flush()

    assert 2000 == (await shard.ledger.read(3)).header.records


async def test_many_records_of_an_idle_shard_are_encoded_by_a_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, waited = Shard(), []

    async def in_thread(encode: Callable[[], bytes]) -> bytes:
        await asyncio.sleep(0.1)
        waited.append(builder.has_many_waiting)
        return encode()

    async with running(shard):
        shard.create("a")
        await shard.commit.flush()
        monkeypatch.setattr(asyncio, "to_thread", in_thread)
        builder = propose_many(shard)
        await shard.commit.flush()

    assert [True] == waited, "the loop has not encoded them meanwhile"
    assert 2000 == (await shard.ledger.read(3)).header.records


async def test_a_commit_begins_an_interval_after_the_previous_one() -> None:
    """On a bucket each commit is billed. What arrives in between shares the next chunk."""
    shard, clock = Shard(commit_interval_ms=5000), asyncio.get_running_loop().time
    async with running(shard):
        began = clock()
        shard.create("a")
        await asyncio.sleep(2)
        assert ["a"] == shard.sent, "nothing was committed before"
        shard.create("b")
        await asyncio.sleep(2)
        shard.create("c")
        await shard.commit.flush()
        assert (["a", "b", "c"], 6) == (shard.sent, pytest.approx(clock() - began))
        assert 2 == shard.commit.durable - 1, "two chunks"


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


@pytest.mark.parametrize(
    ("fault", "event", "seconds"),
    [
        (lambda store: store.objects.update({chunk_path(0, 2): b"another term's"}), Event.NUMBER_TAKEN, 2),
        (lambda store: store.freeze(), Event.OUTCOME_UNKNOWN, 10),
        (lambda store: store.outage(), Event.STORE_UNREACHABLE, 15),
    ],
    ids=["a taken number", "a write that times out", "an unreachable store"],
)
async def test_a_fault_of_the_store_ends_the_term_without_a_reply(
    fault: Callable[[FakeStore], None], event: Event, seconds: int
) -> None:
    shard = Shard()
    fault(shard.store)
    async with running(shard) as (_, task):
        shard.create("a")
        assert event is await ended(task)
    assert ([], seconds) == (shard.sent, int(asyncio.get_running_loop().time()))


@pytest.mark.parametrize("cause", ["not written", "unreadable", "not durable", "repeated, not durable"])
async def test_an_unknown_outcome_ends_the_term_without_a_reply(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk may or may not have been written, or may be lost in a power failure; this leader must not guess."""
    shard = Shard()
    shard.store.fail_next("unknown_lost" if cause == "not written" else "unknown_written")
    if cause == "unreadable":
        shard.store.fail_next("unavailable", "read")
    elif cause == "not durable":
        monkeypatch.setattr(shard.store, "create", AsyncMock(side_effect=NotDurableError("cannot sync")))
        monkeypatch.setattr(shard.store, "read", AsyncMock(side_effect=AssertionError("the cache proves nothing")))
    elif cause == "repeated, not durable":
        shard.store.fail_next("unavailable", "make_durable")
    async with running(shard) as (_, task):
        shard.create("a")
        assert Event.OUTCOME_UNKNOWN is await ended(task)
    assert [] == shard.sent


async def test_a_write_that_certainly_failed_is_retried() -> None:
    """A full disk that is freed in time causes only a delay."""
    shard = Shard()
    shard.store.fail_next("unavailable", times=3)
    async with running(shard):
        shard.create("a")
        await shard.commit.flush()

    assert ["a"] == shard.sent
    assert ["create"] * 3 == [event.operation for event in shard.observer.of(events.StoreOperationFailed)]
    assert 1 == len(shard.observer.of(events.StoreOperationSucceeded)), "the store is reported as reachable again"


async def test_a_barrier_is_a_chunk_created_afterwards() -> None:
    """Also while another chunk is being written, which may have been created before the decision."""
    async with running() as (shard, _):
        shard.create("a")
        await asyncio.sleep(0.9)
        shard.commit.when_durable(shard.commit.barrier(), lambda: shard.sent.append("after barrier"))
        assert 3 == shard.commit.newest
        await shard.commit.flush()

    assert ["a", "after barrier"] == shard.sent
    assert () == (await shard.ledger.read(3)).entries


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


async def test_a_leader_that_yields_pauses_between_commits() -> None:
    """A contender can create the next number during the pause."""
    shard = Shard(yields_to_contender=True)
    async with running(shard):
        shard.create("a")
        await asyncio.sleep(0.5)
        shard.create("b")
        await shard.commit.flush()
    assert 2 + YIELD_SECONDS == asyncio.get_running_loop().time()


async def test_an_unreadable_store_does_not_end_an_idle_term() -> None:
    """The next commit will show."""
    shard = Shard()
    shard.store.outage()
    await shard.commit.check_for_successor()

    assert ["read"] == [event.operation for event in shard.observer.of(events.StoreOperationFailed)]
