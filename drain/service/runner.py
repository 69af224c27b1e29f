"""Run merges on one warm session, each within a time limit, and know whether the JVM is still there.

Spark's calls block, so they have a thread of their own; the pings have another, to be answered while a job runs. A run
that takes too long is cancelled in the engine's own way (drain.spark.engines). If even that does not return, the JVM
hangs, and nothing in this process can help it: JvmGoneError, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from drain.backlog.counting import ChunkBatch, JvmGoneError, RunError, aggregate_chunks
from drain.backlog.merge import Backlog, MergedRow, StateRow
from drain.external.count import count_external
from drain.external.table_mapping import ExternalTables, ExternalView
from drain.spark.engines import ENGINE_ERRORS, calls_of
from drain.spark.fact_source import FactSource

Counted = TypeVar("Counted")

CANCEL_SECONDS: Final = 10.0
"""A cancelled job is gone within 0.1 s; a JVM that takes this long hangs."""
_CANCEL_RETRY_SECONDS: Final = 0.5
"""A job that is still being planned cannot be cancelled yet, so cancelling is repeated."""


class SparkRunner:
    """One session, used by one run at a time."""

    def __init__(self, session: SparkSession, source: FactSource, *, run_timeout_seconds: float) -> None:
        self._session = session
        self._engine = calls_of(session)
        self._source = source
        self._run_timeout_seconds = run_timeout_seconds
        self._groups = itertools.count(1)
        self._run_lock = asyncio.Lock()
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="spark-run")
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="spark-call")
        self._pinging: asyncio.Future[None] | None = None

    async def count(self, batches: Sequence[ChunkBatch]) -> Mapping[int, list[MergedRow]]:
        """Run one merge; raises RunError (too slow, or failed) or JvmGoneError."""
        return await self._run(lambda session: aggregate_chunks(session, self._source, batches))

    async def count_external(
        self, tables: ExternalTables, view: ExternalView, rows: Sequence[StateRow], shard: int
    ) -> tuple[Backlog, ...]:
        """Count one external topic's tables; raises TableError beside what `count` raises."""
        return await self._run(lambda session: count_external(session, tables, view, rows, shard=shard))

    async def _run(self, work: Callable[[SparkSession], Counted]) -> Counted:
        # The time limit begins with the run: one that waited in the thread's queue could not be cancelled there.
        async with self._run_lock:
            return await self._run_now(work)

    async def _run_now(self, work: Callable[[SparkSession], Counted]) -> Counted:
        group = f"backlog-{next(self._groups)}"
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._runs, partial(self._run_in_job_group, group, work))
        try:
            done, _ = await asyncio.wait({job}, timeout=self._run_timeout_seconds)
        except asyncio.CancelledError:
            # Whoever ends us ends a hung JVM too.
            with contextlib.suppress(JvmGoneError):
                await self._cancel(group, job)
            raise
        if done:
            return job.result()
        await self._cancel(group, job)
        raise RunError(f"the run took longer than {self._run_timeout_seconds:g} s and was cancelled")

    async def ping(self) -> None:
        """Return once the JVM has answered; raises JvmGoneError if it refuses. A JVM that hangs never answers."""
        loop = asyncio.get_running_loop()
        if self._pinging is None or self._pinging.done():
            # Those who ask while one ping is out share it: a hung JVM must not gather a queue of them.
            self._pinging = loop.run_in_executor(self._calls, self._ping)
        await asyncio.shield(self._pinging)

    def close(self) -> None:
        """Let go of the threads, without waiting for them."""
        self._runs.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _run_in_job_group(self, group: str, work: Callable[[SparkSession], Counted]) -> Counted:
        try:
            self._engine.begin(group)
        except ENGINE_ERRORS as error:
            raise JvmGoneError(f"the JVM does not answer: {error}") from error
        return work(self._session)

    def _ping(self) -> None:
        try:
            self._engine.ping()
        except ENGINE_ERRORS as error:
            raise JvmGoneError(f"the JVM does not answer: {error}") from error

    async def _cancel(self, group: str, job: asyncio.Future[Any]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + CANCEL_SECONDS
        while loop.time() < until:
            call = loop.run_in_executor(self._calls, self._engine.cancel, group)
            await asyncio.wait({call}, timeout=_CANCEL_RETRY_SECONDS)
            if call.done() and call.exception() is not None:
                break
            await asyncio.wait({job}, timeout=_CANCEL_RETRY_SECONDS)
            if job.done():
                # How it ended is of no interest any more; asking is what keeps asyncio from complaining.
                job.exception()
                return
        raise JvmGoneError(f"the JVM did not cancel a job within {CANCEL_SECONDS:g} s")
