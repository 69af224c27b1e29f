"""The Unix socket between a daemon and its Spark process: where it is, and who may be at its other end.

The kernel tells user and process id of the peer (SO_PEERCRED). Both sides accept their own user, and root. A daemon
that started the process itself accepts only that process: another cluster's may listen at the path. Platforms
other than Linux do not tell, and the mode of the socket must suffice. Imports no Spark.
"""

import hashlib
import os
import socket
import struct
import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError, HeadgateError

SOCKET_PATH_BYTES: Final = 107
"""Longest path of a socket on Linux."""
_CREDENTIALS: Final = struct.Struct("3i")


def socket_path(text: str) -> Path:
    """Return the path of a socket; raises ConfigError if it cannot be one."""
    if text == "/" or not text.startswith("/"):
        raise ConfigError(f"{text!r} is no absolute path of a Unix socket; write for example /run/headgate/drain.sock")
    if (length := len(text.encode())) > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the path has {length} bytes, but the path of a socket may have {SOCKET_PATH_BYTES}; use a shorter path"
        )
    return Path(text)


def own_socket(folder: Path, *owner: str) -> Path:
    """Return the path of a socket that no other ``owner`` has, in ``folder`` unless its path is too long.

    ``owner``: what identifies the daemon.
    """
    digest = hashlib.sha256("\0".join((str(folder), *owner)).encode()).hexdigest()[:12]
    path = folder / f"drain-{digest}.sock"
    if len(str(path).encode()) <= SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.gettempdir(), f"headgate-{digest}", "drain.sock")


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
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size),
    )
    if user not in users:
        raise PeerRefusedError(f"it belongs to user {user}")
    if pid not in (None, found):
        raise PeerRefusedError(
            f"it is process {found}, and this daemon started {pid}: another daemon's Spark process listens there; "
            "give each daemon a socket of its own ([drain] socket)"
        )
