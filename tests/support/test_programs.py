"""What the system tests stand on: ends with whoever started it, and tells one process from its fork. No server needed."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import psutil
import pytest

from tests.support import programs
from tests.support.programs import MARK, finish, marked, start, wait_until, without_forks

CHILD = "import os, sys; print(os.fork() and 'parent' or 'child', flush=True); sys.stdin.read()"


async def test_a_command_ends_with_whoever_gives_up_waiting_for_it(tmp_path: Path):
    mark = uuid.uuid4().hex
    config = tmp_path / "client.toml"
    config.write_text(f'cluster = "c"\nbroker_host = "127.0.0.1"\nbroker_port = 1\nledger_url = "file://{tmp_path}"\n')
    waiting = asyncio.create_task(finish("--config", str(config), "topic", "list", env={MARK: mark}))
    await wait_until(lambda: marked(mark), "it runs")

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert marked(mark) == []


async def test_a_child_that_shows_its_parents_command_line_is_not_taken_for_another(tmp_path: Path):
    mark = uuid.uuid4().hex
    running = await start(out=tmp_path / "out", env={MARK: mark}, stdin=asyncio.subprocess.PIPE, program=("-c", CHILD))
    try:
        await running.until_printed(2)
        found = marked(mark)
        assert len(found) == 2
        assert [running.process.pid] == [process.pid for process in without_forks(found)]
        assert 2 == len(without_forks([psutil.Process(os.getpid()), psutil.Process(1)]))
    finally:
        for process in marked(mark):
            process.kill()
        await running.kill()


async def test_who_waits_in_vain_for_lines_is_told_how_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "TIMEOUT_FACTOR", 1.0)
    running = await start(out=tmp_path / "some.out", program=("-c", "print('one'); print('two', end='')"))
    await running.ended()

    with pytest.raises(AssertionError, match=r"some\.out has 1 of 2 lines, its exit code is 0"):
        await running.until_printed(2, 0.01)
