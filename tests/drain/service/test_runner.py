"""One run at a time, with a time limit that begins with the run. Functions replace Spark."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from drain.backlog.counting import ChunkBatch
from drain.service import runner as runner_module
from drain.service.runner import SparkRunner
from drain.spark.fact_source import SparkFiles
from drain.table_mapping import ExternalTables, ExternalView


class Session:
    """The methods of a session that a run needs."""

    interrupted = 0

    def interruptAll(self) -> None:  # noqa: N802 - Spark's name
        self.interrupted += 1


async def test_the_time_limit_of_a_waiting_count_of_tables_has_not_begun(monkeypatch) -> None:
    """A run in the thread's queue could not be cancelled, which would look like a hung JVM."""
    may_end, begun = threading.Event(), threading.Event()
    counted: list[str] = []

    def merge(*_: Any) -> dict[int, list[Any]]:
        begun.set()
        assert may_end.wait(60)
        return {0: []}

    def count_external(*_: Any, shard: int) -> tuple[()]:
        counted.append(f"shard {shard}")
        return ()

    monkeypatch.setattr(runner_module, "aggregate_chunks", merge)
    monkeypatch.setattr(runner_module, "count_external", count_external)
    session: Any = Session()
    runner = SparkRunner(session, SparkFiles("file:///nowhere"), run_timeout_seconds=60)
    view = ExternalView(topic="orders", subscriptions={}, labels={})
    with contextlib.closing(runner):
        first = asyncio.ensure_future(runner.count([ChunkBatch(0, [])]))
        await asyncio.to_thread(begun.wait, 60)
        runner._run_timeout_seconds = 0.05
        second = asyncio.ensure_future(runner.count_external(ExternalTables(), view, [], 3))
        # Ten times the limit of the second run, which has not started.
        assert not (await asyncio.wait({second}, timeout=0.5))[0]
        assert counted == []
        runner._run_timeout_seconds = 60
        may_end.set()

        assert (await first, await second) == ({0: []}, ())
    assert (counted, session.interrupted) == (["shard 3"], 0)
