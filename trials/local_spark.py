"""The Spark process of a cluster of real processes, which every daemon asks."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from drain.checker.supervisor import LOG_NAME, DrainSupervisor, service_command
from headgate.errors import HeadgateError

SPARK_START_SECONDS = 600.0
"""Longest wait for Spark: about 8 s on an idle machine, 20 s of one core on a busy one. Its supervisor
restarts it earlier than that."""


class LocalSpark:
    def __init__(self, folder: Path) -> None:
        """``folder``: that of the cluster."""
        self.socket = str(folder / "drain.sock")
        self._folder = folder / "spark"
        self._running = AsyncExitStack()
        self._supervisor: DrainSupervisor | None = None

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._supervisor is None else self._supervisor.pid

    async def start(self, ledger_url: str) -> None:
        """Start it, or start it again; return when it is ready to count ``ledger_url``. Raises HeadgateError."""
        await self.stop()
        ready = asyncio.Event()
        supervisor = self._supervisor = DrainSupervisor(
            command=service_command(ledger_url, self.socket, self._folder),
            socket=self.socket,
            folder=self._folder,
            on_state=lambda state, _: ready.set() if state == "ready" else None,
        )
        await self._running.enter_async_context(supervisor)
        try:
            async with asyncio.timeout(SPARK_START_SECONDS):
                await ready.wait()
        except TimeoutError:
            raise HeadgateError(
                f"Spark was not ready after {SPARK_START_SECONDS:g} s: {supervisor.reason}; "
                f"see its log {self._folder / LOG_NAME}"
            ) from None

    async def stop(self) -> None:
        await self._running.aclose()
