"""Who is admitted to the Spark process, over real sockets. No Spark."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from drain.address import Address
from drain.authentication import prove
from drain.service.listener import MAX_HANDSHAKES, DrainListener
from headgate.errors import ConfigError

SECRET = b"s" * 32
LOOPBACK = Address(host="127.0.0.1", port=0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one line."""
    writer.write(await reader.readline())
    writer.close()


async def connected(address: Address) -> socket.socket:
    """Return a connection that has proved nothing."""
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
    return connection


async def echoed(connection: socket.socket) -> bytes:
    """Send a line, and return the reply; the connection ends."""
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(b"hello\n")
    found = await reader.read()
    writer.close()
    return found


async def test_the_owner_connects_to_a_socket_that_no_other_user_can_open(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "s"
    async with DrainListener(Address(path=path), echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello\n")
        assert await reader.read() == b"hello\n"
        writer.close()
    assert not path.exists()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells the user of a peer")
async def test_another_user_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the mode of the socket had been changed."""
    async with DrainListener(Address(path=tmp_path / "s"), echo, users={os.geteuid() + 1}) as listener:
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await reader.read() == b""
            writer.close()
        assert listener.refused == 3
    assert (
        capsys.readouterr().err == f"unix:{tmp_path / 's'}: refused a connection: it belongs to user {os.geteuid()}\n"
    )


async def test_a_socket_file_of_a_process_that_has_ended_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(tmp_path / "s"))
    async with DrainListener(Address(path=tmp_path / "s"), echo):
        with pytest.raises(ConfigError, match="is in use by another process"):
            await DrainListener(Address(path=tmp_path / "s"), echo).__aenter__()


async def test_over_tcp_a_client_that_knows_the_secret_is_served() -> None:
    async with DrainListener(LOOPBACK, echo, secret=SECRET) as listener:
        connection = await connected(listener.address)
        await prove(connection, SECRET)
        assert await echoed(connection) == b"hello\n"


async def test_over_tcp_a_client_that_proves_nothing_gets_no_reply(capsys: pytest.CaptureFixture[str]) -> None:
    """Its request is read as a wrong proof."""
    async with DrainListener(LOOPBACK, echo, secret=SECRET) as listener:
        reader, writer = await asyncio.open_connection(sock=await connected(listener.address))
        writer.write(b"x" * 64)
        assert (await reader.read())[-33:] == bytes(33)
        writer.close()
        assert listener.refused == 1
    assert capsys.readouterr().err == f"{listener.address}: refused a connection: it has another secret\n"


async def test_a_client_that_sends_nothing_is_ended_and_delays_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    async with DrainListener(LOOPBACK, echo, secret=SECRET, handshake_seconds=0.5) as listener:
        reader, writer = await asyncio.open_connection(sock=await connected(listener.address))
        connection = await connected(listener.address)
        await prove(connection, SECRET)
        assert await echoed(connection) == b"hello\n"
        assert len(await reader.read()) == 48, "the greeting only"
        writer.close()
    assert "it proved nothing in time" in capsys.readouterr().err


async def test_at_the_limit_the_oldest_handshake_is_ended() -> None:
    loop = asyncio.get_running_loop()
    async with DrainListener(LOOPBACK, echo, secret=SECRET, handshake_seconds=600) as listener:
        silent = [await connected(listener.address) for _ in range(MAX_HANDSHAKES + 5)]
        connection = await connected(listener.address)
        await prove(connection, SECRET)
        assert await echoed(connection) == b"hello\n"
        assert await loop.sock_recv(silent[0], 48), "the greeting"
        assert await loop.sock_recv(silent[0], 1) == b""
        for each in silent:
            each.close()
