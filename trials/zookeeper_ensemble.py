"""ZooKeeper servers that form an ensemble on loopback, for tests and trials on one machine.

They speak to each other without TLS. The limits suit one machine: a follower that is silent for two seconds is dropped.
A member serves once it is connected to a majority, so all members are started at the same time.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.local.certificates import ServerTls
from controller.local.embedded import EmbeddedZooKeeper, probe
from controller.local.reserved_port import LOOPBACK
from controller.local.supervised_process import PROBE_TIMEOUT_SECONDS, ProcessSpec

INIT_TICKS: Final = 60
"""Longest start of a follower: 30 s of half a second each, for a busy machine."""
SYNC_TICKS: Final = 4


class EnsembleServer(EmbeddedZooKeeper):
    _main_class = "quorum.QuorumPeerMain"

    def __init__(
        self, folder: Path, port: int, number: int, peer_ports: list[tuple[int, int]], tls: ServerTls | None = None
    ) -> None:
        """Prepare the server ``number`` (from 1). ``peer_ports``: of each server, for followers and for elections."""
        super().__init__(folder, port, tls=tls)
        self.number = number
        self._peer_ports = peer_ports

    async def leads(self) -> bool:
        """Return whether it leads its ensemble; False also while it does not answer."""
        if self.pid is None:
            return False
        context = None if self._tls is None else self._tls.client_context()
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                return b"Mode: leader" in await probe(self.port, context, b"srvr", 1024)
        return False

    async def _process_spec(self, port: int) -> ProcessSpec:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        (self.folder / "data" / "myid").write_text(f"{self.number}\n")
        return await super()._process_spec(port)

    def _settings(self, port: int) -> str:
        return super()._settings(port) + ensemble_settings(self._peer_ports)


def ensemble_settings(peer_ports: list[tuple[int, int]]) -> str:
    """Return what the zoo.cfg of each member contains beside the settings of a server on its own."""
    host = f"[{LOOPBACK}]" if ":" in LOOPBACK else LOOPBACK
    servers = [f"server.{number}={host}:{ports[0]}:{ports[1]}" for number, ports in enumerate(peer_ports, 1)]
    return "".join(f"{line}\n" for line in (f"initLimit={INIT_TICKS}", f"syncLimit={SYNC_TICKS}", *servers))


def ensemble(
    folder: Path, servers: int, free_port: Callable[[], int], tls: ServerTls | None = None
) -> list[EnsembleServer]:
    """Return ``servers`` members that are not started; ``free_port`` returns another port each time."""
    peer_ports = [(free_port(), free_port()) for _ in range(servers)]
    return [
        EnsembleServer(folder / f"zookeeper-{number}", free_port(), number, peer_ports, tls)
        for number in range(1, servers + 1)
    ]
