"""A client connection to the Spark process. It matches replies to requests by id.

It neither retries nor reconnects. Imports no Spark.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from drain import protocol
from drain.peer import PeerRefusedError, check_peer, trusted_users
from headgate.log.lossy_output import lose_lines
from headgate.model.text import UNREADABLE_JSON

R = TypeVar("R", bound=protocol.Response)
OnBroken = Callable[[protocol.DrainCheckError], None]


class Connection:
    """An open connection. Any number of requests may be in flight."""

    def __init__(
        self, path: Path, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], on_broken: OnBroken
    ) -> None:
        self._path = path
        self._reader, self._writer = streams
        self._on_broken = on_broken
        self._ids = itertools.count(1)
        self._in_flight: dict[int, asyncio.Future[protocol.AnyResponse]] = {}
        self._newest_id = 0
        self._error: protocol.DrainCheckError | None = None
        self._receiver = asyncio.get_running_loop().create_task(self._receive_loop(), name="drain replies")

    @classmethod
    async def open(
        cls,
        path: Path,
        timeout_seconds: float,
        pid: int | None = None,
        on_broken: OnBroken = lambda _: None,
        *,
        users: AbstractSet[int] = frozenset(),
    ) -> Self:
        """Connect, and check who the peer is; raises DrainCheckError if that fails, or takes too long.

        ``pid``: the only process that may listen at ``path``; None: any one of this user, of root, or of ``users``.
        ``on_broken`` is called once, when the connection becomes unusable.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                reader, writer = await asyncio.open_unix_connection(path, limit=protocol.MAX_LINE_BYTES)
            check_peer(writer.get_extra_info("socket"), trusted_users() | users, pid)
        except TimeoutError as error:
            raise protocol.DrainCheckError(
                f"no connection to {path} within {timeout_seconds:g} s", "unreachable"
            ) from error
        except OSError as error:
            raise protocol.DrainCheckError(
                f"cannot connect to {path}: {error.strerror or error}", "unreachable"
            ) from error
        except PeerRefusedError as error:
            writer.close()
            raise protocol.DrainCheckError(f"refused to use the process at {path}: {error}", "denied") from None
        return cls(path, (reader, writer), on_broken)

    @property
    def broken(self) -> bool:
        """Whether the connection is unusable. Every request in flight has failed then."""
        return self._error is not None

    async def request(self, request: protocol.AnyRequest, response_type: type[R], timeout_seconds: float) -> R:
        """Send ``request`` and return its reply.

        Raises:
            DrainCheckError: no reply in time, an error reply, an invalid reply, or a broken
                connection. An invalid reply breaks the connection. So does the time-out of a ping, but of
                no other request, which may wait for a long run.
        """
        if self._error is not None:
            raise protocol.DrainCheckError(str(self._error), self._error.failure)
        request_id = self._newest_id = next(self._ids)
        reply: asyncio.Future[protocol.AnyResponse] = asyncio.get_running_loop().create_future()
        self._in_flight[request_id] = reply
        try:
            async with asyncio.timeout(timeout_seconds):
                self._writer.write(protocol.encode_line(msgspec.structs.replace(request, id=request_id)))
                # If the connection is lost, the receiver fails the reply.
                with contextlib.suppress(OSError):
                    await self._writer.drain()
                response = await reply
        except TimeoutError as error:
            late = protocol.DrainCheckError(f"no answer from {self._path} within {timeout_seconds:.3g} s", "timed_out")
            if isinstance(request, protocol.Ping):
                self._fail(late)
            raise late from error
        finally:
            del self._in_flight[request_id]
        if isinstance(response, protocol.FailureResponse):
            raise protocol.DrainCheckError(response.error)
        if not isinstance(response, response_type):
            invalid = protocol.DrainCheckError(f"{self._path} sent a reply of another type than requested", "invalid")
            self._fail(invalid)
            raise invalid
        return response

    def close(self) -> None:
        """Close at once. Requests in flight fail."""
        self._fail(protocol.DrainCheckError(f"the connection to {self._path} was closed", "unreachable"))

    async def _receive_loop(self) -> None:
        try:
            while (line := await self._reader.readline()).endswith(b"\n"):
                self._deliver(protocol.decode_response(line))
            self._fail(
                protocol.DrainCheckError(f"{self._path} closed the connection before it answered", "unreachable")
            )
        except protocol.DrainCheckError as error:
            self._fail(error)
        except UNREADABLE_JSON as error:
            self._fail(protocol.DrainCheckError(f"{self._path} does not speak this protocol: {error}", "invalid"))
        except (OSError, ValueError) as error:
            # A line beyond the limit raises ValueError.
            self._fail(protocol.DrainCheckError(f"the connection to {self._path} broke: {error}", "unreachable"))

    def _deliver(self, response: protocol.AnyResponse) -> None:
        lose_lines(response.lost_log_lines)
        reply = self._in_flight.get(response.id)
        if reply is not None:
            if not reply.done():
                reply.set_result(response)
        elif 0 < response.id <= self._newest_id:
            pass  # Late: the request has timed out.
        elif isinstance(response, protocol.FailureResponse):
            raise protocol.DrainCheckError(response.error)
        else:
            raise protocol.DrainCheckError(
                f"{self._path} answered request {response.id}, which was not sent", "invalid"
            )

    def _fail(self, error: protocol.DrainCheckError) -> None:
        if self._error is not None:
            return
        self._error = error
        for reply in self._in_flight.values():
            if not reply.done():
                reply.set_exception(protocol.DrainCheckError(str(error), error.failure))
        self._writer.transport.abort()
        self._on_broken(error)
