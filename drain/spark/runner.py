"""Run Spark jobs on one warm session, each within a time limit, and ping the JVM.

Spark's calls block, so runs and pings have a thread each. A run that takes too long is cancelled.
If that fails too, the JVM hangs: JvmGoneError, and the process exits.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from drain.spark.engines import ENGINE_ERRORS, JvmGoneError, RunError, calls_of

Result = TypeVar("Result")

CANCEL_SECONDS: Final = 10.0
"""A cancelled job normally ends within 0.1 s. A JVM that takes this long hangs."""
_CANCEL_RETRY_SECONDS: Final = 0.5
"""A job cannot be cancelled while it is being planned, so cancelling is repeated."""


class SparkRunner:
    """Runs one job at a time. A session may have several runners."""

    def __init__(self, session: SparkSession, *, name: str, run_timeout_seconds: float) -> None:
        """``name``: begins the names of the job groups."""
        self._session = session
        self._engine = calls_of(session)
        self._name = name
        self._run_timeout_seconds = run_timeout_seconds
        self._groups = itertools.count(1)
        self._run_lock = asyncio.Lock()
        self._runs = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="spark-call")
        self._pinging: asyncio.Future[None] | None = None

    async def run(self, work: Callable[[SparkSession], Result]) -> Result:
        """Return what ``work`` returns; raises its errors, RunError if it takes too long, or JvmGoneError."""
        # The time limit begins with the run. A run that waited in the thread's queue could not be cancelled.
        async with self._run_lock:
            return await self._run_now(work)

    async def _run_now(self, work: Callable[[SparkSession], Result]) -> Result:
        group = f"{self._name}-{next(self._groups)}"
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._runs, partial(self._run_in_job_group, group, work))
        try:
            done, _ = await asyncio.wait({job}, timeout=self._run_timeout_seconds)
        except asyncio.CancelledError:
            # The process is stopping, and a hung JVM stops with it.
            with contextlib.suppress(JvmGoneError):
                await self._cancel(group, job)
            raise
        if done:
            return job.result()
        await self._cancel(group, job)
        late = f"the run took longer than {self._run_timeout_seconds:g} s and was cancelled"
        raise RunError(f"{late} (limit of runs that count: drain.run_timeout_seconds)")

    async def ping(self) -> None:
        """Return once the JVM answers (never, if it hangs); raises JvmGoneError if it is gone."""
        loop = asyncio.get_running_loop()
        if self._pinging is None or self._pinging.done():
            # Concurrent pings share one call: calls to a hung JVM must not queue up.
            self._pinging = loop.run_in_executor(self._calls, self._ping)
        await asyncio.shield(self._pinging)

    def close(self) -> None:
        """Release the threads without waiting for them."""
        self._runs.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _run_in_job_group(self, group: str, work: Callable[[SparkSession], Result]) -> Result:
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
                # Retrieve the exception, so that asyncio does not log it.
                job.exception()
                return
        raise JvmGoneError(f"the JVM did not cancel a job within {CANCEL_SECONDS:g} s")
