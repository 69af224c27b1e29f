"""Supervise the Spark process: start it, ping it, restart it, stop it.

headgate.backoff decides how long a start may take and when the next one follows. Here a sign of life
is a longer log, or processor time: on a busy machine a start is slow and silent. The process and its JVM share a
process group, and the kernel kills them when the daemon ends. A ping without a reply in time counts as a crash, unless
the process waits for a processor. Only the process that was started here is believed, by its process id. The state for
readiness is ``starting``, ``ready`` or ``degraded``. Imports no Spark.
"""

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drain.checker.connection import Connection
from drain.protocol import DrainCheckError, Ping, Pong
from drain.setting_values import socket_path
from headgate.backoff import MAX_EXTENSION, Failures, RestartPolicy
from headgate.process.background import BackgroundService
from headgate.process.child_process import ChildProcess, python_module
from headgate.process.resources import processor_seconds, wants_processor
from metrics.label_values import DrainState

LOG_NAME: Final = "drain.log"
ERROR_PREFIX: Final = "headgate: "
"""Begins the line with which the process says why it ends."""
MAX_ERROR_BYTES: Final = 2048
FULL_BYTES: Final = 64 * 1024
"""A disk with less free space is called full."""


@dataclass(frozen=True, slots=True)
class SupervisorTimes:
    """Time-outs and intervals, in seconds."""

    ping_interval: float = 5.0
    ping: float = 20.0
    """Longest wait for a ping: long enough for a full garbage collection, short enough to notice a
    hung JVM. It begins again whenever the process waits for a processor."""
    sample: float = 1.0
    """Between two looks at whether a process that does not answer waits for a processor."""
    sign: float = 1.0
    """Processor time that is a sign of life. A JVM that hangs takes minutes for it."""
    retry: float = 0.25
    """Between two connection attempts while the process starts."""
    stop: float = 15.0
    """From SIGTERM to SIGKILL."""
    stop_hung: float = 1.0
    """The same for a process that did not answer. It does not react to SIGTERM either, and children of sealed
    segments wait. A kill damages nothing: results are published whole or not at all. An exit code has as long."""


