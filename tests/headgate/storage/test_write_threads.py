"""Write threads: operations finish, errors reach the caller, and no thread remains."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headgate.storage.write_threads import WriteThreads

WAIT_SECONDS = 60.0


async def test_an_error_reaches_the_caller_and_the_thread_continues():
    threads = WriteThreads()
    done = []

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await threads.run(fail)
    await threads.run(lambda: done.append(threading.current_thread().name))

    assert done == ["writer-1"]


async def test_writes_run_concurrently_up_to_the_limit():
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


async def test_a_write_finishes_although_its_caller_is_cancelled():
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


def _meet(barrier: threading.Barrier) -> None:
    barrier.wait(WAIT_SECONDS)
