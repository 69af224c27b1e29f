"""The helpers that run programs: no program outlives its test, and forks are distinguished from their parents. No servers."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import psutil
import pytest

from controller.settings.write import client_toml
from headgate import ClientConfig
from tests.support.servers.programs import RUN_ID, finish, processes_of, start, wait_until, without_forks

CHILD = "import os, sys; print(os.fork() and 'parent' or 'child', flush=True); sys.stdin.read()"


async def test_a_command_ends_when_its_test_is_cancelled(tmp_path: Path):
    run_id = uuid.uuid4().hex
    config = tmp_path / "client.toml"
    client = ClientConfig(cluster="c", broker_host="127.0.0.1", broker_port=1, ledger_url=tmp_path.as_uri())
    config.write_text(client_toml("", client))
    waiting = asyncio.create_task(finish("--config", str(config), "topic", "list", env={RUN_ID: run_id}))
    await wait_until(lambda: processes_of(run_id), "it runs")

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert processes_of(run_id) == []


async def test_a_fork_with_its_parents_command_line_is_not_counted(tmp_path: Path):
    run_id = uuid.uuid4().hex
    program = await start(
        out=tmp_path / "out", env={RUN_ID: run_id}, stdin=asyncio.subprocess.PIPE, program=("-c", CHILD)
    )
    try:
        await program.until_printed(2)
        found = processes_of(run_id)
        assert len(found) == 2
        assert [program.pid] == [process.pid for process in without_forks(found)]
        assert 2 == len(without_forks([psutil.Process(os.getpid()), psutil.Process(1)]))
    finally:
        await program.kill()


async def test_a_missed_number_of_lines_is_reported_with_the_number_found(tmp_path: Path):
    program = await start(out=tmp_path / "some.out", program=("-c", "print('one'); print('two', end='')"))
    await program.ended()

    with pytest.raises(AssertionError, match=r"some\.out has 1 of 2 lines, its exit code is 0"):
        await program.until_printed(2, 0.01)
