"""The proxy loses data in the directions that it is asked to, and heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from bench.harness.tcp_proxy import Direction, Proxy
from tests.support.waiting import never, until

SILENCE_SECONDS = 0.2


@dataclass
class Peer:
    """One end of a connection, with what it received."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    received: bytearray = field(default_factory=bytearray)
    ended: bool = False

    async def receive(self) -> None:
        try:
            while data := await self.reader.read(100):
                self.received += data
        except OSError:
            pass  # A reset is an end as well.
        self.ended = True


class Connection:
    """A client and a server, connected through a proxy."""

    def __init__(self, proxy: Proxy, accepted: asyncio.Queue[Peer], client: Peer, server: Peer) -> None:
        self.proxy, self.accepted, self.client, self.server = proxy, accepted, client, server
        self.opened: list[asyncio.StreamWriter] = []


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    accepted: asyncio.Queue[Peer] = asyncio.Queue()
    listener = await asyncio.start_server(lambda r, w: accepted.put_nowait(Peer(r, w)), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, Proxy("127.0.0.1", port) as proxy:
        client = Peer(*await asyncio.open_connection("127.0.0.1", proxy.port))
        server = await accepted.get()
        tasks = [asyncio.create_task(peer.receive()) for peer in (client, server)]
        made = Connection(proxy, accepted, client, server)
        yield made
        made.opened += [accepted.get_nowait().writer for _ in range(accepted.qsize())]
        for writer in (client.writer, server.writer, *made.opened):
            writer.close()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("lost", ["to_server", "to_client"])
async def test_a_one_way_partition_loses_one_direction_only(connection: Connection, lost: Direction) -> None:
    await connection.proxy.blackhole(lost)
    connection.client.writer.write(b"question")
    connection.server.writer.write(b"answer")
    kept, silent = (
        (connection.client, connection.server) if lost == "to_server" else (connection.server, connection.client)
    )

    await until(lambda: kept.received)
    await never(lambda: silent.received, SILENCE_SECONDS)


@pytest.mark.parametrize("lost", ["to_server", "to_client"])
async def test_the_end_of_a_connection_is_lost_like_data(connection: Connection, lost: Direction) -> None:
    """The broker that ends a session tells the client, if only the other direction is interrupted."""
    await connection.proxy.blackhole(lost)
    connection.server.writer.close()

    if lost == "to_server":
        await until(lambda: connection.client.ended)
    else:
        await never(lambda: connection.client.ended, SILENCE_SECONDS)


async def test_a_partition_without_a_direction_loses_both(connection: Connection) -> None:
    await connection.proxy.blackhole()
    connection.client.writer.write(b"question")
    connection.server.writer.write(b"answer")

    await never(lambda: connection.client.received or connection.server.received, SILENCE_SECONDS)


async def test_a_healed_connection_is_reset_because_data_is_missing(connection: Connection) -> None:
    await connection.proxy.blackhole("to_client")
    await connection.proxy.heal()

    await until(lambda: connection.client.ended)
    _, writer = await asyncio.open_connection("127.0.0.1", connection.proxy.port)
    connection.opened.append(writer)
    writer.write(b"again")
    await until(connection.accepted.qsize)
