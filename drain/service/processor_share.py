"""Decides how much of the processor the Spark process takes: little while no drain check waits.

1. While no drain check waits, it leaves one core free, and the daemon first on the others. The daemon needs a core for
   a millisecond, hundreds of times a second; where Spark's tasks had all of them, it waited for the kernel's next turn.
2. While it starts or stops, or a drain check waits, it takes all cores, and a third of the daemon's share of busy ones.
3. A count of its own accord does so, too, after `PATIENCE_SECONDS`: on a busy machine it would never end.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from headgate.process.resources import all_but_one, run_on, share_session

NICENESS: Final = 5
"""Clients wait for the daemon, which has three times the share of a busy processor. A child waits for a drain check,
which still gets a share."""
NICENESS_AT_REST: Final = 19
"""The daemon has 68 times the share."""
PATIENCE_SECONDS: Final = 3.0
LINGER_SECONDS: Final = 1.0
"""The next drain check may follow at once, and each change touches a hundred threads."""

TakeShare = Callable[[bool], None]
"""Takes all that it may have, or little (False)."""


def share_taker() -> TakeShare | None:
    """Return what changes this process, and the JVM and workers below it, within the cores that it has now."""
    if not hasattr(os, "sched_setaffinity"):
        return None  # as on macOS
    cores = os.sched_getaffinity(0)

    def take(everything: bool) -> None:
        run_on(cores if everything else all_but_one(cores), os.getpid())
        share_session(NICENESS if everything else NICENESS_AT_REST)

    return take


class ProcessorShare:
    """The share of one process, which has everything until the end of its first run."""

    def __init__(self, take: TakeShare | None) -> None:
        """``take`` None: it keeps everything."""
        self._take = take
        self._everything = True
        self._waiting = 0

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Take everything in this block, which a drain check waits for."""
        self.hurry()
        try:
            yield
        finally:
            self._waiting -= 1
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._apply)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Take everything in this block once it takes long, or a drain check waits."""
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            timer = loop.call_later(PATIENCE_SECONDS, stack.enter_context, self.hurried())
            try:
                yield
            finally:
                timer.cancel()
                loop.call_later(LINGER_SECONDS, self._apply)

    def hurry(self) -> None:
        """Take everything from now on, as for the end of the process: who stops it waits."""
        self._waiting += 1
        self._apply()

    def _apply(self) -> None:
        everything = self._waiting > 0
        if self._take is not None and everything != self._everything:
            self._take(everything)
            self._everything = everything
