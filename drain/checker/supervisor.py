"""Supervise the Spark process: start it, ping it, restart it with back-off, stop it.

The process and its JVM share a process group, and the kernel kills them when the daemon ends. A
ping without a reply in time counts as a crash. The state for readiness is ``starting``, ``ready``
or ``degraded``. Imports no Spark.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from drain.checker.connection import Connection
from drain.protocol import Address, DrainCheckError, Ping, Pong
from headgate.background import BackgroundService
from headgate.backoff import Backoff, BackoffSchedule
from headgate.child_process import ChildProcess
from metrics import events

LOG_NAME: Final = "drain.log"
RESTART_BACKOFF: Final = Backoff(first_seconds=1.0, longest_seconds=60.0)


@dataclass(frozen=True, slots=True)
class SupervisorTimes:
    """Time-outs and intervals, in seconds."""

    start: float = 90.0
    """From start to the first reply: typically 8 s, far more on a cold and busy machine."""
    ping_interval: float = 5.0
    ping: float = 20.0
    """Longest wait for a ping: long enough for a full garbage collection, short enough to notice a
    hung JVM."""
    retry: float = 0.25
    """Between two connection attempts while the process starts."""
    stop: float = 15.0
    """From SIGTERM to SIGKILL."""
    restart: Backoff = RESTART_BACKOFF
    """Before a restart."""
    stable: float = 60.0
    """After this long without a failure, the pause is reset to the shortest one."""


def service_command(
    *,
    ledger_url: str,
    socket: str,
    folder: Path,
    master: str = "local[*]",
    driver_memory: str = "1g",
    run_timeout_seconds: float = 60.0,
    compaction_arguments: Sequence[str] = (),
    reader: str = "auto",
    spark_conf: Mapping[str, str] | None = None,
    external: str | None = None,
) -> list[str]:
    """Return the command that starts the Spark process. It is visible to all users: no secrets in ``spark_conf``."""
    return [
        *(sys.executable, "-m", "drain.service.service"),
        *("--ledger", ledger_url),
        *("--listen", socket),
        *("--master", master),
        *("--folder", str(folder)),
        *("--driver-memory", driver_memory),
        *("--run-timeout-seconds", f"{run_timeout_seconds:g}"),
        *compaction_arguments,
        *("--reader", reader),
        *(word for name, value in (spark_conf or {}).items() for word in ("--conf", f"{name}={value}")),
        *(("--external", external) if external is not None else ()),
    ]


class DrainSupervisor(BackgroundService):
    """One supervised Spark process, which runs while this context manager is entered."""

    task_name = "drain supervisor"

    def __init__(
        self,
        *,
        command: Sequence[str],
        socket: str,
        folder: Path,
        on_state: Callable[[events.DrainState, str], None] | None = None,
        on_restart: Callable[[], None] | None = None,
        times: SupervisorTimes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``on_state`` is called with a state and its reason, ``on_restart`` at every start except the first."""
        self._address = Address.parse(socket)
        self._folder = folder
        self._command = command
        self._on_state = on_state
        self._on_restart = on_restart
        self._times = times or SupervisorTimes()
        self._restart = BackoffSchedule(self._times.restart, (rng or random.Random()).random)  # noqa: S311 - jitter
        self.state = "starting"
        self.reason = "not started yet"
        self.restarts = 0
        self.pid: int | None = None
        """Process id while the process runs."""

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return await super().__aenter__()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._set_state("starting", "the Spark process is starting")
        while True:
            began = loop.time()
            reason = await self._run_process()
            if loop.time() - began > self._times.stable:
                self._restart.reset()
            self._set_state("degraded", f"{reason}; next start in at most {self._restart.bound_seconds:g} s")
            await asyncio.sleep(self._restart.next_seconds())
            self.restarts += 1
            if self._on_restart is not None:
                self._on_restart()

    async def _run_process(self) -> str:
        """Start the process, watch it until it fails, and stop it; return the reason of the failure."""
        try:
            process = await ChildProcess.start(*self._command, log_path=self._folder / LOG_NAME)
        except OSError as error:
            return f"the Spark process cannot be started: {error.strerror or error}"
        self.pid = process.pid
        ended = asyncio.ensure_future(process.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return f"the Spark process ended with code {ended.result()}, see {self._folder / LOG_NAME}"
            return watching.result()
        finally:
            watching.cancel()
            # With its group, because the JVM may outlast the process that started it.
            await process.stop(self._times.stop, whole_group=True)
            await asyncio.gather(ended, watching, return_exceptions=True)
            self.pid = None

    async def _watch(self) -> str:
        try:
            async with asyncio.timeout(self._times.start):
                connection = await self._await_ready()
        except TimeoutError:
            return f"the Spark process did not answer within {self._times.start:g} s after its start"
        self._set_state("ready", f"{self._address} answers")
        try:
            while True:
                await asyncio.sleep(self._times.ping_interval)
                await self._ping(connection)
        except DrainCheckError as error:
            return f"the Spark process failed a ping: {error}"
        finally:
            connection.close()

    async def _await_ready(self) -> Connection:
        while True:
            try:
                connection = await Connection.open(self._address, self._times.ping)
            except DrainCheckError:
                # The process does not listen yet. The caller limits how long this may last.
                await asyncio.sleep(self._times.retry)
                continue
            try:
                await self._ping(connection)
            except DrainCheckError:
                connection.close()
                await asyncio.sleep(self._times.retry)
            except asyncio.CancelledError:
                connection.close()
                raise
            else:
                return connection

    async def _ping(self, connection: Connection) -> None:
        await connection.request(Ping(), Pong, self._times.ping)

    def _set_state(self, state: events.DrainState, reason: str) -> None:
        changed = (state, reason) != (self.state, self.reason)
        self.state, self.reason = state, reason
        if changed and self._on_state is not None:
            self._on_state(state, reason)
