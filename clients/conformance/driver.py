"""A driver as a child process: commands to its standard input, answers from its standard output."""

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from typing import Any, Final, Self

from headgate.process.parent_death_signal import with_parent_death_signal

Answer = dict[str, Any]
LINE_BYTES: Final = 16 * 1024 * 1024
"""A record of 1 MiB is two in hexadecimal digits."""


class Driver:
    """One running driver. It may answer in any order; answers name the ``id`` of their command."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str]) -> Self:
        command = with_parent_death_signal(*command)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES))

    def send(self, command: Answer) -> asyncio.Future[Answer]:
        """Send a command; the future has its answer, or an `error` if the driver ends before it."""
        number = len(self._waiting) + 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._reader.done():
            answer.set_result({"error": "ended", "text": "the driver has ended"})
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, **command}).encode() + b"\n")
        return answer

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                answer = json.loads(line)
                self._waiting[answer.pop("id")].set_result(answer)
            except (ValueError, KeyError, AttributeError, TypeError, asyncio.InvalidStateError):
                print(f"       the driver printed: {line.decode(errors='replace').rstrip()[:500]}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result({"error": "ended", "text": "the driver has ended"})

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader
