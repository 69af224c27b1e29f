"""A whole node of `headgate up`, in a folder of its own, on ports that are held for it while it is down, too."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from controller.local.reserved_port import ReservedPort
from tests.support.programs import (
    MARK,
    CommandResult,
    RunningProgram,
    command_line,
    finish,
    get,
    marked,
    metric,
    start,
    wait_until,
    without_forks,
)

PORTS = ("--mqtt-port", "--zookeeper-port", "--http-port")
ANY_PORTS = tuple(word for option in PORTS for word in (option, "0"))


class Node:
    """One node; a test that stops it or breaks a part of it leaves it well again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "headgate-data"
        self.config = self.data / "client.toml"
        self.mark = uuid.uuid4().hex
        self.env = {MARK: self.mark}
        self.http = ""
        self.said = ""
        self._starts = 0
        self._running: RunningProgram | None = None
        self._programs: list[RunningProgram] = []
        self._ports = ExitStack()
        self._port_options: list[str] = []

    async def up(self, *options: str, env: dict[str, str] | None = None) -> None:
        """Start it, on ports of its own unless there are ``options``; return once it says that it is ready."""
        self._starts += 1
        running = self._running = await start(
            *("up", "--data", str(self.data), *(options or self._held_ports())),
            out=self.folder / f"up-{self._starts}.out",
            env=self.env | (env or {}),
            cwd=self.folder,
        )
        await wait_until(
            lambda: "Ctrl-C stops everything" in running.err.read_text() or running.process.returncode is not None,
            lambda: f"the node is ready: {running.err.read_text()}",
            60,
        )
        self.said = running.err.read_text()
        found = re.search(r"status +http://(\S+)/\n", self.said)
        assert found, self.said
        self.http = found[1]

    async def down(self) -> int:
        """End it with SIGTERM; return the exit code."""
        assert self._running is not None, "not up"
        return await self._running.terminate()

    @property
    def is_up(self) -> bool:
        """Whether it was started and has not ended."""
        return self._running is not None and self._running.process.returncode is None

    def _held_ports(self) -> list[str]:
        if not self._port_options:
            ports = [str(self._ports.enter_context(ReservedPort()).number) for _ in PORTS]
            self._port_options = [word for pair in zip(PORTS, ports, strict=True) for word in pair]
        return self._port_options

    async def end_programs(self) -> None:
        """End what was started with `running` and still runs: whoever failed leaves nobody behind for the next."""
        for program in self._programs:
            await program.kill()
        self._programs.clear()

    async def clean_up(self) -> None:
        """End whatever is left."""
        with self._ports:
            await self.end_programs()
            if self.is_up:
                await self.down()
            for process in marked(self.mark):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    async def command(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a client command."""
        return await finish("--config", str(self.config), *arguments, stdin=stdin, env=self.env, seconds=seconds)

    async def done(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> CommandResult:
        """Run a client command that must succeed."""
        finished = await self.command(*arguments, stdin=stdin, seconds=seconds)
        assert finished.code == 0, finished.err
        return finished

    async def running(self, name: str, *arguments: str, out: Path | None = None, piped: bool = False) -> RunningProgram:
        """Start a client command, which ends with the test at the latest; ``piped``: its standard input is ours."""
        return await self._start(
            *("--config", str(self.config), *arguments),
            out=out or self.folder / f"{name}.out",
            err=self.folder / f"{name}.err",
            stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
        )

    async def program(self, path: Path, *arguments: str, out: Path) -> RunningProgram:
        """Start a Python program that is a client of this node, which ends with the test at the latest."""
        return await self._start(*arguments, "--config", str(self.config), program=(str(path),), out=out)

    async def _start(self, *arguments: str, **how: Any) -> RunningProgram:
        running = await start(*arguments, env=self.env, **how)
        self._programs.append(running)
        return running

    async def consumed(self, topic: str, subscription: str, kind: str = "stream") -> list[dict[str, Any]]:
        """Return what one consumer prints until it is caught up."""
        finished = await self.done(
            *("consume", topic, "--subscription", subscription, "--type", kind),
            *("--from", "earliest", "--exit-when-caught-up"),
        )
        return finished.records()

    async def metric(self, name: str, **labels: str) -> float:
        """Return a metric, summed over its other labels."""
        return await metric(self.http, name, **labels)

    async def until_metric(self, name: str, expected: float, **labels: str) -> None:
        """Wait until a metric has this value; metrics are rendered once a second, and gauges set every few."""
        seen = 0.0

        async def reached() -> bool:
            nonlocal seen
            seen = await self.metric(name, **labels)
            return seen == expected

        await wait_until(reached, lambda: f"{name} {labels} is {expected:g} and not {seen:g}")

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Return status and report of /readyz."""
        status, body = await get(self.http, "/readyz")
        return status, json.loads(body) if body else {}

    async def until_state(self, state: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until /readyz says ``state``; return its report."""
        seen: dict[str, Any] = {}

        async def reached() -> bool:
            nonlocal seen
            _, seen = await self.health()
            return seen.get("state") == state

        await wait_until(reached, lambda: f"/readyz says {state} and not {seen}", seconds)
        return seen

    async def part(self, *words: str) -> psutil.Process:
        """Return the one process of this node whose command line holds all of ``words``, once there is just one.

        While it is being replaced there is none, and while it starts a child there seem to be two.
        """

        def found() -> list[psutil.Process]:
            return without_forks(
                [p for p in marked(self.mark) if all(word in " ".join(command_line(p)) for word in words)]
            )

        def one() -> psutil.Process | None:
            parts = found()
            return parts[0] if len(parts) == 1 else None

        part = await wait_until(one, lambda: f"one process {words}: {[command_line(each) for each in found()]}")
        assert part is not None
        return part
