"""Who is admitted to the Spark process, over real sockets. No Spark."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from drain.service import service as listener
from drain.service.service import DrainListener
from headgate.errors import ConfigError

pytestmark = pytest.mark.real_time


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one line."""
    writer.write(await reader.readline())
    writer.close()


async def test_the_owner_connects_to_a_socket_that_no_other_user_can_open(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "s"
    async with DrainListener(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello\n")
        assert await reader.read() == b"hello\n"
        writer.close()
    assert not path.exists()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells the user of a peer")
async def test_another_user_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(listener, "trusted_users", lambda: {os.geteuid() + 1})
    async with DrainListener(tmp_path / "s", echo):
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await reader.read() == b""
            writer.close()
    assert capsys.readouterr().err == f"{tmp_path / 's'}: refused a connection: it belongs to user {os.geteuid()}\n"


async def test_a_socket_file_of_a_process_that_has_ended_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(tmp_path / "s"))
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await echo(reader, writer)
        await writer.wait_closed()
        served.set()

    async with DrainListener(tmp_path / "s", serve):
        with pytest.raises(ConfigError, match="is in use by another process"):
            await DrainListener(tmp_path / "s", echo).__aenter__()
        await served.wait()  # The connection that found this out.
