"""Show the progress of a run: a live table on a terminal, plain lines elsewhere.

Counts come from the growing files of producer and consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.cluster import DemoCluster
from demo.scenario import SUBSCRIPTIONS, Run

LINE_INTERVAL_SECONDS = 10.0
"""Interval between plain lines with counts."""


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
        self._reported_steps: list[str] = []
        self._began = asyncio.get_running_loop().time()

    def report_step(self, what: str) -> None:
        """Print that a step is done."""
        line = f"{self._elapsed():6.1f} s  {what}"
        self._reported_steps.append(line)
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)

    async def run(self) -> None:
        """Update the display until cancelled."""
        if self._console.is_terminal:
            with Live(console=self._console, refresh_per_second=4, transient=True) as live:
                try:
                    while True:
                        live.update(self._render())
                        await asyncio.sleep(0.5)
                finally:
                    live.update(Text(""))
        while True:
            await asyncio.sleep(LINE_INTERVAL_SECONDS)
            counts = self._counts()
            text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            self._console.print(f"{self._elapsed():6.1f} s  received: {text}", highlight=False, soft_wrap=True)

    def steps(self) -> list[str]:
        """Return every reported step, in order."""
        return self._reported_steps

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _count(self, name: str, path: Callable[[str], Path]) -> int:
        return self._line_counters.setdefault(name, _LineCounter(path(name))).update()

    def _counts(self) -> dict[str, int]:
        found = dict.fromkeys(SUBSCRIPTIONS, 0)
        for consumer, subscription in self._run.consumers.items():
            found[subscription] += self._count(consumer, self._cluster.output_path)
        return found

    def _render(self) -> Group:
        topic = Table(title="segments", title_justify="left", box=None)
        for heading in ("segment", "range", "state", "records", "parents"):
            topic.add_column(heading, justify="right" if heading == "records" else "left")
        for segment in self._run.layout.segments if self._run.layout else []:
            topic.add_row(
                str(segment.segment),
                f"{segment.first_hash:04x}-{segment.last_hash:04x}",
                segment.state,
                f"{segment.next_offset:,}",
                ", ".join(map(str, segment.parents)) or "-",
                style="dim" if segment.state == "sealed" else "",
            )
        consumers = Table(title="consumers", title_justify="left", box=None)
        for heading in ("consumer", "subscription", "type", "received"):
            consumers.add_column(heading, justify="right" if heading == "received" else "left")
        self._counts()
        for consumer, subscription in self._run.consumers.items():
            ended = consumer not in self._cluster.programs
            received = f"{self._line_counters[consumer].lines:,}"
            style = "dim" if ended else ""
            consumers.add_row(consumer, subscription, SUBSCRIPTIONS[subscription], received, style=style)
        return Group(Text(f"{self._elapsed():.0f} s"), topic, consumers, Text("\n".join(self._reported_steps[-10:])))
