"""A TCP port of the loopback that stays ours from the moment it is chosen, whether or not a server listens on it.

A port that was found free and closed again may be anybody's a moment later: a server's that takes any free one, or the
near end of a connection. So the socket that found it stays bound and never listens. The kernel then gives the port to
nobody who takes any, and a server that is told its number may listen on it all the same, since both set SO_REUSEADDR.
It stays ours while that server restarts, too.

This is how Linux does it. Where a bound socket would keep our own server out, it is closed at once, and the port is no
more than likely to be free. Nothing is held against those who ask for this very number.
"""

from __future__ import annotations

import socket
from typing import Final, Self

LOOPBACK: Final = "127.0.0.1"


class ReservedPort:
    """One port, held until `close`, or while it is entered."""

    def __init__(self, port: int = 0) -> None:
        """Take ``port``; 0: any free one. Raises OSError if it is in use."""
        self._socket = _bind(port)
        self.number: int = self._socket.getsockname()[1]
        if not port_is_free(self.number):
            self.close()

    def close(self) -> None:
        """Let go of it."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Hold it until leaving."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of it."""
        self.close()


def port_is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now; one that is held for it is free."""
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


def _bind(port: int) -> socket.socket:
    found = socket.socket()
    try:
        # As servers do: connections that were closed lately do not count.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LOOPBACK, port))
    except OSError:
        found.close()
        raise
    return found
