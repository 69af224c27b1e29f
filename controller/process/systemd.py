"""Notifies systemd that the daemon is ready, alive or stopping, and sends a status line.

Without ``NOTIFY_SOCKET`` every call does nothing. A message that cannot be sent is dropped.

1. Until READY, each keep-alive extends the start time-out: a daemon that waits for ZooKeeper is not
   killed while its loop runs.
2. After STOPPING no keep-alive is sent, so that the unit's stop time-out applies.
"""

import os
import socket
from collections.abc import Mapping

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
        """Let `systemctl status` show ``text``."""
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
