"""Run the real program as a user would: as processes, with files for what they print.

Every process dies with this one, and carries a mark of its run in its environment, which its children inherit: so a
test can tell whether anything is left of it. Waiting is for conditions, with deadlines that `TIMEOUT_FACTOR` stretches.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from headgate.parent_death_signal import with_parent_death_signal

Answer = TypeVar("Answer")

TIMEOUT_FACTOR = float(os.environ.get("HEADGATE_TEST_PATIENCE", "4"))
"""Factor on every deadline; a deadline that passes is a failure, so a large one costs nothing while things work."""
TEST_SECONDS = 150 * TIMEOUT_FACTOR
"""For one test with its fixtures: above any deadline in it, so that the one that passes says what it waited for."""
MARK = "HEADGATE_TEST_RUN"
POLL_INTERVAL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """Return what it printed, as JSON."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def records(self) -> list[dict[str, Any]]:
        """Return what it printed, as one JSON object a line."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def error_message(self) -> str:
        """Return the one line that a user gets for a command that could not be carried out."""
        assert self.code != 0
        lines = self.err.splitlines()
        assert "Traceback" not in self.err
        assert len(lines) == 1, self.err
        assert lines[0].startswith("headgate: ")
        return lines[0]


class RunningProgram:
    """A command that runs; what it prints goes to ``out`` and ``err``."""

    def __init__(self, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.process = process
        self.out = out
        self.err = err

    def lines(self) -> list[str]:
        """Return the whole lines that it has printed so far."""
        return whole_lines(self.out)

    async def until_printed(self, count: int, seconds: float = 30.0) -> None:
        """Wait until it has printed at least so many whole lines."""

        def so_far() -> str:
            return (
                f"{self.out.name} has {len(self.lines())} of {count} lines, its exit code is {self.process.returncode}"
            )

        await wait_until(lambda: len(self.lines()) >= count, so_far, seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self, seconds: float = 20.0) -> int:
        """Return its exit code, once it has ended by itself."""
        async with asyncio.timeout(seconds * TIMEOUT_FACTOR):
            return await self.process.wait()

    async def terminate(self) -> int:
        """Ask it to end, and return its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        """End it with SIGKILL, if it has not ended: no goodbye, no flush."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


def whole_lines(path: Path) -> list[str]:
    """Return the lines of ``path``, without a last one that is still being written."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def jsonl(values: Iterable[Mapping[str, Any]]) -> bytes:
    """Return ``values`` as newline-delimited JSON."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


async def start(
    *arguments: str,
    out: Path,
    err: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    program: Sequence[str] = ("-m", "controller"),
) -> RunningProgram:
    """Start `headgate`, or another Python ``program``, with ``arguments``; ``out`` is appended to, so that several can share one file."""
    err = err or out.with_suffix(".err")
    with out.open("ab") as to_out, err.open("ab") as to_err:
        process = await asyncio.create_subprocess_exec(
            *with_parent_death_signal(sys.executable, *program, *arguments),
            stdin=stdin,
            stdout=to_out,
            stderr=to_err,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    return RunningProgram(process, out, err)


async def finish(
    *arguments: str,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = 30.0,
) -> CommandResult:
    """Run `headgate` with ``arguments`` to its end."""
    process = await asyncio.create_subprocess_exec(
        *with_parent_death_signal(sys.executable, "-m", "controller", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    communicating = asyncio.ensure_future(process.communicate(stdin))
    try:
        await asyncio.wait({communicating}, timeout=seconds * TIMEOUT_FACTOR)
        in_time = communicating.done()
    finally:
        # Also when the test gives up: what it started ends with it.
        if process.returncode is None:
            process.kill()
        out, err = await communicating
    assert in_time, f"headgate {' '.join(arguments)} did not end: {out.decode()} {err.decode()}"
    assert process.returncode is not None, "it was waited for"
    return CommandResult(process.returncode, out.decode(), err.decode())


async def wait_until(
    probe: Callable[[], Awaitable[Answer]] | Callable[[], Answer],
    what: str | Callable[[], str],
    seconds: float = 20.0,
) -> Answer:
    """Return the first answer of ``probe`` that holds; fails the test if none does in time, and says ``what``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds * TIMEOUT_FACTOR
    while True:
        found: Any = probe()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found  # type: ignore[no-any-return]
        if loop.time() >= deadline:
            raise AssertionError(
                f"not within {seconds * TIMEOUT_FACTOR:g} s: {what if isinstance(what, str) else what()}"
            )
        await asyncio.sleep(POLL_INTERVAL_SECONDS)


async def get(address: str, path: str) -> tuple[int, str]:
    """Return status and body of an HTTP answer; status 0 if there is none."""
    return await asyncio.to_thread(_get, f"http://{address}{path}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5 * TIMEOUT_FACTOR) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def metric(address: str, name: str, **labels: str) -> float:
    """Return the sum of the samples ``name`` that have ``labels``."""
    _, text = await get(address, "/metrics")
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition(" ")[0].partition("{")[0] == name and all(each in line for each in wanted)
    )


def marked(mark: str) -> list[psutil.Process]:
    """Return the live processes that carry ``mark``: those started with it, and what they started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # gone meanwhile, or somebody else's
    return found


def without_forks(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those whose parent is not among them: a child shows its parent's command line until it runs its own."""
    numbers = {process.pid for process in processes}
    return [process for process in processes if _parent(process) not in numbers]


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None


def command_line(process: psutil.Process) -> list[str]:
    """Return what ``process`` runs; nothing if it is gone meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
