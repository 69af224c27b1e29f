"""Run a command that dies with whoever started it, even if that one is killed with SIGKILL.

Run as a script: ``python -I -S tether.py <parent pid> <command> …``. It asks the kernel for a SIGKILL when the parent
ends, then becomes the command; the wish outlives that, unless the command changes its user.

Why a script and not ``preexec_fn``: that runs Python between fork and exec in a process that has threads, which can
hang. And why the kernel: an embedded server that outlives us keeps its port and its data folder, and the next start
fails.

To the kernel the parent is the *thread* that started the command: start servers from one that lasts, as the main
thread does, and not from a pool's.

Linux only. Elsewhere the command runs without a tether, and a killed parent leaves it behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def with_parent_death_signal(*command: str) -> list[str]:
    """Return the command line that runs ``command`` tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Become ``command``; ends here only if the parent is gone already. Raises OSError if it cannot be run."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() != parent:
            # It died before we asked, so nobody would ever send the signal.
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
