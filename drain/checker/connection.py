"""One connection to the Spark process, from the daemon's side: ask, await the reply of that id, or fail.

It neither retries nor reconnects; drain.checker.checker and drain.checker.supervisor do, each in its own way. Imports
no Spark.
"""

from __future__ import annotations

import asyncio

import msgspec

from drain.protocol import (
    MAX_LINE_BYTES,
    Address,
    AnyRequest,
    AnyResponse,
    DrainCheckError,
    FailureResponse,
    decode_response,
    encode_line,
)


class Connection:
    """An open connection; one query at a time."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, timeout_seconds: float) -> Connection:
        """Connect; raises DrainCheckError if nobody answers in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if address.path is None:
                    streams = await asyncio.open_connection(address.host, address.port, limit=MAX_LINE_BYTES)
                else:
                    streams = await asyncio.open_unix_connection(address.path, limit=MAX_LINE_BYTES)
        except TimeoutError as error:
            raise DrainCheckError(f"no connection to {address} within {timeout_seconds:g} s", "unreachable") from error
        except OSError as error:
            raise DrainCheckError(f"cannot connect to {address}: {error.strerror or error}", "unreachable") from error
        return cls(address, *streams)

    async def request(self, request: AnyRequest, timeout_seconds: float) -> AnyResponse:
        """Send ``request`` and return its reply.

        Raises:
            DrainCheckError: no reply in time, the connection broke, or what came is no reply to this. Except after
                a `FailureResponse` reply the connection is of no further use: a late reply would be taken for the next.

        """
        try:
            async with asyncio.timeout(timeout_seconds):
                self._writer.write(encode_line(request))
                await self._writer.drain()
                line = await self._reader.readline()
        except TimeoutError as error:
            raise DrainCheckError(
                f"no answer from {self._address} within {timeout_seconds:g} s", "timed_out"
            ) from error
        except (OSError, ValueError) as error:
            # ValueError is what a line beyond the limit raises.
            raise DrainCheckError(f"the connection to {self._address} broke: {error}", "unreachable") from error
        if not line.endswith(b"\n"):
            raise DrainCheckError(f"{self._address} closed the connection before it answered", "unreachable")
        try:
            reply = decode_response(line)
        except msgspec.DecodeError as error:
            raise DrainCheckError(f"{self._address} does not speak our protocol: {error}", "invalid") from error
        if isinstance(reply, FailureResponse):
            raise DrainCheckError(reply.error)
        if reply.id != request.id:
            raise DrainCheckError(f"{self._address} answered request {reply.id}, asked was {request.id}", "invalid")
        return reply

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self._writer.transport.abort()
