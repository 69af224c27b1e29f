"""A whole node of `headgate up`, on free ports, in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any

import psutil

from tests.system.programs import MARK, Finished, Running, command_line, eventually, finish, get, marked, metric, start

ANY_PORTS = ("--mqtt-port", "0", "--zookeeper-port", "0", "--http-port", "0")


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
        self._running: Running | None = None

    async def up(self, *options: str, env: dict[str, str] | None = None) -> None:
        """Start it, and return once it says that it is ready."""
        self._starts += 1
        running = self._running = await start(
            *("up", "--data", str(self.data), *(options or ANY_PORTS)),
            out=self.folder / f"up-{self._starts}.out",
            env=self.env | (env or {}),
            cwd=self.folder,
        )
        await eventually(
            lambda: "Ctrl-C stops everything" in running.err.read_text() or running.process.returncode is not None,
            "the node is ready",
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

    async def clean_up(self) -> None:
        """End whatever is left."""
        if self._running is not None and self._running.process.returncode is None:
            await self.down()
        for process in marked(self.mark):
            process.kill()

    async def command(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> Finished:
        """Run a client command."""
        return await finish("--config", str(self.config), *arguments, stdin=stdin, env=self.env, seconds=seconds)

    async def done(self, *arguments: str, stdin: bytes = b"", seconds: float = 30.0) -> Finished:
        """Run a client command that must succeed."""
        finished = await self.command(*arguments, stdin=stdin, seconds=seconds)
        assert finished.code == 0, finished.err
        return finished

    async def running(self, name: str, *arguments: str, out: Path | None = None, piped: bool = False) -> Running:
        """Start a client command; ``piped``: its standard input is ours."""
        return await start(
            *("--config", str(self.config), *arguments),
            out=out or self.folder / f"{name}.out",
            err=self.folder / f"{name}.err",
            env=self.env,
            stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
        )

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

        await eventually(reached, lambda: f"/readyz says {state} and not {seen}", seconds)
        return seen

    def part(self, *words: str) -> psutil.Process:
        """Return the one process of this node whose command line holds all of ``words``."""
        found = [each for each in marked(self.mark) if all(word in " ".join(command_line(each)) for word in words)]
        assert len(found) == 1, [command_line(each) for each in found]
        return found[0]
