"""Processor time of a process and its children, and whether they wait for some, from /proc."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the seconds that ``pid`` and its present children have used; of those that are not found, 0."""
    seconds = 0.0
    for each in process_tree(pid):
        with suppress(OSError):  # It has just ended, or this system has no /proc.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:13])) / _TICKS  # of user and system
    return seconds


def wants_processor(pid: int) -> bool:
    """Return whether a thread of ``pid`` and its present children runs, or waits for a processor, a disk or memory."""
    for each in process_tree(pid):
        for thread in Path(f"/proc/{each}/task").glob("*/stat"):
            with suppress(OSError):
                if thread.read_text().rpartition(")")[2].split()[0] in {"R", "D"}:
                    return True
    return False


def process_tree(pid: int) -> Iterator[int]:
    """Yield ``pid`` and its present descendants."""
    waiting = [pid]
    while waiting:
        yield (each := waiting.pop())
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                waiting += map(int, task.read_text().split())
