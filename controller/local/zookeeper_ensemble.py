"""The places of several ZooKeeper servers in one ensemble on loopback, and the settings that follow. Pure.

Servers of an ensemble speak to each other without TLS, so it is for tests and trials on one machine. The limits suit
servers on one machine: a follower that is silent for two seconds is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

INIT_TICKS: Final = 60
"""Longest start of a follower: 30 s of half a second each, for a busy machine."""
SYNC_TICKS: Final = 4


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One server of an ensemble."""

    number: int
    """From 1."""
    peer_ports: tuple[tuple[int, int], ...]
    """Of each server, in the order of their numbers: the port for its followers and the one for elections."""

    def settings(self, host: str) -> dict[str, str]:
        """Return what its zoo.cfg contains beside the settings of a server on its own; ``host`` as in a URL."""
        servers = {
            f"server.{number}": f"{host}:{follower_port}:{election_port}"
            for number, (follower_port, election_port) in enumerate(self.peer_ports, 1)
        }
        return {"initLimit": str(INIT_TICKS), "syncLimit": str(SYNC_TICKS), **servers}


def ensemble(servers: int, free_port: Callable[[], int]) -> list[EnsembleMember | None]:
    """Return the place of each of ``servers``; of a single one, None. ``free_port`` returns another one each time."""
    if servers == 1:
        return [None]
    peer_ports = tuple((free_port(), free_port()) for _ in range(servers))
    return [EnsembleMember(number, peer_ports) for number in range(1, servers + 1)]
