"""What a trial reads from its processes of clients."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from headgate.errors import HeadgateError
from scale.cluster import ClientProcess


async def clients(folder: Path, text: str) -> ClientProcess:
    process = await asyncio.create_subprocess_exec("printf", text, stdin=PIPE, stdout=PIPE)
    return ClientProcess(process, folder / "log")


async def test_progress_precedes_an_answer_and_is_kept(tmp_path: Path) -> None:
    process = await clients(tmp_path, r'{"done": 3, "of": 9}\n{"done": 7, "of": 9}\n{"opened": 9}\n')
    assert {"opened": 9} == await process.answer()
    assert (7, 9) == process.progress
    await process.kill()


async def test_a_process_that_ends_without_an_answer_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("scale.clients: 2 of 9 openings failed\n")
    process = await clients(tmp_path, r'{"done": 3, "of": 9}\n')
    with pytest.raises(HeadgateError, match=r"ended with code 0: scale.clients: 2 of 9 openings failed"):
        await process.answer()
