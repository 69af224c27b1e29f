"""What every fault has: a name, a duration, and what begins and ends it. A fault acts on a stage.

A fault changes processes and connections; it decides nothing. ``end`` restores what ``begin`` changed, also if a daemon
ended on its own meanwhile.
"""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

from chaos.cluster import DAEMONS, ORDERS, TOPICS, ChaosCluster
from chaos.operator import Operator
from headgate.errors import HeadgateError

ALL_TOPICS: Final = frozenset(TOPICS)
CATALOGUE: Final[dict[str, type["Fault"]]] = {}
"""All faults of the modules that were imported, by name."""


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: ChaosCluster
    operator: Operator
    rng: random.Random

    async def leader(self) -> str:
        """Return the daemon that leads the shard of the orders. Raises HeadgateError if there is none in time."""
        name = await self.operator.leader_of(ORDERS)
        if name not in self.cluster.programs:
            raise HeadgateError(f"the leader, {name}, has just ended")
        return name

    def daemons(self) -> list[str]:
        return [name for name in DAEMONS if name in self.cluster.programs]


class Fault(ABC):
    """One fault. It is used once. The first line of its docstring says what happens, for people.

    A class with a name of its own is in the catalogue.
    """

    name: ClassVar[str]
    seconds: ClassVar[float] = 8.0
    """From beginning to end: twice the session time-out."""
    continuing: ClassVar[frozenset[str]] = frozenset()
    """Topics that must accept records meanwhile."""
    needs_shim: ClassVar[bool] = False
    needs_spark: ClassVar[bool] = False
    needs_tls: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            CATALOGUE[cls.name] = cls

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.note = ""
        """What it did, for people: which process, how often."""

    @classmethod
    def variant(cls, name: str, summary: str, **values: object) -> None:
        """Add a fault to the catalogue that differs from this one in these values only."""
        type(cls.__name__, (cls,), {"__doc__": summary, "name": name, **values})

    @classmethod
    def summary(cls) -> str:
        return (cls.__doc__ or "").partition("\n")[0]

    @abstractmethod
    async def begin(self) -> None:
        """Begin the fault."""

    async def end(self) -> None:  # noqa: B027 - the supervisor of a server that was killed does the rest
        """Restore what `begin` changed."""
