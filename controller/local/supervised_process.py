"""Start a server as a child process, watch over it, and end it.

A child has its own session, so that a terminal's Ctrl-C reaches only us and we can end things in order. It dies with
us (headgate.parent_death_signal). Its output goes to a file, whose end is quoted when it does not start. If it
dies without being asked to, it is started again, with growing pauses, and the log says so.

What is ready, and what the command is, the caller says.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import structlog

from headgate.backoff import Backoff
from headgate.errors import HeadgateError
from headgate.parent_death_signal import with_parent_death_signal

PROBE_INTERVAL_SECONDS: Final = 0.05
"""Between two questions whether a child is ready."""
PROBE_TIMEOUT_SECONDS: Final = 1.0
RESTART_BACKOFF: Final = Backoff(first_seconds=0.2, longest_seconds=5.0, jitter=0)
"""Before a child that died is started again, and between starts that fail."""
TAIL_LINES: Final = 8
TAIL_BYTES: Final = 16 * 1024

log = structlog.get_logger(__name__)


class ProcessStartError(HeadgateError):
    """A server that headgate runs for itself cannot start; the text says which, why, and shows the end of its log."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How one child is run."""

    name: str
    command: Sequence[str]
    log_path: Path
    ready: Callable[[], Awaitable[bool]]
    """Asks the server whether it serves; OSError and EOFError mean "not yet"."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to our own."""
    start_seconds: float = 60.0
    """A child that ended is told at once; this is for one that hangs, and a slow machine takes its time."""
    stop_seconds: float = 5.0
    """From SIGTERM to SIGKILL."""


class SupervisedProcess:
    """A child process that is kept running for as long as it is open."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.start_count = 0
        """How often it has been started."""
        self._process: asyncio.subprocess.Process | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._log = log.bind(server=spec.name)

    @property
    def pid(self) -> int | None:
        """The process id; None while it is down."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def __aenter__(self) -> Self:
        """Start it; returns when it is ready.

        Raises:
            ProcessStartError: it cannot be run, ended, or was not ready in time.

        """
        await self._start()
        self._watch()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        await self._stop_watching()
        await self._stop()

    async def restart(self) -> None:
        """Stop it and start it again; returns when it is ready. Raises ProcessStartError."""
        await self._stop_watching()
        await self._stop()
        await self._start()
        self._watch()

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        spec = self.spec
        command = with_parent_death_signal(*spec.command)
        try:
            with spec.log_path.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **spec.environ},
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessStartError(f"cannot start {spec.name}: {error}") from error
        self.start_count += 1
        try:
            await self._wait_until_ready(self._process)
        except BaseException:
            # Also when cancelled: a child that nobody knows of would keep the port.
            await self._stop()
            raise

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        spec = self.spec
        loop = asyncio.get_running_loop()
        deadline = loop.time() + spec.start_seconds
        while process.returncode is None:
            if loop.time() > deadline:
                raise ProcessStartError(f"{spec.name} was not ready after {spec.start_seconds:g} s; {self._log_tail()}")
            with suppress(OSError, EOFError, TimeoutError):
                # Its own port may be taken by another server that answers: then ours ends, which is looked at next.
                async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                    ready = await spec.ready()
                if ready and process.returncode is None:
                    return
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        raise ProcessStartError(f"{spec.name} ended with {_outcome(process.returncode)}; {self._log_tail()}")

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self._log.warning("server.killed", reason=f"still there {self.spec.stop_seconds:g} s after SIGTERM")
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _watch(self) -> None:
        self._watch_task = asyncio.create_task(self._restart_on_exit(), name=f"watch-{self.spec.name}")

    async def _stop_watching(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait({self._watch_task})
            self._watch_task = None

    async def _restart_on_exit(self) -> None:
        failures = 0
        while True:
            if self._process is not None:
                code = await self._process.wait()
                self._process = None
                self._log.warning("server.died", outcome=_outcome(code), log=str(self.spec.log_path))
            await asyncio.sleep(RESTART_BACKOFF.bound_seconds(failures))
            try:
                await self._start()
            except ProcessStartError as error:
                self._log.error("server.not_restarted", reason=str(error))
                failures += 1
            else:
                self._log.info("server.restarted", pid=self.pid)
                failures = 0

    def _log_tail(self) -> str:
        """Return the end of the child's log as part of an error's text."""
        path = self.spec.log_path
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            return f"its log {path} cannot be read: {error.strerror}"
        return f"the end of {path}:\n  " + "\n  ".join(lines) if lines else f"it wrote nothing to {path}"


def _outcome(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
