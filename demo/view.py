"""Show the progress of a run in lines.

Counts come from the growing files of producer and consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from demo.cluster import DemoCluster
from demo.scenario import SUBSCRIPTIONS, Run

LINE_INTERVAL_SECONDS = 10.0
"""Interval between lines with counts."""


class _LineCounter:
    """Counts the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.lines = 0
        self._path = path
        self._read_bytes = 0

    def update(self) -> int:
        """Read new data and return the number of lines."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
            self._read_bytes += len(data)
            self.lines += data.count(b"\n")
        return self.lines


class View:
    """Prints the progress on a console."""

    def __init__(self, console: Console, cluster: DemoCluster, run: Run) -> None:
        self._console = console
        self._cluster = cluster
        self._run = run
        self._line_counters: dict[str, _LineCounter] = {}
        self._began = asyncio.get_running_loop().time()

    def report_step(self, what: str) -> None:
        """Print that a step is done."""
        self._console.print(f"{self._elapsed():6.1f} s  {what}", highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Print counts until cancelled."""
        while True:
            await asyncio.sleep(LINE_INTERVAL_SECONDS)
            counts = self._counts()
            text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            self._console.print(f"{self._elapsed():6.1f} s  received: {text}", highlight=False, soft_wrap=True)

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _count(self, name: str, path: Callable[[str], Path]) -> int:
        return self._line_counters.setdefault(name, _LineCounter(path(name))).update()

    def _counts(self) -> dict[str, int]:
        found = dict.fromkeys(SUBSCRIPTIONS, 0)
        for consumer, subscription in self._run.consumers.items():
            found[subscription] += self._count(consumer, self._cluster.output_path)
        return found
