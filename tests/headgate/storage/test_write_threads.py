"""Threads for writes: what is run is finished, what it raises arrives, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from headgate.storage.write_threads import WriteThreads
from tests.support.waiting import until

WAIT_SECONDS = 60.0


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("writer-")}


async def test_what_a_write_raises_arrives_and_the_thread_goes_on():
    threads = WriteThreads()
    done = []

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await threads.run(fail)
    await threads.run(lambda: done.append(threading.current_thread().name))

    assert done == ["writer-1"]


async def test_what_nobody_waits_for_is_done_and_a_bug_in_it_is_reported_and_ends_nothing(monkeypatch):
    threads = WriteThreads()
    done, reported = [], []
    monkeypatch.setattr(threading, "excepthook", lambda raised: reported.append(str(raised.exc_value)))

    def fail() -> None:
        raise RuntimeError("a bug")

    threads.start(fail)
    threads.start(lambda: done.append("second"))
    await until(lambda: done)
    await threads.run(lambda: done.append("third"))

    assert reported == ["a bug"]
    assert done == ["second", "third"]


async def test_as_many_writes_as_the_limit_run_side_by_side_and_the_next_one_waits():
    threads = WriteThreads(limit=2)
    both = threading.Barrier(3)
    third_began = threading.Event()

    writes = [asyncio.create_task(threads.run(lambda: _meet(both))) for _ in range(2)]
    await asyncio.sleep(0)
    third = asyncio.create_task(threads.run(third_began.set))
    await asyncio.sleep(0)

    assert not third_began.is_set()
    await asyncio.to_thread(_meet, both)
    await asyncio.gather(*writes, third)
    assert third_began.is_set()


async def test_a_caller_that_is_cancelled_leaves_the_write_running_to_its_end():
    threads = WriteThreads()
    go, ended = threading.Event(), threading.Event()

    def write() -> None:
        assert go.wait(WAIT_SECONDS)
        ended.set()

    task = asyncio.create_task(threads.run(write))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    go.set()
    assert await asyncio.to_thread(ended.wait, WAIT_SECONDS)


async def test_the_threads_end_with_their_owner():
    before = _threads()
    threads = WriteThreads(limit=3)
    barrier = threading.Barrier(3)
    await asyncio.gather(*(threads.run(lambda: _meet(barrier)) for _ in range(3)))
    started = _threads() - before

    del threads
    gc.collect()
    for thread in started:
        await asyncio.to_thread(thread.join, WAIT_SECONDS)

    assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)


def test_a_loop_that_was_closed_meanwhile_harms_nobody():
    threads = WriteThreads()
    go: threading.Event = threading.Event()
    ended: list[Callable[[], None]] = []

    async def leave() -> None:
        task = asyncio.create_task(threads.run(lambda: ended.append(go.wait(WAIT_SECONDS))))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    go.set()
    asyncio.run(threads.run(lambda: ended.append("second")))

    assert ended == [True, "second"]


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(WAIT_SECONDS)
