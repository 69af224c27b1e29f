"""What the other daemons of a simulated cluster answer, without the HTTP between them.

A daemon that is frozen, or has ended while it is still registered, does not answer in time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from controller.cluster.peers import TIMEOUT_SECONDS, Peers
from controller.leadership.election import Registry
from web.api.documents import DaemonDocument, DaemonPart

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

LATENCY_SECONDS = 0.002


class SimulatedPeers(Peers):
    def __init__(self, instance: str, simulation: ClusterSimulation, registry: Callable[[], Registry]) -> None:
        super().__init__(instance, ssl.create_default_context, registry=registry, token_for=str)
        self._simulation = simulation

    async def parts(self) -> list[DaemonPart]:
        await self._find()
        return list(await asyncio.gather(*(self._answer(name) for name in sorted(self.known) if name != self.instance)))

    async def _answer(self, name: str) -> DaemonPart:
        daemon = next((each for each in self._simulation.daemons if each.name == name and not each.frozen), None)
        if daemon is None:
            await asyncio.sleep(TIMEOUT_SECONDS)
            problem = f"daemon {name!r} did not answer within {TIMEOUT_SECONDS:g} s"
            return DaemonPart(daemon=DaemonDocument(daemon=name, state="unreachable", problem=problem))
        await asyncio.sleep(LATENCY_SECONDS)
        return await daemon.cluster_status.part()
