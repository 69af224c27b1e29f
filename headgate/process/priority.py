"""Let other processes go first on a busy processor.

Linux may divide a processor among sessions first (sched(7), "The autogroup feature"; Debian does). Niceness then counts
only within a session. So a process that leads a session of its own lowers the share of that session, too.

Where something is forbidden, nothing changes: the units of systemd have weights that count instead.
"""

import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from headgate.process.processor_time import process_tree


def give_way(niceness: int) -> None:
    """Lower the share of this process, and of its session if it leads one: a third of the processor for 5."""
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
