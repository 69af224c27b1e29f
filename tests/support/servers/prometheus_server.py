"""A real Prometheus with a configuration of ours."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from controller.local.reserved_port import ReservedPort
from controller.local.supervised_process import ProcessSpec, SupervisedProcess


class Prometheus:
    """The HTTP API of a running server."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session

    async def targets(self) -> list[dict[str, Any]]:
        """Return the active targets with their health and last error."""
        found: list[dict[str, Any]] = (await self._data("targets"))["activeTargets"]
        return found

    async def query(self, expression: str) -> dict[str, float]:
        """Return the newest samples: their labels as JSON → value."""
        result = (await self._data(f"query?query={quote(expression)}"))["result"]
        return {json.dumps(each["metric"], sort_keys=True): float(each["value"][1]) for each in result}

    async def is_ready(self) -> bool:
        async with self._session.get(f"http://{self._address}/-/ready") as response:
            return response.status == 200

    async def _data(self, path: str) -> Any:
        async with self._session.get(f"http://{self._address}/api/v1/{path}") as response:
            return (await response.json())["data"]


@asynccontextmanager
async def prometheus(config: Path, folder: Path) -> AsyncIterator[Prometheus]:
    """Run Prometheus on a free port of loopback, with its data in ``folder``."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing; it comes with Debian's package of that name"
    with ReservedPort() as port:
        address = f"127.0.0.1:{port.number}"
        command = [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        async with aiohttp.ClientSession() as session:
            server = Prometheus(address, session)
            spec = ProcessSpec("Prometheus", command, folder / "prometheus.log", server.is_ready)
            async with SupervisedProcess(spec):
                yield server
