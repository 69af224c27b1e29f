"""Until when a consumer may deliver: afterwards, the leader may have given its segments to another consumer.

The lease counts from when a request that was answered was first sent, by this program's own clock. So it ends no later
than at the leader, as long as both clocks run at the same speed. An answer that arrives after the end does not revive
it: only a registration, whose reply lists what is still held, begins the next lease.
"""

import asyncio
import math
from collections.abc import Callable


class DeliveryLease:
    def __init__(self) -> None:
        self.on_end: Callable[[], None] = lambda: None
        """Called once when it ends; a program that was frozen learns of the end by `is_valid` before."""
        self._seconds = 0.0
        self._ends_at = math.inf
        """Loop time; infinite before the first registration, when nothing is held."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_valid(self) -> bool:
        return self._ends_at == math.inf or asyncio.get_running_loop().time() < self._ends_at

    def begin(self, asked_at: float, seconds: float) -> None:
        """Begin with the reply to a registration of loop time ``asked_at``."""
        self._seconds = seconds
        self._set_end(asked_at + seconds)

    def extend(self, asked_at: float) -> None:
        """Follow the reply to a heartbeat of loop time ``asked_at``."""
        if self.is_valid:
            self._set_end(max(self._ends_at, asked_at + self._seconds))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_end(self, ends_at: float) -> None:
        self.close()
        self._ends_at = ends_at
        self._timer = asyncio.get_running_loop().call_at(ends_at, self.on_end)
