"""Tells systemd how we are: ready, alive, stopping, and a line of status.

Where ``NOTIFY_SOCKET`` is not set (a terminal, a container, a test) every call does nothing. A message that cannot be
sent is dropped: nobody is worse off than without it, and a lost keep-alive is followed by the next.

The rules:

1. Until READY was said, a keep-alive extends the start: a daemon that waits for ZooKeeper is not killed while its loop
   turns, and is killed when the loop stands.
2. After STOPPING nothing extends anything: the stop has the unit's own limit.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import structlog

START_EXTENSION_SECONDS = 30.0
"""How long the start may go on after each keep-alive; the same as the unit's watchdog."""

log = structlog.get_logger(__name__)


class SystemdNotifier:
    """One side of the socket that systemd listens on; blocks nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """``environ`` holds NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as systemd sets them."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._watchdog = (environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", ""))
        self._starting = True
        self._stopping = False
        self._warned = False

    def ready(self, status: str) -> None:
        """Say that the start is over."""
        self._starting = False
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say one line for ``systemctl status``."""
        self._send(f"STATUS={status}")

    def watchdog(self) -> None:
        """Say that we are alive; call it at least every `watchdog_interval_seconds`."""
        if self._stopping:
            return
        if self._starting:
            self.extend_timeout(START_EXTENSION_SECONDS)
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for at least ``seconds`` from now for the start or stop under way."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")

    def stopping(self) -> None:
        """Say that the stop has begun."""
        self._stopping = True
        self._send("STOPPING=1", "STATUS=stopping")

    def watchdog_interval_seconds(self) -> float | None:
        """Return how often to say that we are alive: a third of the unit's limit. None where nobody watches us."""
        limit, pid = self._watchdog
        if not limit.isdecimal() or int(limit) == 0 or (pid and pid != str(os.getpid())):
            return None
        return int(limit) / 1_000_000 / 3

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A line break would begin another assignment.
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
