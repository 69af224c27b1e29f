"""The data folder of `headgate up`: its lock, the state of the last start, and files for clients.

One running node locks the folder. The kernel releases the lock when the process ends, even after SIGKILL. The ports of
the last start are saved, so that clients can wait for a restart.
"""

import contextlib
import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

import msgspec

from controller.local.private_file import OWNER_ONLY, OWNER_ONLY_FOLDER, write_private_file
from controller.local.reserved_port import ReservedPort, port_is_free
from controller.settings.sections import PortOrAny
from headgate.errors import ConfigError
from headgate.model.text import UNREADABLE_JSON
from headgate.process.child_process import rotate_log

FREE_MEGABYTES: Final = 300
"""What a node needs there: ZooKeeper and the broker preallocate files, and Spark unpacks libraries."""


class NodeState(msgspec.Struct, frozen=True):
    """The values of the last start; 0: unknown."""

    mqtt_port: PortOrAny = 0
    zookeeper_port: PortOrAny = 0
    http_port: PortOrAny = 0
    shards: int = 0
    tls: bool = False
    """Whether all connections use TLS, and all clients have users."""
    ledger: str = ""
    """URL of the ledger; empty: a folder in the data folder."""
    folder: str = ""
    """Where the data folder was."""


class DataFolder:
    """A data folder, locked while entered."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = -1

    def __enter__(self) -> Self:
        """Create and lock the folder. Raises ConfigError if that fails, or another node uses the folder."""
        try:
            self.path.mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
            (self.path / "logs").mkdir(exist_ok=True)
            self._lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        except OSError as error:
            raise ConfigError(f"data folder {self.path}: {error.strerror}; choose another with --data") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "?"
            os.close(self._lock)
            raise ConfigError(
                f"data folder {self.path} is in use by the node with process id {holder}; "
                "stop that node, or choose another folder with --data"
            ) from None
        os.ftruncate(self._lock, 0)
        with contextlib.suppress(OSError):  # The lock counts; a full disk only hides who has it.
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the folder. The lock file stays: if it were deleted, two nodes could lock two files of this name."""
        os.close(self._lock)

    def load_state(self) -> NodeState:
        """Return the state of the last start. Raises ConfigError if its file is damaged."""
        try:
            return msgspec.json.decode((self.path / "up.json").read_bytes(), type=NodeState)
        except FileNotFoundError:
            return NodeState()
        except UNREADABLE_JSON as error:
            raise ConfigError(
                f"{self.path / 'up.json'}: {error}; delete the file, and repeat --tls and --ledger"
            ) from None

    def save_state(self, state: NodeState) -> None:
        self.write("up.json", msgspec.json.encode(state).decode())

    def write(self, name: str, text: str) -> Path:
        """Write a file atomically, readable only for its owner; return its path."""
        return write_private_file(self.path / name, text)

    def log_path(self, name: str) -> Path:
        """Return the path of a log; a large log of earlier runs is renamed first."""
        path = self.path / "logs" / name
        rotate_log(path)
        return path


def reserve_port(
    option: str, requested: int | None, previous: int, default: int, reserved: Collection[int] = ()
) -> ReservedPort:
    """Reserve a port: the ``requested`` one (0: any free port), else the previous one, the default one, or any.

    ``reserved``: those that this node has reserved for others. They look free, as to the servers that will use them.
    Raises ConfigError: the requested port is in use.
    """
    for port in filter(None, (requested,) if requested is not None else (previous, default)):
        with contextlib.suppress(OSError):  # Another program may take it meanwhile.
            if port not in reserved and port_is_free(port):
                return ReservedPort(port)
    if requested:
        raise ConfigError(f"{option} {requested}: the port is in use; choose another, or 0 for any free one")
    return ReservedPort()
