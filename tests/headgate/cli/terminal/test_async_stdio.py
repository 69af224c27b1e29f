"""Standard streams: a slow reader or a silent writer leaves the loop running."""

import asyncio
import io
import logging
import os
import sys
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from headgate.cli.terminal.running import read_blocks, start_logs, while_read, write_all
from headgate.log.event_log import get_logger

pytestmark = pytest.mark.real_time

LARGE = os.urandom(1024 * 1024)


async def collect(file: int) -> bytes:
    async with aclosing(read_blocks(file)) as blocks:
        return b"".join([block async for block in blocks])


def drain(file: int, into: bytearray) -> None:
    """Read ``file`` to its end, from another thread."""
    while block := os.read(file, 65_536):
        into += block


async def test_more_than_a_pipe_holds_is_written_completely():
    reader, writer = os.pipe()
    got = bytearray()
    reading = threading.Thread(target=drain, args=(reader, got))
    reading.start()

    await write_all(writer, LARGE)

    os.close(writer)
    reading.join()
    os.close(reader)
    assert bytes(got) == LARGE


async def test_a_slow_reader_delays_only_the_writer():
    reader, writer = os.pipe()
    writing = asyncio.ensure_future(write_all(writer, LARGE))

    for _ in range(100):
        await asyncio.sleep(0.001)

    assert not writing.done()
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


async def test_a_closed_reader_is_an_error():
    reader, writer = os.pipe()
    os.close(reader)

    with pytest.raises(BrokenPipeError):
        await write_all(writer, b"x")
    os.close(writer)


async def test_a_reader_that_closes_ends_a_command_that_has_nothing_to_write():
    reader, writer = os.pipe()
    cleaned_up = False

    async def command() -> None:
        nonlocal cleaned_up
        try:
            await write_all(writer, b"x")
            os.close(reader)
            await asyncio.Event().wait()
        finally:
            cleaned_up = True

    with pytest.raises(BrokenPipeError):
        await while_read(writer, command())
    assert cleaned_up
    os.close(writer)


async def test_a_silent_writer_delays_only_the_reader():
    reader, writer = os.pipe()
    reading = asyncio.ensure_future(collect(reader))

    for _ in range(100):
        await asyncio.sleep(0.001)
    assert not reading.done()
    os.write(writer, b"late")
    os.close(writer)

    assert await reading == b"late"
    assert os.get_blocking(reader)
    os.close(reader)


async def test_regular_files_are_read_and_written(tmp_path: Path):
    path = tmp_path / "file"
    file = os.open(path, os.O_RDWR | os.O_CREAT)

    await write_all(file, LARGE)
    os.lseek(file, 0, os.SEEK_SET)

    assert await collect(file) == LARGE
    os.close(file)


# What a client command logs to standard error.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "debug", "events"),
    [
        pytest.param(Terminal(), False, ["warned", "failed"], id="a person sees why a command waits"),
        pytest.param(io.StringIO(), False, ["failed"], id="a script gets errors"),
        pytest.param(io.StringIO(), True, ["noticed", "informed", "warned", "failed"], id="--debug prints everything"),
    ],
)
def test_the_level_depends_on_the_reader(stream: io.StringIO, debug: bool, events: list[str], monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    start_logs(debug=debug)
    log = get_logger("headgate.transport.mqtt")

    log.debug("noticed")
    log.info("informed")
    log.warning("warned", broker="h:1883")
    log.error("failed")

    lines = stream.getvalue().splitlines()
    assert events == [event for line in lines for event in ("noticed", "informed", "warned", "failed") if event in line]
    assert len(events) == len(lines)
    assert not any("warned" in line and "broker='h:1883'" not in line for line in lines)


def test_a_library_that_repeats_reasons_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    start_logs(debug=False)

    logging.getLogger("headgate.transport.paho").error("connection refused")

    assert "" == stream.getvalue()
