"""Threads for the calls of a folder."""

import asyncio
import gc
import threading

import pytest

from headgate.storage.disk_threads import DiskThreads


async def test_a_call_returns_or_raises_in_a_thread_that_ends_with_the_object() -> None:
    threads = DiskThreads("test")

    with pytest.raises(FileNotFoundError):
        await threads.run(lambda: open("/nowhere/at/all"))  # noqa: PTH123, SIM115 - it fails
    thread = await threads.run(threading.current_thread)
    del threads
    gc.collect()

    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
