"""Listens for daemons at one Unix socket, and passes on the connections of trusted users (drain.peer).

The file of the socket has mode 0600 before it is listened on. A refusal is printed once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Final, Self

from drain.peer import PeerRefusedError, check_peer, trusted_users
from drain.protocol import MAX_LINE_BYTES
from headgate.errors import ConfigError
from headgate.log.report_limit import ReportLimit
from headgate.process.background import cancel_and_wait

REPORT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 1.0
"""After a failure to accept, for lack of file descriptors for instance."""
BACKLOG: Final = 100
OWNER_ONLY: Final = 0o177
"""The bits that the mode of a socket does not get."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class DrainListener:
    """An async context manager: it listens from entry to exit. Connections stay open."""

    def __init__(self, path: Path, serve: Serve, *, users: AbstractSet[int] | None = None) -> None:
        """``users``: the ids that may connect. Default: this user and root."""
        self.path = path
        self._serve = serve
        self._users = trusted_users() if users is None else users
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._reports = ReportLimit(REPORT_SECONDS)
        self.refused = 0

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigError if another process does, and OSError."""
        listening = await self._bound()
        listening.listen(BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening), name="drain-accept")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._accepting is not None, "not entered"
        assert self._socket is not None, "not entered"
        await cancel_and_wait(self._accepting)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    async def _bound(self) -> socket.socket:
        with contextlib.suppress(OSError):
            # A socket file outlives its process: it is in use only if a connection succeeds.
            _, writer = await asyncio.open_unix_connection(self.path)
            writer.close()
            raise ConfigError(f"{self.path} is in use by another process")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The file must never have another mode, not for a moment.
        mask = os.umask(OWNER_ONLY)
        try:
            listening.bind(str(self.path))
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(mask)
        return listening

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                self._report(f"cannot accept a connection: {error.strerror or error}")
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                check_peer(connection, self._users)
            except PeerRefusedError as error:
                self.refused += 1
                self._report(f"refused a connection: {error}")
                connection.close()
                continue
            connection.setblocking(False)
            reader = asyncio.StreamReader(limit=MAX_LINE_BYTES, loop=loop)
            serving = partial(asyncio.StreamReaderProtocol, reader, self._serve, loop)
            await loop.connect_accepted_socket(serving, connection)

    def _report(self, text: str) -> None:
        if self._reports.is_due(asyncio.get_running_loop().time()):
            print(f"{self.path}: {text}", file=sys.stderr)  # noqa: T201 - this process has no other log
