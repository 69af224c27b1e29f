"""The library writes nothing to the standard streams of a program that has not configured logging.

The program is this file, run as a process of its own.
"""

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable

from headgate import Admin, ClientConfig, Consumer, NoLeaderError, sync
from headgate.errors import TransportError
from headgate.process.background import end_tasks

CONNECT, SUBSCRIBE, PUBLISH = 1, 8, 3
ACCEPTED, NOT_AUTHORIZED = b"\x20\x02\x00\x00", b"\x20\x02\x00\x05"
RESET_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing the socket resets the connection."""
CLIENTS = 3

Fault = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def reset_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the connection before the first packet is answered."""
    await reader.read(1)


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer that the user is unknown."""
    await packet(reader)
    writer.write(NOT_AUTHORIZED)
    await reader.read()


async def reset_while_subscribing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept the client, and disappear when it subscribes."""
    await packet(reader)
    writer.write(ACCEPTED)
    await packet(reader)


async def reset_while_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept everything until the client publishes its presence, and disappear."""
    await serve_until_published(reader, writer)


async def close_while_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the end of the connection, and read on."""
    await serve_until_published(reader, writer)
    writer.write_eof()
    await reader.read()


async def confirm_too_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a subscription without saying for which filters."""
    await packet(reader)
    writer.write(ACCEPTED)
    _, body = await packet(reader)
    writer.write(b"\x90\x02" + body[:2])
    await reader.read()


async def send_noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send what is not MQTT."""
    await serve_until_published(reader, writer)
    writer.write(b"\xff" * 100)
    await reader.read()


FAULTS: list[Fault] = [
    reset_at_once,
    refuse,
    reset_while_subscribing,
    reset_while_connected,
    close_while_connected,
    confirm_too_little,
    send_noise,
]


def test_a_program_that_has_not_configured_logging_sees_only_exceptions() -> None:
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=120, check=False)

    assert (0, "", "") == (run.returncode, run.stdout, run.stderr)


async def main() -> None:
    async with asyncio.TaskGroup() as programs:
        for fault in FAULTS:
            programs.create_task(program(fault))


async def program(fault: Fault) -> None:
    """Use each kind of client while the broker fails."""
    connections = 0
    enough = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
        connections += 1
        # One client has met the fault and connected again. A refused one does not connect again.
        if connections >= CLIENTS + (fault is not refuse):
            enough.set()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await fault(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    config = ClientConfig(cluster="none", broker_host=host, broker_port=port, ledger_url="memory:///")

    async def use(opening: contextlib.AbstractAsyncContextManager[object]) -> None:
        with contextlib.suppress(NoLeaderError, TransportError, TimeoutError):
            async with asyncio.timeout(60), opening:
                raise AssertionError("there is no cluster")

    clients: list[asyncio.Task[None]] = [
        asyncio.create_task(use(Admin(config))),
        asyncio.create_task(use(Consumer(config, topic="t", subscription="s"))),
        asyncio.create_task(asyncio.to_thread(blocking_use, config)),
    ]
    assert len(clients) == CLIENTS
    await enough.wait()
    await end_tasks(*clients)
    server.close()


def blocking_use(config: ClientConfig) -> None:
    with contextlib.suppress(NoLeaderError, TransportError):
        sync.Admin(config, timeout_seconds=1.0)


async def serve_until_published(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (found := await packet(reader))[0] != PUBLISH:
        kind, body = found
        if kind == CONNECT:
            writer.write(ACCEPTED)
        elif kind == SUBSCRIBE:
            writer.write(bytes((0x90, 2 + filters_in(body))) + body[:2] + bytes(filters_in(body)))


def filters_in(subscribe: bytes) -> int:
    """Return the number of filters in the body of a SUBSCRIBE packet."""
    count, at = 0, 2
    while at < len(subscribe):
        count, at = count + 1, at + 2 + int.from_bytes(subscribe[at : at + 2]) + 1
    return count


async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one MQTT packet; return its type and body."""
    first, size, shift = (await reader.readexactly(1))[0], 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return first >> 4, await reader.readexactly(size)


if __name__ == "__main__":
    asyncio.run(main())
