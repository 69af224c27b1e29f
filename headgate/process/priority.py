"""Let other processes go first on a busy processor.

Linux may divide a processor among sessions first (sched(7), "The autogroup feature"; Debian does). Niceness then counts
only within a session. So a process that leads a session of its own lowers the share of that session, too.
"""

import os
from contextlib import suppress
from pathlib import Path


def give_way(niceness: int) -> None:
    """Lower the share of this process, and of its session if it leads one: a third of the processor for 5.

    Nothing changes where that is forbidden: the units of systemd forbid it, and have weights that count instead.
    """
    with suppress(OSError):
        os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # Not all kernels have sessions with shares, and a container may not change its own.
            Path("/proc/self/autogroup").write_text(str(niceness))
