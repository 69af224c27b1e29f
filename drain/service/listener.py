"""Listens for daemons at one address, and passes on the connections that `drain.authentication` admits.

The file of a Unix socket has mode 0600 before it is listened on. A TCP client that proves nothing holds
no memory, has a time limit, and delays no other one: at the limit of handshakes the oldest is ended. A
refusal is printed once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Final, Self

from drain.address import Address
from drain.authentication import AuthenticationError, admit, check_peer, trusted_users
from drain.protocol import MAX_LINE_BYTES
from headgate.errors import ConfigError
from headgate.report_limit import ReportLimit

HANDSHAKE_SECONDS: Final = 5.0
"""An honest one takes a millisecond."""
MAX_HANDSHAKES: Final = 32
REPORT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 1.0
"""After a failure to accept, for lack of file descriptors for instance."""
BACKLOG: Final = 100
OWNER_ONLY: Final = 0o177
"""The bits that the mode of a socket does not get."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class DrainListener:
    """An async context manager: it listens from entry to exit. Connections stay open."""

    def __init__(
        self,
        address: Address,
        serve: Serve,
        *,
        secret: bytes | None = None,
        users: AbstractSet[int] | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """``secret``: for TCP; ``users``: the ids that may connect to a Unix socket. Default: this user and root."""
        assert (secret is None) == (address.path is not None), "TCP has a secret, and a Unix socket needs none"
        self.address = address
        """Where it listens; after entry with the real port."""
        self._serve = serve
        self._secret = secret
        self._users = trusted_users() if users is None else users
        self._handshake_seconds = handshake_seconds
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._accepting is not None, "not entered"
        assert self._socket is not None, "not entered"
        tasks = [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        if self.address.path is not None:
            self.address.path.unlink(missing_ok=True)

    async def _bound(self) -> socket.socket:
        path = self.address.path
        if path is None:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self.address.host, self.address.port, type=socket.SOCK_STREAM)
            listening = socket.create_server(found[0][4][:2], family=found[0][0])
            self.address = Address(host=self.address.host, port=listening.getsockname()[1])
            return listening
        with contextlib.suppress(OSError):
            # A socket file outlives its process: it is in use only if a connection succeeds.
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            raise ConfigError(f"{self.address} is in use by another process")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The file must never have another mode, not for a moment.
        mask = os.umask(OWNER_ONLY)
        try:
            listening.bind(str(path))
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
            if len(self._handshakes) >= MAX_HANDSHAKES:
                next(iter(self._handshakes)).cancel()
            handshake = loop.create_task(self._admit(connection), name="drain-handshake")
            self._handshakes[handshake] = connection
            handshake.add_done_callback(self._end_handshake)

    async def _admit(self, connection: socket.socket) -> None:
        """Serve the connection if its peer may connect, else close it."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        try:
            async with asyncio.timeout(self._handshake_seconds):
                if self._secret is None:
                    check_peer(connection, self._users)
                else:
                    await admit(connection, self._secret)
        except (AuthenticationError, OSError) as error:
            self.refused += isinstance(error, (AuthenticationError, TimeoutError))
            reason = "it proved nothing in time" if isinstance(error, TimeoutError) else str(error)
            self._report(f"refused a connection: {reason}")
            connection.close()
            return
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)
        await loop.connect_accepted_socket(lambda: protocol, connection)

    def _end_handshake(self, handshake: asyncio.Task[None]) -> None:
        connection = self._handshakes.pop(handshake)
        if handshake.cancelled():
            connection.close()
        else:
            handshake.result()

    def _report(self, text: str) -> None:
        if self._reports.is_due(asyncio.get_running_loop().time()):
            print(f"{self.address}: {text}", file=sys.stderr)  # noqa: T201 - this process has no other log
