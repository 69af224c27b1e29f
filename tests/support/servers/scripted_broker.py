"""A server that answers an MQTT CONNECT with given bytes, for what no real broker can be made to say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

MQTT3_CONNACK_BYTES: Final = 2
UNSUBSCRIBE: Final = 0xA2
"""First byte of the packet whose answer clients await before they disconnect."""


def connack(code: int = 0, properties: bytes = b"") -> bytes:
    body = bytes([0, code, len(properties)]) + properties
    return bytes([0x20, len(body)]) + body


@asynccontextmanager
async def scripted_broker(
    answer: bytes | None, contacted: asyncio.Event | None = None, *, later: bytes | None = None
) -> AsyncIterator[int]:
    """Yield the port of a server that sends ``answer``; None: it closes the connection, empty: it says nothing.

    ``contacted`` is set once a client has sent something. ``later``: the answer to further connections, if another one.
    """
    open_connections: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        await reader.read(1)
        if contacted is not None:
            contacted.set()
        chosen = answer if len(open_connections) == 1 or later is None else later
        if chosen is None:
            writer.close()
        else:
            writer.write(chosen)
            await writer.drain()
            while data := await reader.read(64):
                if data[0] == UNSUBSCRIBE:
                    rest = data[2:4] + (bytes(2) if chosen[1] > MQTT3_CONNACK_BYTES else b"")
                    writer.write(bytes([0xB0, len(rest)]) + rest)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_connections:
            writer.close()
