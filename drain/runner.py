"""Run merges on one warm session, each within a time limit, and know whether the JVM is still there.

Spark's calls block, so they have a thread of their own; the pings have another, to be answered while a job runs. A run
that takes too long is cancelled by its job group (an interrupt by tag does not reach it). If even that does not
return, the JVM hangs, and nothing in this process can help it: JvmGoneError, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from drain.counting import JvmGoneError, RunError, Step, merge
from drain.settlement import MergedRow

CANCEL_SECONDS: Final = 10.0
"""A cancelled job is gone within 0.1 s; a JVM that takes this long hangs."""
_AGAIN_SECONDS: Final = 0.5
"""A job that is still being planned cannot be cancelled yet, so cancelling is repeated."""


class SparkRunner:
    """One session, used by one run at a time."""

    def __init__(self, session: SparkSession, base: str, *, run_timeout_seconds: float) -> None:
        self._session = session
        self._base = base
        self._run_timeout_seconds = run_timeout_seconds
        self._groups = itertools.count(1)
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="spark-run")
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="spark-call")
        self._pinging: asyncio.Future[None] | None = None

    async def count(self, steps: Sequence[Step]) -> Mapping[int, list[MergedRow]]:
        """Run one merge; raises RunError (too slow, or failed) or JvmGoneError."""
        group = f"backlog-{next(self._groups)}"
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._runs, self._merge, group, steps)
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

    def _merge(self, group: str, steps: Sequence[Step]) -> Mapping[int, list[MergedRow]]:
        try:
            self._session.sparkContext.setJobGroup(group, "backlog", interruptOnCancel=True)
        except (Py4JError, ConnectionError) as error:
            raise JvmGoneError(f"the JVM does not answer: {error}") from error
        return merge(self._session, self._base, steps)

    def _ping(self) -> None:
        try:
            self._jvm().java.lang.System.nanoTime()
        except (Py4JError, ConnectionError, EOFError) as error:
            raise JvmGoneError(f"the JVM does not answer: {error}") from error

    def _jvm(self) -> Any:
        return self._session._jvm  # noqa: SLF001 - the one way to reach the JVM without starting a job

    async def _cancel(self, group: str, job: asyncio.Future[Mapping[int, list[MergedRow]]]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + CANCEL_SECONDS
        while loop.time() < until:
            call = loop.run_in_executor(self._calls, self._session.sparkContext.cancelJobGroup, group)
            await asyncio.wait({call}, timeout=_AGAIN_SECONDS)
            if call.done() and call.exception() is not None:
                break
            await asyncio.wait({job}, timeout=_AGAIN_SECONDS)
            if job.done():
                # How it ended is of no interest any more; asking is what keeps asyncio from complaining.
                job.exception()
                return
        raise JvmGoneError(f"the JVM did not cancel a job within {CANCEL_SECONDS:g} s")
