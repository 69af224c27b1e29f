"""One `headgate up` in a folder of its own, on ports that stay reserved while it is down."""

import re
import uuid
from contextlib import ExitStack, suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import psutil

from controller.local.reserved_port import ReservedPort
from controller.settings.load import load_settings
from tests.support.servers import programs

ROOT = Path(__file__).parents[3]
USER_PACKAGES = Path(__file__).with_name("user_packages")
PORTS = ("--mqtt-port", "--zookeeper-port", "--http-port")
ANY_PORTS = tuple(word for option in PORTS for word in (option, "0"))


def user_packages() -> dict[str, str]:
    """Return the environment of a program that finds only what users install, which is in constraints.txt."""
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    of_users = pinned | {"headgate-client", "headgate-daemon"}
    hidden = [
        module
        for module, names in packages_distributions().items()
        if of_users.isdisjoint(re.sub(r"[-_.]+", "-", name).lower() for name in names)
    ]
    return {"PYTHONPATH": str(USER_PACKAGES), "HEADGATE_HIDDEN_PACKAGES": " ".join(hidden)}


class Node:
    """One node. A test that stops it or a part of it leaves it running for the next test."""

    def __init__(self, folder: Path, *, tls: bool = False, env: dict[str, str] | None = None) -> None:
        self.tls = tls
        self.folder = folder
        self.data = folder / "headgate-data"
        self.config = self.data / "client.toml"
        self.run_id = uuid.uuid4().hex
        self.env = {programs.RUN_ID: self.run_id} | (env or {})
        self.commands = programs.ClientCommands(folder, self.config, self.env)
        self.http_address: programs.HttpAddress
        self.start_output = ""
        """What the last start printed."""
        self._starts = 0
        self._program: programs.RunningProgram | None = None
        self._ports = ExitStack()
        self._port_options: list[str] = []

    async def up(self, *options: str, env: dict[str, str] | None = None) -> None:
        """Start it and return when it is ready. Without ``options`` it gets ports of its own."""
        self._starts += 1
        program = self._program = await programs.start(
            *("up", "--data", str(self.data), *(options or self._reserved_ports()), *["--tls"] * self.tls),
            out=self.folder / f"up-{self._starts}.out",
            env=self.env | user_packages() | (env or {}),
            cwd=self.folder,
        )
        await programs.wait_until(
            lambda: "Ctrl-C stops everything" in program.errors() or program.returncode is not None,
            lambda: f"the node is ready: {program.errors()}",
            60,
        )
        self.start_output = program.errors()
        found = re.search(r"status +https?://(\S+)/\n", self.start_output)
        assert found, self.start_output
        # A busy machine may need more than the 4 s after which a command reports that there is no connection.
        self.config.write_text(f"broker_timeout_seconds = 30.0\n{self.config.read_text()}")
        self.http_address = programs.HttpAddress(found[1], load_settings(self.data / "headgate.toml"))

    async def down(self) -> int:
        """Stop it with SIGTERM; return the exit code."""
        assert self._program is not None, "not up"
        return await self._program.terminate()

    @property
    def is_up(self) -> bool:
        """Whether it was started and has not ended."""
        return self._program is not None and self._program.returncode is None

    def _reserved_ports(self) -> list[str]:
        if not self._port_options:
            ports = [str(self._ports.enter_context(ReservedPort()).number) for _ in PORTS]
            self._port_options = [word for pair in zip(PORTS, ports, strict=True) for word in pair]
        return self._port_options

    async def clean_up(self) -> None:
        """End everything that is left."""
        with self._ports:
            await self.commands.kill_all()
            if self.is_up:
                await self.down()
            for process in programs.processes_of(self.run_id):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    async def consume(self, topic: str, subscription: str, kind: str = "stream") -> list[dict[str, Any]]:
        """Return what one consumer prints until it has caught up."""
        result = await self.commands.succeed(
            *("consume", topic, subscription, "--type", kind), *("--from", "earliest", "--exit-when-caught-up")
        )
        return result.records()

    async def until_metric(self, name: str, expected: float, **labels: str) -> None:
        """Wait until a metric has this value. Metrics are rendered once a second, gauges set every few."""
        value = 0.0

        async def reached() -> bool:
            nonlocal value
            value = await programs.metric(self.http_address, name, **labels)
            return value == expected

        await programs.wait_until(reached, lambda: f"{name} {labels} is {expected:g}; it is {value:g}")

    async def until_state(self, state: str) -> dict[str, Any]:
        """Wait until /readyz reports ``state``; return its report."""
        report: dict[str, Any] = {}

        async def reached() -> bool:
            nonlocal report
            _, report = await programs.health(self.http_address)
            return report.get("state") == state

        await programs.wait_until(reached, lambda: f"/readyz reports {state}; it reports {report}", 60)
        return report

    async def process(self, *words: str) -> psutil.Process:
        """Return the one process of this node whose command line contains all ``words``, once there is exactly one.

        There is none while it is being replaced, and there seem to be two while it starts a child.
        """

        def find() -> list[psutil.Process]:
            found = programs.processes_of(self.run_id)
            return programs.without_forks(
                [each for each in found if all(word in " ".join(programs.command_line(each)) for word in words)]
            )

        def one() -> psutil.Process | None:
            found = find()
            return found[0] if len(found) == 1 else None

        return await programs.wait_until(
            one, lambda: f"one process {words}: {[programs.command_line(each) for each in find()]}"
        )
