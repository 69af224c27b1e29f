"""Listens for daemons at one Unix socket, and passes on the connections of trusted users (drain.peer).

The file of the socket has mode 0600 before it is listened on. A refusal is printed once a minute.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self

from drain.peer import PeerRefusedError, check_peer, trusted_users
from drain.protocol import MAX_LINE_BYTES
from headgate.errors import ConfigError
from headgate.log.report_limit import ReportLimit

REPORT_SECONDS: Final = 60.0
OWNER_ONLY: Final = 0o177
"""The bits that the mode of a socket does not get."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class DrainListener:
    """An async context manager: it listens from entry to exit. Connections stay open."""

    def __init__(self, path: Path, serve: Serve) -> None:
        self.path = path
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._reports = ReportLimit(REPORT_SECONDS)

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigError if another process does, and OSError."""
        self._server = await self._bound()
        await self._server.start_serving()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "not entered"
        self._server.close()
        self.path.unlink(missing_ok=True)

    async def _bound(self) -> asyncio.Server:
        with contextlib.suppress(OSError):
            # A socket file outlives its process: it is in use only if a connection succeeds.
            _, writer = await asyncio.open_unix_connection(self.path)
            writer.close()
            raise ConfigError(f"{self.path} is in use by another process")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The file must never have another mode, not for a moment. Until it listens, no other task has a turn.
        mask = os.umask(OWNER_ONLY)
        try:
            return await asyncio.start_unix_server(
                self._serve_trusted, self.path, limit=MAX_LINE_BYTES, start_serving=False
            )
        finally:
            os.umask(mask)

    async def _serve_trusted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_peer(writer.get_extra_info("socket"), trusted_users())
        except PeerRefusedError as error:
            writer.close()
            if self._reports.is_due(asyncio.get_running_loop().time()):
                print(f"{self.path}: refused a connection: {error}", file=sys.stderr)  # noqa: T201 - the only log here
        else:
            await self._serve(reader, writer)
