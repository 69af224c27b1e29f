"""The processor and the memory of processes: who goes first, how much is used, and what is kept."""

import ctypes
import os
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

_TICKS = os.sysconf("SC_CLK_TCK")
_TRIM_THRESHOLD: Final = -1, 128 * 1024 * 1024
"""Free memory at the end of the heap that is kept."""
_MMAP_THRESHOLD: Final = -3, 32 * 1024 * 1024
"""Larger buffers are returned at once. More is not possible."""


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


def give_way(niceness: int) -> None:
    """Lower the share of this process, and of its session if it leads one: a third of the processor for 5.

    Linux may divide a processor among sessions first (sched(7), "The autogroup feature"; Debian does). Niceness then
    counts only within a session. So a process that leads a session of its own lowers the share of that session, too.

    Where something is forbidden, nothing changes: the units of systemd have weights that count instead.
    """
    with suppress(OSError):
        os.nice(niceness)
    share_session(niceness)


def share_session(niceness: int) -> None:
    """Set the share of the session that this process leads, if it does. It may rise again, up to that of others."""
    if os.getsid(0) == os.getpid():
        # Not all kernels have sessions with shares, and a container may not change its own. Ten changes a second are
        # possible on the whole machine.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))


def all_but_one(cores: AbstractSet[int]) -> AbstractSet[int]:
    """Return ``cores`` without the first one; a single one. Pure."""
    return set(sorted(cores)[1:]) or cores


def run_on(cores: AbstractSet[int], pid: int) -> None:
    """Let all threads of a process and of its descendants run on ``cores`` only."""
    for each in process_tree(pid):
        with suppress(OSError):  # It has just ended.
            for thread in Path(f"/proc/{each}/task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)


def keep_freed_memory() -> None:
    """Keep the memory that this process has freed, for its next chunk. Does nothing where the C library is another one.

    Chunks and compacted objects are buffers of megabytes that live for milliseconds. glibc returns each to the kernel,
    which clears every page of the next one: reading chunks of 7 MB took 1.7 times as long. See mallopt(3).
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(*_TRIM_THRESHOLD)
        mallopt(*_MMAP_THRESHOLD)
