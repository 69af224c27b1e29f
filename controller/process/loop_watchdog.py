"""Ends the process when its event loop has stopped for good, so that another daemon leads.

A thread of its own keeps the session in ZooKeeper. So a daemon whose loop never continues would never give up its
locks, where nothing like systemd's watchdog ends it. Without memory, `Thread.start` may never return
(python/cpython#140746), which stopped Patroni, too (patroni/patroni#3481).

The time without a tick is counted in looks of the watching thread. A process that was suspended, or that a crowded
machine did not run, has lost no looks.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

LIMIT_SECONDS: Final = 60
"""Twice the ``WatchdogSec`` of the unit, which ends the process earlier."""
LOOK_SECONDS: Final = 1.0


class LoopWatchdog:
    """Entering starts the watch, leaving ends it."""

    def __init__(
        self, end: Callable[[int], object] = os._exit, *, limit: int = LIMIT_SECONDS, look_seconds: float = LOOK_SECONDS
    ) -> None:
        """``limit``: looks without a tick after which ``end`` is called with the exit code."""
        self._end = end
        self._limit = limit
        self._look_seconds = look_seconds
        self._ticked = True
        self._watches = True

    def tick(self) -> None:
        """Report that the loop runs."""
        self._ticked = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watches = False

    def _watch(self) -> None:
        silent = 0
        while silent < self._limit:
            time.sleep(self._look_seconds)  # A lock would need memory.
            if not self._watches:
                return
            silent = 0 if self._ticked else silent + 1
            self._ticked = False
        try:
            sys.stderr.write(
                f"headgate: the event loop has done nothing for {silent * self._look_seconds:g} s: this process ends, "
                "so that another daemon leads. What each thread does:\n"
            )
            faulthandler.dump_traceback(sys.__stderr__ or 2)
        finally:
            self._end(1)
