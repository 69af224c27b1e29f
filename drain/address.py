"""Where the Spark process listens: a Unix socket or a TCP port of this machine, and which of them needs a secret."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headgate.arguments import HIGHEST_PORT, is_port
from headgate.errors import ConfigError
from headgate.transport.tls_options import is_loopback

SOCKET_PATH_BYTES: Final = 107
"""Longest path of a socket on Linux."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the Spark process: a socket file, or a TCP port."""

    path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str, *, any_port: bool = False) -> Address:
        """Return the address in ``unix:/path`` or ``tcp:host:port``; raises ConfigError for anything else.

        ``any_port``: port 0 is valid, to listen on any free port.
        """
        scheme, _, rest = text.partition(":")
        if scheme == "unix":
            return cls(path=_socket_path(text, rest))
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and host and (is_port(port) or (any_port and port == "0")):
            return cls(host=host, port=int(port))
        raise ConfigError(
            f"{text!r}: write unix:/absolute/path or tcp:127.0.0.1:port with a port from 1 to {HIGHEST_PORT}"
        )

    def problem(self, secret_file: Path | str | None) -> tuple[Literal["socket", "secret_file"], str] | None:
        """Return what is wrong with this address and the file of the secret, as (setting, problem)."""
        if self.path is not None:
            if secret_file is None:
                return None
            return "secret_file", f"is set, and socket {self} is no TCP port; a Unix socket needs no secret: remove it"
        if not is_loopback(self.host):
            return "socket", (
                f"{self} is not loopback, and this connection has no TLS; use unix:/absolute/path or "
                "tcp:127.0.0.1:port, and published results (drain.results) for Spark on another machine"
            )
        if secret_file is None:
            return "secret_file", (
                f"is not set, and every user of this machine can connect to {self}; name a file with a secret that "
                "both processes read (openssl rand -hex 32), or use unix:/absolute/path"
            )
        return None

    def __str__(self) -> str:
        return f"tcp:{self.host}:{self.port}" if self.path is None else f"unix:{self.path}"


def _socket_path(text: str, path: str) -> Path:
    if path == "/" or not path.startswith("/"):
        raise ConfigError(f"{text!r}: write unix:/absolute/path")
    if (length := len(path.encode())) > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the path has {length} bytes, but the path of a socket may have {SOCKET_PATH_BYTES}; "
            "use a shorter path or tcp:127.0.0.1:port"
        )
    return Path(path)
