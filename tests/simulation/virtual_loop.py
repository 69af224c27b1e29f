"""An event loop whose clock jumps to the next timer instead of waiting for it.

There is no external input: a loop with nothing scheduled can never continue, so it raises instead
of hanging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class DeadlockError(AssertionError):
    """Every task waits, and no timer is scheduled."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs in virtual time, starting at 0."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 0.0
        self._selector.select = self._jump  # type: ignore[attr-defined]

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual_now

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run ``function`` immediately: a thread would finish after real time, which varies."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - the awaiting task raises it
            done.set_exception(error)
        return done

    def _jump(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError("nothing is scheduled, and nothing is ready")
        self._virtual_now += max(timeout, 0.0)
        return []
