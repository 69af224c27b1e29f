"""Tells systemd that the daemon is ready, alive or stopping, and ends a process whose loop has stopped.

Without ``NOTIFY_SOCKET`` every call does nothing. A message that cannot be sent is dropped.

1. Until READY, each keep-alive extends the start time-out: a daemon that waits for ZooKeeper is not
   killed while its loop runs.
2. After STOPPING no keep-alive is sent, so that the unit's stop time-out applies.
"""

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

import structlog

START_EXTENSION_SECONDS = 300.0
"""How much longer the start may take after each keep-alive, as the unit's TimeoutStartSec before the first one. On an
overloaded machine a healthy loop was silent for 86 s between two ticks of its start."""

log = structlog.get_logger(__name__)


class SystemdNotifier:
    """Sends datagrams to systemd's notification socket, without blocking."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """``environ`` contains NOTIFY_SOCKET if systemd started this process with ``Type=notify``."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._starting = True
        self._stopping = False
        self._warned = False
        self._status = ""

    def ready(self) -> None:
        """Report that the start is complete."""
        self._starting = False
        self._send("READY=1")

    def status(self, text: str) -> None:
        if text != self._status and not self._stopping:
            self._status = text
            self._send(f"STATUS={text[:500]}")

    def watchdog(self) -> None:
        """Report that the loop runs. Call it more often than the unit's ``WatchdogSec``."""
        if self._stopping:
            return
        if self._starting:
            self._send(f"EXTEND_TIMEOUT_USEC={round(START_EXTENSION_SECONDS * 1_000_000)}")
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._stopping = True
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A line break would start another assignment.
        message = "\n".join(" ".join(line.splitlines()) for line in lines)
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(message.encode(), address)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("systemd.unreachable", socket=self._address, error=str(error))


LIMIT_SECONDS: Final = 60
"""Twice the ``WatchdogSec`` of the unit, which ends the process earlier."""
LOOK_SECONDS: Final = 1.0


class LoopWatchdog:
    """Ends the process when its event loop has stopped for good, so that another daemon leads.

    A thread of its own keeps the session in ZooKeeper. So a daemon whose loop never continues would never give up its
    locks, where nothing like systemd's watchdog ends it. Without memory, `Thread.start` may never return
    (python/cpython#140746), which stopped Patroni, too (patroni/patroni#3481).

    The time without a tick is counted in looks of the watching thread. A process that was suspended, or that a
    crowded machine did not run, has lost no looks.
    """

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
        # systemd notices it earlier, and sends SIGABRT: that is to say what each thread does, too.
        faulthandler.enable(sys.__stderr__ or 2)
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
