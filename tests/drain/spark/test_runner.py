"""One run at a time, with a time limit that begins with the run. Functions replace Spark."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from drain.spark.runner import SparkRunner

pytestmark = pytest.mark.real_time


class Session:
    """The methods of a session that a run needs."""

    interrupted = 0

    def interruptAll(self) -> None:  # noqa: N802 - Spark's name
        self.interrupted += 1


async def test_the_time_limit_of_a_waiting_run_has_not_begun() -> None:
    """A run in the thread's queue could not be cancelled, which would look like a hung JVM."""
    may_end, begun = threading.Event(), threading.Event()
    counted: list[str] = []

    def first_run(_: Any) -> str:
        begun.set()
        assert may_end.wait(60)
        return "first"

    def second_run(_: Any) -> str:
        counted.append("shard 3")
        return "second"

    session: Any = Session()
    runner = SparkRunner(session, name="backlog", run_timeout_seconds=60)
    with contextlib.closing(runner):
        first = asyncio.ensure_future(runner.run(first_run))
        await asyncio.to_thread(begun.wait, 60)
        runner._run_timeout_seconds = 0.05
        second = asyncio.ensure_future(runner.run(second_run))
        # Ten times the limit of the second run, which has not started.
        assert not (await asyncio.wait({second}, timeout=0.5))[0]
        assert counted == []
        runner._run_timeout_seconds = 60
        may_end.set()

        assert (await first, await second) == ("first", "second")
    assert (counted, session.interrupted) == (["shard 3"], 0)
