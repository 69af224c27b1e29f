"""Run headgate as its users do: as processes, with files for their output.

Every process dies with this one. Each carries an identifier of its test run in its environment, which its children
inherit, so that a test can find what is left of it. Tests wait for conditions; `TIMEOUT_FACTOR` scales every deadline.
"""

import asyncio
import json
import os
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from controller.settings.load import Settings
from headgate.files.tls import client_context
from headgate.process.child_process import ChildProcess
from tests.support.servers.forked_commands import fork_command

Answer = TypeVar("Answer")

TIMEOUT_FACTOR = float(os.environ.get("HEADGATE_TEST_PATIENCE", "4"))
"""Factor on every deadline. A missed deadline is a failure, so a large factor costs nothing while tests pass."""
TEST_SECONDS = 150 * TIMEOUT_FACTOR
"""Time limit of one test with its fixtures: above every deadline in it, so that the deadline reports what is missing."""
RUN_ID = "HEADGATE_TEST_RUN"
"""Environment variable with the identifier of a test run."""
POLL_INTERVAL_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
SHARE_OF_WAIT = 1 / 16
"""Pause between two probes as a share of the wait until then: a server that is probed all the time starts later."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def records(self) -> list[dict[str, Any]]:
        """Return the output as one JSON object per line."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def error_message(self) -> str:
        """Return the one line that the user gets when a command fails."""
        assert self.code != 0
        lines = self.err.splitlines()
        assert "Traceback" not in self.err
        assert len(lines) == 1, self.err
        assert lines[0].startswith("headgate: ")
        return lines[0]


class RunningProgram(ChildProcess):
    """A program that runs; its output goes to files."""

    def lines(self) -> list[str]:
        """Return the complete lines that it has printed so far."""
        return whole_lines(self.output_path)

    def output(self) -> str:
        """Return its standard output so far."""
        return self.output_path.read_text()

    def errors(self) -> str:
        """Return its standard error so far."""
        return self.log_path.read_text()

    async def until_printed(self, count: int, seconds: float = 30.0) -> None:
        """Wait until it has printed at least ``count`` complete lines."""

        def progress() -> str:
            return (
                f"{self.output_path.name} has {len(self.lines())} of {count} lines, its exit code is {self.returncode}"
            )

        await wait_until(lambda: len(self.lines()) >= count, progress, seconds)

    async def ended(self, seconds: float = 20.0) -> int:
        """Wait for it to end; return its exit code."""
        async with asyncio.timeout(seconds * TIMEOUT_FACTOR):
            return await self.wait()

    async def terminate(self) -> int:
        """Stop it with SIGTERM; return its exit code. Fails if it does not end in time."""
        assert await self.stop(20 * TIMEOUT_FACTOR), f"still running after SIGTERM: {self.errors()}"
        return await self.wait()


def whole_lines(path: Path) -> list[str]:
    """Return the lines of ``path``, without a last line that is still being written."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def jsonl(values: Iterable[Mapping[str, Any]]) -> bytes:
    """Return ``values`` as newline-delimited JSON."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


Begin = Callable[..., Awaitable[RunningProgram]]


async def start(
    *arguments: str,
    out: Path,
    err: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    program: Sequence[str] = ("-m", "headgate"),
) -> RunningProgram:
    """Start `headgate`, or another Python ``program``; several programs may append to one ``out``."""
    return await RunningProgram.start(
        *(sys.executable, *program, *arguments),
        log_path=err or out.with_suffix(".err"),
        output_path=out,
        environ=env,
        cwd=cwd,
        stdin=stdin,
    )


