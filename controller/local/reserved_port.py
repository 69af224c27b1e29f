"""Reserve a TCP port on loopback for a server, before the server starts and while it restarts.

A port that was found free can be assigned to another socket a moment later. So the socket that found the port stays
bound and never listens. The kernel then assigns the port to no socket that asks for any port, and the server can still
listen on it, because both sockets set SO_REUSEADDR.

This works on Linux. Where a bound socket would block the server, it is closed at once, and the port is only likely to
be free. A program that asks for this very port number can always take it.
"""

import socket
from typing import Final, Self

from headgate.transport.loopback import loopback

LOOPBACK: Final = loopback()


def port_is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now; a reserved port is free."""
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


class ReservedPort:
    """A port, reserved until `close` or the end of its context."""

    def __init__(self, port: int = 0) -> None:
        """Reserve ``port``; 0: any free port. Raises OSError if it is in use."""
        self._socket = _bind(port)
        self.number: int = self._socket.getsockname()[1]
        if not port_is_free(self.number):
            self.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bind(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in LOOPBACK else socket.AF_INET)
    try:
        # As servers do: recently closed connections do not block the port.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LOOPBACK, port))
    except OSError:
        found.close()
        raise
    return found
