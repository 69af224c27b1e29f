"""Finds out whether this daemon can write to the store, also while it leads no shard.

A read proves nothing about writes: a folder can be read-only, or lack hard links, and a bucket can refuse a key. So the
daemon tries a write when it starts, often while writes fail or another daemon is not ready, and now and then.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from headgate.storage.object_store import Store, write_problem
from metrics import events

PROBE_INTERVAL_SECONDS: Final = 300.0
"""A bucket charges for four requests each time."""
FAILING_INTERVAL_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


async def probe_writes(store: Store, observer: events.Observer, doubtful: Callable[[], bool]) -> None:
    """Try a write again and again. ``doubtful``: whether to do so often."""
    known: str | None = None
    while True:
        problem = await write_problem(store)
        if problem is None:
            observer.observe(events.StoreOperationSucceeded(operation="create"))
            if known is not None:
                log.info("store.writable")
        else:
            observer.observe(events.StoreOperationFailed(operation="create", reason=problem))
            if known is None:
                log.error("store.not_writable", reason=problem)
        known = problem
        # A failed write of a leader is looked at soon, too: the next check is due within the shorter interval.
        waited = 0.0
        while waited < (FAILING_INTERVAL_SECONDS if doubtful() else PROBE_INTERVAL_SECONDS):
            await asyncio.sleep(FAILING_INTERVAL_SECONDS)
            waited += FAILING_INTERVAL_SECONDS
