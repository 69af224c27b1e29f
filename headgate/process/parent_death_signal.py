"""Kill a process when its parent ends, even if the parent is killed with SIGKILL.

A killed daemon cannot stop its children, and an orphaned server keeps its port and its data folder, so the next start
fails. Linux can signal a child whose parent has ended (``prctl(PR_SET_PDEATHSIG)``). On other systems nothing is
requested, and the children of a killed parent keep running.

A Python process calls `die_with_parent` on its own. For any other command, `with_parent_death_signal` returns a command
line that runs this file as a script (``python -I -S parent_death_signal.py <parent pid> <command> …``). The script
requests the signal and becomes the command; the request survives that, unless the command changes its user.
``preexec_fn`` is no alternative: it runs Python between fork and exec in a process with threads, which can hang.

The kernel takes the *thread* that started the command for its parent. Start servers from a thread
that lasts, such as the main thread, and not from a pool.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when ``parent_pid`` ends; exits at once if that has already happened."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # If the parent ended before the call, the kernel never sends the signal.
    if os.getppid() != parent_pid:
        sys.exit(f"headgate: the parent process {parent_pid} is gone")


def with_parent_death_signal(*command: str) -> list[str]:
    """Return the command line that runs ``command`` and kills it when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent_pid: int, command: list[str]) -> None:
    """Become ``command``; exits if the parent is already gone. Raises OSError if the command cannot be run."""
    die_with_parent(parent_pid)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
