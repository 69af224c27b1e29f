"""Processor time of a process and its children, from /proc: a process that waits for a busy machine uses some."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the seconds that ``pid`` and its present children have used; of those that are not found, 0."""
    seconds, waiting = 0.0, [pid]
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            waiting += [int(each) for task in folder.glob("task/*/children") for each in task.read_text().split()]
        except OSError:
            continue  # It has just ended, or this system has no /proc.
        seconds += sum(map(int, fields[11:13])) / _TICKS  # of user and system
    return seconds
