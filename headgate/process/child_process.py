"""Start, signal and stop one child process.

A child runs in a session of its own, so that a Ctrl-C at the terminal reaches only this process, which then stops its
children in order. The kernel kills a child whose parent is killed (headgate.process.parent_death_signal). Output is
appended to files. The supervisors decide when a child is healthy and when it is started again.
"""

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Self

from headgate.log.event_log import get_logger
from headgate.log.lossy_output import lose_lines
from headgate.process.parent_death_signal import with_parent_death_signal

MAX_LOG_BYTES: Final = 16 * 1024 * 1024
"""A larger log is renamed to ``NAME.1`` before a process starts to append to it."""


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module`` with this interpreter.

    A package in the working folder, with the name of one of headgate's, is not imported in its place (``-P``).
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class ChildProcess:
    def __init__(self, process: asyncio.subprocess.Process, log_path: Path, output_path: Path) -> None:
        self._process = process
        self.log_path = log_path
        self.output_path = output_path
        """File with the child's standard output; the log unless the caller named another file."""

    @classmethod
    async def start(
        cls,
        *command: str,
        log_path: Path,
        output_path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = asyncio.subprocess.DEVNULL,
    ) -> Self:
        """Start ``command``; ``environ`` is added to this process's environment. Raises OSError if it cannot run."""
        if shutil.which(command[0]) is None:
            # Otherwise only the exit code of the script that ties the child to this process would show it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        output_path = output_path or log_path
        with _open_log(log_path) as log, log if output_path == log_path else output_path.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *with_parent_death_signal(*command),
                stdin=stdin,
                stdout=output,
                stderr=log,
                env={**os.environ, **(environ or {})},
                cwd=cwd,
                start_new_session=True,
            )
        return cls(process, log_path, output_path)

    @property
    def pid(self) -> int:
        """The process id, also after the child has ended."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the child runs."""
        return self._process.returncode

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        return self._process.stdin

    async def wait(self) -> int:
        return await self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def freeze(self) -> None:
        """Suspend the child with SIGSTOP. It then ignores SIGTERM until `thaw`."""
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send_signal(signal.SIGCONT)

    async def stop(self, timeout_seconds: float, *, whole_group: bool = False) -> bool:
        """Send SIGTERM; after ``timeout_seconds``, kill the child. Return whether it ended in time.

        Processes that the child started in its own session are killed once the child has ended. ``whole_group`` sends
        SIGTERM to them as well, and kills them even if the child had ended before this call.
        """
        if self.returncode is not None:
            if whole_group:
                self._signal_group(signal.SIGKILL)
            return True
        if whole_group:
            self._signal_group(signal.SIGTERM)
        else:
            self.send_signal(signal.SIGTERM)
        in_time = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._process.wait()
        except TimeoutError:
            in_time = False
        finally:
            self._signal_group(signal.SIGKILL)
        await self._process.wait()
        return in_time

    async def kill(self) -> int:
        """Kill the child and what it started with SIGKILL, unless it has ended; return the exit code."""
        if self.returncode is None:
            self._signal_group(signal.SIGKILL)
        return await self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _open_log(path: Path) -> BinaryIO:
    """Open a log to append to it, or drop what is written: the child is more important than its log."""
    rotate_log(path)
    try:
        return path.open("ab")
    except OSError as error:
        lose_lines(1)
        get_logger(__name__).warning("log.not_opened", path=str(path), error=str(error))
        return open(os.devnull, "ab")  # noqa: PTH123 - the caller closes it


def rotate_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Rename ``path`` to ``NAME.1`` if it holds more than ``max_bytes``, and that is possible."""
    with suppress(OSError):
        if path.stat().st_size > max_bytes:
            path.replace(path.with_name(f"{path.name}.1"))
