"""Who may be at the other end of the Unix socket between a daemon and its Spark process.

The kernel tells user and process id of the peer (SO_PEERCRED); docs/security.md has the rules. A daemon that started
the process itself accepts only that process: another cluster's may listen at the path. Imports no Spark.
"""

import os
import socket
import struct
from collections.abc import Set as AbstractSet
from typing import Final

from headgate.errors import HeadgateError

_CREDENTIALS: Final = struct.Struct("3i")


class PeerRefusedError(HeadgateError):
    """The peer is not who it should be."""


def trusted_users() -> AbstractSet[int]:
    """Return the user ids that a peer may have: this user, and root."""
    return {os.geteuid(), 0}


def check_peer(connection: socket.socket, users: AbstractSet[int], pid: int | None = None) -> None:
    """Raise PeerRefusedError unless the peer has one of the ids ``users``, and is process ``pid`` if that is given.

    The peer of a client is the process that listened.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    found, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user not in users:
        raise PeerRefusedError(f"it belongs to user {user}")
    if pid not in (None, found):
        raise PeerRefusedError(
            f"it is process {found}, and this daemon started {pid}: another daemon's Spark process listens there; "
            "give each daemon a socket of its own ([drain] socket)"
        )