async def fork(
    *arguments: str,
    out: Path,
    err: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> RunningProgram:
    """Start a client command or a daemon as `start` does, with less processor time."""
    err = err or out
    with out.open("ab") as output, err.open("ab") as log:
        streams, environ = (stdin, output.fileno(), log.fileno()), {**os.environ, **(env or {})}
        return RunningProgram(await fork_command(*arguments, streams=streams, environ=environ), err, out)  # type: ignore[arg-type]


async def finish(
    *arguments: str, stdin: bytes = b"", seconds: float = 30.0, begin: Begin = start, **options: Any
) -> CommandResult:
    """Run `headgate` with ``arguments`` to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        program = await begin(*arguments, out=out, err=Path(folder, "err"), stdin=asyncio.subprocess.PIPE, **options)
        assert program.stdin is not None, "it is a pipe"
        program.stdin.write(stdin)
        program.stdin.close()
        try:
            code = await program.ended(seconds)
        except TimeoutError:
            text = f"headgate {' '.join(arguments)} did not end: {program.output()} {program.errors()}"
            raise AssertionError(text) from None
        finally:
            # Also when the test is cancelled: the program must not outlive it.
            await program.kill()
        return CommandResult(code, program.output(), program.errors())


class ClientCommands:
    """Runs client commands against one cluster; programs that still run can be ended together."""

    def __init__(self, folder: Path, config: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self.config = config
        self._env = dict(env or {})
        self._programs: list[RunningProgram] = []

    async def finish(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a command to its end, whether it succeeds or fails."""
        words = "--config", str(self.config), *arguments
        return await finish(*words, stdin=stdin, env=self._env, seconds=seconds, begin=fork)

    async def succeed(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a command that must succeed."""
        result = await self.finish(*arguments, stdin=stdin, seconds=seconds)
        assert result.code == 0, result.err
        return result

    async def start(self, name: str, *arguments: str, out: Path | None = None, piped: bool = False) -> RunningProgram:
        """Start a command that prints to ``NAME.out`` and ``NAME.err``; ``piped`` makes its standard input a pipe."""
        return await self._start(
            fork,
            *("--config", str(self.config), *arguments),
            out=out or self._folder / f"{name}.out",
            err=self._folder / f"{name}.err",
            stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
        )

    async def start_script(
        self, path: Path, *arguments: str, out: Path, env: Mapping[str, str] | None = None
    ) -> RunningProgram:
        """Start a Python program that is a client of the cluster."""
        environ = {**self._env, **(env or {})}
        words = *arguments, "--config", str(self.config)
        return await self._start(start, *words, program=(str(path),), out=out, env=environ)

    async def kill_all(self) -> None:
        """Kill everything that was started and still runs."""
        for program in self._programs:
            await program.kill()
        self._programs.clear()

    async def _start(self, begin: Begin, *arguments: str, **options: Any) -> RunningProgram:
        program = await begin(*arguments, **({"env": self._env} | options))
        self._programs.append(program)
        return program


async def wait_until(
    probe: Callable[[], Awaitable[Answer]] | Callable[[], Answer],
    condition: str | Callable[[], str],
    seconds: float = 20.0,
    *,
    interval_seconds: float = POLL_INTERVAL_SECONDS,
) -> Answer:
    """Return the first true answer of ``probe``; fail with a description of ``condition`` if there is none in time.

    ``interval_seconds``: shortest pause between two probes. It is longer after a command, which costs what it waits for.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = started + seconds * TIMEOUT_FACTOR
    while True:
        began = loop.time()
        answer: Any = probe()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer  # type: ignore[no-any-return]
        if loop.time() >= deadline:
            text = condition if isinstance(condition, str) else condition()
            raise AssertionError(f"not within {seconds * TIMEOUT_FACTOR:g} s: {text}")
        pause = max(2 * (loop.time() - began), SHARE_OF_WAIT * (loop.time() - started))
        await asyncio.sleep(max(interval_seconds, min(pause, LONGEST_PAUSE_SECONDS)))


class HttpAddress(str):
    """``host:port`` of a daemon's HTTP server, with what its clients need: its authority and a token."""

    __slots__ = ("ca_file", "token")

    def __new__(cls, address: str, settings: Settings) -> Self:
        """``settings``: those of the daemon. The token is beside the file of hashes, as `headgate up --tls` writes it."""
        made = super().__new__(cls, address)
        http = settings.http
        made.ca_file = settings.broker.ca_file if http.certificate_file else None
        token = Path(http.tokens_file).with_name("http.token") if http.tokens_file else None
        made.token = token.read_text().strip() if token is not None and token.exists() else None
        return made

    def request(self, path: str, accept: str) -> tuple[urllib.request.Request, ssl.SSLContext | None]:
        headers = {"Accept": accept} | ({} if self.token is None else {"Authorization": f"Bearer {self.token}"})
        context = None if self.ca_file is None else client_context(ca_file=self.ca_file)
        scheme = "http" if context is None else "https"
        return urllib.request.Request(f"{scheme}://{self}{path}", headers=headers), context


async def get(address: HttpAddress, path: str, accept: str = "*/*") -> tuple[int, str]:
    """Return status and body of an HTTP response; status 0 if there is none."""
    return await asyncio.to_thread(_get, *address.request(path, accept))


def _get(request: urllib.request.Request, context: ssl.SSLContext | None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=5 * TIMEOUT_FACTOR, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def health(address: HttpAddress) -> tuple[int, dict[str, Any]]:
    """Return status and report of /readyz."""
    status, body = await get(address, "/readyz")
    return status, json.loads(body) if body else {}


async def metric(address: HttpAddress, name: str, *, accept: str = "*/*", **labels: str) -> float:
    """Return the sum of the samples ``name`` that have ``labels``."""
    _, text = await get(address, "/metrics", accept)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition(" ")[0].partition("{")[0] == name and all(label in line for label in wanted)
    )


def processes_of(run_id: str) -> list[psutil.Process]:
    """Return the live processes of a test run: those that were started with its identifier, and their children."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_ID) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # It ended meanwhile, or belongs to another user.
    return found


def without_forks(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Leave out children of other processes in the list: a fork shows its parent's command line until its exec."""
    pids = {process.pid for process in processes}
    return [process for process in processes if _parent(process) not in pids]


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of ``process``; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
