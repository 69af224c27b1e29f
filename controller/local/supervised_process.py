"""Keep one server running as a child process: start it, wait until it is ready, restart it when it dies.

A server that dies is started again with growing pauses (headgate.backoff), and that is logged. An error
about a server that did not start quotes the end of its log. The caller supplies the command and the readiness check.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import structlog

from headgate.backoff import Backoff, Failures, RestartPolicy
from headgate.errors import HeadgateError
from headgate.process.background import cancel_and_wait
from headgate.process.child_process import ChildProcess

PROBE_INTERVAL_SECONDS: Final = 0.05
"""Pause between two readiness checks."""
PROBE_TIMEOUT_SECONDS: Final = 1.0
RESTARTS: Final = RestartPolicy(pauses=Backoff(first_seconds=0.2, longest_seconds=5.0, jitter=0.0), stable_seconds=10.0)
"""Shorter pauses than those of Spark: these servers start fast, and nothing works without them."""
TAIL_LINES: Final = 8
TAIL_BYTES: Final = 16 * 1024

log = structlog.get_logger(__name__)


class ProcessStartError(HeadgateError):
    """A server that headgate runs for itself cannot start. The text names the server, the cause and the log's end."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    name: str
    command: Sequence[str]
    log_path: Path
    ready: Callable[[], Awaitable[bool]]
    """Checks whether the server serves; OSError and EOFError mean "not yet"."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment."""
    start_seconds: float = 60.0
    """Longest wait for a server that hangs while starting, with reserve for a slow machine. An exit is seen at once."""
    stop_seconds: float = 5.0
    """From SIGTERM to SIGKILL."""


class SupervisedProcess:
    """A server that is kept running between entering and leaving."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._child: ChildProcess | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._log = log.bind(server=spec.name)

    @property
    def pid(self) -> int | None:
        return None if self._child is None or self._child.returncode is not None else self._child.pid

    async def __aenter__(self) -> Self:
        """Start the server; return when it is ready.

        Raises ProcessStartError: the server cannot run, ended, or was not ready in time.
        """
        await self._start()
        self._watch_task = asyncio.create_task(self._restart_on_exit(), name=f"watch-{self.spec.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch_task is not None:
            await cancel_and_wait(self._watch_task)
            self._watch_task = None
        await self._stop()

    async def restart(self) -> None:
        """Stop the server and start it again; return when it is ready. Raises ProcessStartError."""
        await self.__aexit__()
        await self.__aenter__()

    async def _start(self) -> None:
        spec = self.spec
        try:
            child = self._child = await ChildProcess.start(*spec.command, log_path=spec.log_path, environ=spec.environ)
        except OSError as error:
            raise ProcessStartError(f"cannot start {spec.name}: {error}") from error
        try:
            await self._wait_until_ready(child)
        except BaseException:
            # Also when cancelled: the child would keep the port.
            await self._stop()
            raise

    async def _wait_until_ready(self, child: ChildProcess) -> None:
        spec = self.spec
        loop = asyncio.get_running_loop()
        deadline = loop.time() + spec.start_seconds
        while child.returncode is None:
            if loop.time() > deadline:
                raise ProcessStartError(f"{spec.name} was not ready after {spec.start_seconds:g} s; {self._log_tail()}")
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                    ready = await spec.ready()
                # Another server may hold the port and answer. Then the child ends, and is not ready.
                if ready and child.returncode is None:
                    return
            await asyncio.sleep(PROBE_INTERVAL_SECONDS)
        raise ProcessStartError(f"{spec.name} ended with {outcome(child.returncode)}; {self._log_tail()}")

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None and not await child.stop(self.spec.stop_seconds):
            self._log.warning("server.killed", reason=f"still running {self.spec.stop_seconds:g} s after SIGTERM")

    async def _restart_on_exit(self) -> None:
        loop = asyncio.get_running_loop()
        failures, ready_at = Failures(), loop.time()
        while True:
            ready_seconds = None
            if self._child is not None:
                code = await self._child.wait()
                self._child = None
                ready_seconds = loop.time() - ready_at
                self._log.warning("server.died", outcome=outcome(code), log=str(self.spec.log_path))
            failures = RESTARTS.count_failure(failures, ready_seconds=ready_seconds)
            await asyncio.sleep(RESTARTS.pause_seconds(failures, draw=1.0))
            try:
                await self._start()
            except ProcessStartError as error:
                self._log.error("server.not_restarted", reason=str(error))
            else:
                ready_at = loop.time()
                self._log.info("server.restarted", pid=self.pid, failures=failures.in_a_row)

    def _log_tail(self) -> str:
        """Return the end of the server's log for an error message."""
        path = self.spec.log_path
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            return f"its log {path} cannot be read: {error.strerror}"
        return f"the end of {path}:\n  " + "\n  ".join(lines) if lines else f"it wrote nothing to {path}"


def outcome(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
