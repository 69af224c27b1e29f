"""Die with the process that started this one, however that ends.

A daemon that is killed cannot stop its children. Linux can: it sends a signal to a child whose parent is gone. The JVM
below us needs no such thing, it ends by itself when the pipe to us breaks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when ``parent_pid`` ends; exits at once if that has happened already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before we asked, and then nothing would ever be sent.
    if os.getppid() != parent_pid:
        sys.exit(f"error: the parent process {parent_pid} is gone")
