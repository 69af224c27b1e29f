"""An event loop whose clock jumps to the next timer instead of waiting for it.

There is no input from outside: a loop with nothing scheduled can never go on, and says so instead of hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class DeadlockError(AssertionError):
    """Everybody waits, and nothing is scheduled that could wake anybody."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in virtual time, from 0 on."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self._selector.select = self._jump  # type: ignore[attr-defined]

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual_now

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``function`` at once: a thread would come back after so much of real time, which differs."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it raises it
            done.set_exception(error)
        return done

    def _jump(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("nothing is scheduled, and nothing is ready")
        self._virtual_now += max(timeout, 0.0)
        return []
