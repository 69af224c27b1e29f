"""Where the Unix socket between a daemon and its Spark process is."""

import hashlib
import tempfile
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError

SOCKET_PATH_BYTES: Final = 107


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
