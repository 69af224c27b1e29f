"""Runs `headgate` commands as forks of a process that has imported them, which takes a quarter of the processor time.

A command is a process of its own nevertheless, with the arguments, environment, standard streams, signals and exit code
of a program; only its command line is that of the process that forks. Client commands and daemons of a `Cluster` are
such forks. That both start without what others have imported is shown by nodes, by the trials, the tutorial, the
documented programs and the tests of packages, which start programs.
"""

import asyncio
import io
import multiprocessing
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import headgate.__main__
from headgate.cli.commands import COMMANDS
from headgate.process.parent_death_signal import die_with_parent

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [__name__, "controller.cli.run", "controller.daemon", "headgate.client.admin", "rich.table"]
    + [module for module, _ in COMMANDS.values()]
)


class ForkedCommand:
    """What a `ChildProcess` uses of an `asyncio.subprocess.Process`."""

    def __init__(self, process: BaseProcess, stdin: asyncio.StreamWriter | None) -> None:
        assert process.pid is not None, "it has started"
        self.pid = process.pid
        self.stdin = stdin
        self._process = process
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_end)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._ended.set()


async def fork_command(*arguments: str, streams: tuple[int, int, int], environ: Mapping[str, str]) -> ForkedCommand:
    """Start a client command, or a daemon with ``run``. ``streams``: its standard ones; the first may be ``PIPE``."""
    stdin, ours = os.pipe() if streams[0] == PIPE else (os.open(os.devnull, os.O_RDONLY), None)
    process = FORKS.Process(target=_Command(arguments, environ, (stdin, *streams[1:])), daemon=True)
    # The first one waits until everything is imported.
    await asyncio.to_thread(_start, process)
    os.close(stdin)
    if ours is None:
        return ForkedCommand(process, None)
    loop = asyncio.get_running_loop()
    pipe = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(ours, "wb"))
    return ForkedCommand(process, asyncio.StreamWriter(*pipe, None, loop))


def _start(process: BaseProcess) -> None:
    """Return when ``process`` can get the signals of its group."""
    process.start()
    assert process.pid is not None, "it has started"
    with suppress(ProcessLookupError):  # It has ended already.
        while os.getpgid(process.pid) != process.pid:
            time.sleep(0.001)


class _Command:
    """What a fork becomes."""

    def __init__(self, arguments: tuple[str, ...], environ: Mapping[str, str], streams: tuple[int, int, int]) -> None:
        self._arguments, self._environ, self._streams = arguments, dict(environ), streams
        self._folder = Path.cwd()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_streams": [DupFd(number) for number in self._streams]}

    def __call__(self) -> None:
        die_with_parent(os.getppid())
        os.setsid()
        sys.stdin.close()
        for number, stream in enumerate(self._streams):
            os.dup2(stream.detach(), number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
        os.environ.clear()
        os.environ.update(self._environ)
        os.chdir(self._folder)
        sys.argv = ["headgate", *self._arguments]
        headgate.__main__.run()