def service_command(ledger_url: str, socket: str, folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command that starts the Spark process. It is visible to all users: no secrets in ``options``."""
    where = ("--ledger", ledger_url, "--listen", socket, "--folder", str(folder))
    return [*python_module("drain.service.program"), *where, *options]


@dataclass(frozen=True, slots=True)
class _RunEnd:
    reason: str
    ready_seconds: float | None = None
    """How long it was ready; None: it never was."""
    too_slow: bool = False
    """Its start exceeded the limit."""


class DrainSupervisor(BackgroundService):
    """One supervised Spark process, which runs while this context manager is entered."""

    task_name = "drain supervisor"

    def __init__(
        self,
        *,
        command: Sequence[str],
        socket: str,
        folder: Path,
        on_state: Callable[[DrainState, str], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        policy: RestartPolicy | None = None,
        times: SupervisorTimes | None = None,
        rng: random.Random | None = None,
        waits_for_processor: Callable[[int], bool] = wants_processor,
    ) -> None:
        """``on_state`` is called with a state and its reason, ``on_restart`` at every start except the first."""
        self._waits_for_processor = waits_for_processor
        self._path = socket_path(socket)
        self._folder = folder
        self._log_path = folder / LOG_NAME
        self._command = command
        self._on_state = on_state
        self._on_restart = on_restart
        self._policy = policy or RestartPolicy()
        self._times = times or SupervisorTimes()
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._failures = Failures()
        self.state = "starting"
        self.reason = "not started yet"
        self.pid: int | None = None
        """Process id while the process runs."""

    async def _run(self) -> None:
        self._set_state("starting", f"the Spark process is starting, see {self._log_path}")
        while True:
            end = await self._run_process()
            self._failures = self._policy.count_failure(
                self._failures, ready_seconds=end.ready_seconds, too_slow=end.too_slow
            )
            pause_seconds = self._policy.pause_seconds(self._failures, self._rng.random())
            self._set_state("degraded", f"{end.reason}; next start in {pause_seconds:.2g} s")
            await asyncio.sleep(pause_seconds)
            if self._on_restart is not None:
                self._on_restart()
            self._set_state("starting", f"the Spark process is starting again, because {end.reason}")

    async def _run_process(self) -> _RunEnd:
        """Start the process, watch it until it fails, and stop it; return why it ended."""
        before = self._log_bytes()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            process = await ChildProcess.start(*self._command, log_path=self._log_path)
        except OSError as error:
            return _RunEnd(f"the Spark process cannot be started: {error.strerror or error}")
        self.pid = process.pid
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[float] = loop.create_future()
        ended = asyncio.ensure_future(process.wait())
        watching = asyncio.ensure_future(self._watch(ready))
        stop_seconds = self._times.stop
        try:
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            ready_seconds = loop.time() - ready.result() if ready.done() else None
            if ended.done():
                return _RunEnd(f"the Spark process ended with code {ended.result()}{self._why(before)}", ready_seconds)
            stop_seconds = self._times.stop_hung
            return _RunEnd(watching.result(), ready_seconds, too_slow=ready_seconds is None)
        finally:
            watching.cancel()
            # With its group, because the JVM may outlast the process that started it.
            await process.stop(stop_seconds, whole_group=True)
            await asyncio.gather(ended, watching, return_exceptions=True)
            with suppress(OSError):  # The next process replaces it, or says why it cannot.
                self._path.unlink()
            self.pid = None

    def _why(self, before: int) -> str:
        """Return what follows the exit code: an error that ends the log, which had ``before`` bytes at the start."""
        with suppress(OSError):
            if shutil.disk_usage(self._folder).free < FULL_BYTES:  # The log lacks the reason then.
                return f", see {self._log_path}; its disk is full: free space for {self._folder}"
            with self._log_path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(end - MAX_ERROR_BYTES, before if before <= end else 0))
                last = log.read().decode(errors="replace").rstrip().rpartition("\n")[2]
            if last.startswith(ERROR_PREFIX):
                return f": {last.removeprefix(ERROR_PREFIX)} (log: {self._log_path})"
        return f", see {self._log_path}"

    async def _watch(self, ready: asyncio.Future[float]) -> str:
        """Return the reason once the process fails; set ``ready`` to the loop time of its first reply."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        try:
            async with asyncio.timeout(None) as limit:
                connection = await self._await_ready(started_at, limit)
        except TimeoutError:
            timeout = self._policy.start_timeout(self._failures)
            limits = f"{timeout:g} s without a line in {self._log_path} and a second of processor time"
            waited = f"{loop.time() - started_at:.0f} s (limits: {limits}, {timeout * MAX_EXTENSION:g} s in total)"
            return f"the Spark process was not ready after {waited}; see drain.start_timeout_seconds"
        ready.set_result(loop.time())
        self._set_state("ready", f"{self._path} answers")
        try:
            while True:
                await asyncio.sleep(self._times.ping_interval)
                await self._patient_ping(connection)
        except DrainCheckError as error:
            if error.failure != "timed_out":  # If it has ended, its code says more in a moment.
                await asyncio.sleep(self._times.stop_hung)
            return f"the Spark process failed a ping: {error}"
        finally:
            connection.close()

    async def _await_ready(self, started_at: float, limit: asyncio.Timeout) -> Connection:
        """Connect once the process answers; move ``limit`` with each sign of life."""
        loop = asyncio.get_running_loop()
        signs, last_sign_at = self._signs(), started_at
        while True:
            if (seen := self._signs()) != signs:
                signs, last_sign_at = seen, loop.time()
            limit.reschedule(self._policy.start_deadline(self._failures, started_at, last_sign_at))
            try:
                connection = await Connection.open(self._path, self._times.ping, self.pid)
                try:
                    await connection.request(Ping(), Pong, self._times.ping)
                except BaseException:
                    connection.close()
                    raise
            except DrainCheckError as error:
                # The process does not listen or answer yet, or another one does.
                if error.failure == "denied":
                    self._set_state("degraded", str(error))
                await asyncio.sleep(self._times.retry)
            else:
                return connection

    def _signs(self) -> tuple[int, int]:
        return self._log_bytes(), int(processor_seconds(self.pid or 0) / self._times.sign)

    def _log_bytes(self) -> int:
        return self._log_path.stat().st_size if self._log_path.exists() else 0

    async def _patient_ping(self, connection: Connection) -> None:
        """Ping; the limit counts the time in which the process does not wait for a processor, or its processor time."""
        assert self.pid is not None, "it has answered"
        loop, limit = asyncio.get_running_loop(), self._times.ping
        sent_at = waited_at = loop.time()
        used_before = processor_seconds(self.pid)
        pong = asyncio.ensure_future(connection.request(Ping(), Pong, MAX_EXTENSION * limit))
        try:
            while not (await asyncio.wait({pong}, timeout=min(self._times.sample, limit)))[0]:
                if self._waits_for_processor(self.pid):
                    waited_at = loop.time()
                used = processor_seconds(self.pid) - used_before
                if loop.time() - waited_at >= limit or (used >= limit and loop.time() - sent_at >= limit):
                    raise DrainCheckError(f"no answer from {self._path} within {limit:g} s", "timed_out")
            pong.result()
        finally:
            pong.cancel()

    def _set_state(self, state: DrainState, reason: str) -> None:
        changed = (state, reason) != (self.state, self.reason)
        self.state, self.reason = state, reason
        if changed and self._on_state is not None:
            self._on_state(state, reason)
