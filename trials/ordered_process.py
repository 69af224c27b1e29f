"""A program that a trial or a benchmark starts and gives orders: a word a line, each answered by a line of JSON.

`OrderedProcess` is the side that orders, `obey` the side that answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, Self

from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from headgate.errors import HeadgateError
from headgate.process.child_process import python_module
from headgate.process.parent_death_signal import with_parent_death_signal
from trials.cluster import last_line

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class OrderedProcess:
    def __init__(self, process: asyncio.subprocess.Process, module: str, log_path: Path | None) -> None:
        self.pid = process.pid
        self._process = process
        self._module = module
        self._log_path = log_path

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, module: str, *arguments: str, log_path: Path | None = None
    ) -> tuple[Self, Any]:
        """Start it until ``stack`` is closed; return it, and what it answered when it was ready.

        ``log_path`` None: its standard error is that of this process.
        """
        command = with_parent_death_signal(*python_module(module, *arguments))
        pipe = asyncio.subprocess.PIPE
        with nullcontext() if log_path is None else log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=log, limit=MAX_ANSWER_BYTES
            )
        stack.push_async_callback(_kill, process)
        started = cls(process, module, log_path)
        return started, await started._answer()

    async def order(self, word: str) -> Any:
        """Give an order and return its answer. Raises HeadgateError: the process has ended."""
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(word.encode() + b"\n")
        return await self._answer()

    async def _answer(self) -> Any:
        assert self._process.stdout is not None, "started with a pipe"
        if line := await self._process.stdout.readline():
            return json.loads(line)
        reason = "see its messages above" if self._log_path is None else last_line(self._log_path)
        raise HeadgateError(f"{self._module} ended with code {await self._process.wait()}: {reason}")


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def obey(orders: Mapping[str, Callable[[], Awaitable[Any]]], ready: Any = None) -> None:
    """Answer ``ready``, then each order, until standard input ends. Warnings of this process go to standard error."""
    configure_logging(LogSettings(level="warning"), sys.stderr)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    _print(ready)
    while word := (await reader.readline()).decode().strip():
        _print(await orders[word]())


def _print(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
