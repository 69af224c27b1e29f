"""Draws what happens in one simulated run, as a list that can be cut: its programs, and its faults and commands.

A plan says which programs run, which operations are injected when, and how large and busy the world is. Every step has a
seed of its own, and steps have absolute times, so a plan without some of its parts still does the others as before.
The salt changes what a plan leaves open (delays, pauses, keys): cutting moves these too, and shrinking tries some salts.

Most seeds are sparse worlds: long quiet times, which cost little, and bursts of records around each fault. One of a
hundred is a busy world, in which everything happens all the time.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Self

OPERATIONS: Final = (
    "split",
    "split_twice",
    "split_twice",
    "merge",
    "crash_leader",
    "crash_leader",
    "freeze_leader",
    "restart_broker",
    "unreliable_network",
    "unreliable_network",
    "unreliable_network",
    "zookeeper_outage",
    "expire_session",
    "store_trouble",
    "store_trouble",
    "consumer_joins",
    "consumer_leaves",
    "consumer_vanishes",
    "daemon_stops",
    "seek",
    "seek",
    "delete_subscription",
    "clock_step",
    "damaged_reads",
)
"""The operations of `FaultInjector`; one that is listed several times is drawn as many times as often."""
BUSY_EVERY: Final = 100
SOMETIMES: Final = {"import": 0.1, "forger": 0.1, "faulty": 0.15, "quotas": 0.1}
"""Probability of a program that continues at its source position, of one that forges announcements, of one that changes
batches of others, and of quotas that clients exceed."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large and how busy a world is. Pairs are ranges."""

    steps: tuple[int, int]
    short_gap_seconds: tuple[float, float]
    long_gap_seconds: tuple[float, float]
    """Time between two steps. Two of three gaps are short: faults that meet find more than faults alone."""
    producers: tuple[int, int]
    stream_consumers: tuple[int, int]
    queue_consumers: tuple[int, int]
    idle_seconds: tuple[float, float] | None
    """Pauses of clients outside bursts; None: one burst without end."""
    maintenance_seconds: tuple[float, float]
    """Pauses between attempts to take a snapshot and to compact."""
    hurried: bool
    """Whether the durations of coordinators and of trimming are far below their defaults."""


BUSY: Final = Scale(
    steps=(14, 14),
    short_gap_seconds=(0.2, 6),
    long_gap_seconds=(0.2, 6),
    producers=(2, 2),
    stream_consumers=(1, 6),
    queue_consumers=(1, 3),
    idle_seconds=None,
    maintenance_seconds=(0.5, 3),
    hurried=True,
)
SPARSE: Final = Scale(
    steps=(3, 9),
    short_gap_seconds=(0.1, 4),
    long_gap_seconds=(10, 150),
    producers=(1, 2),
    stream_consumers=(1, 3),
    queue_consumers=(0, 1),
    idle_seconds=(30, 200),
    maintenance_seconds=(5, 40),
    hurried=False,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One injected fault or command."""

    number: int
    at_seconds: float
    """When its burst of records begins."""
    lead_seconds: float
    """How much later the operation follows."""
    burst_seconds: float
    operation: str
    seed: int

    @property
    def name(self) -> str:
        """Its name in a plan's parts."""
        return f"{self.number}:{self.operation}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in one run."""

    seed: int
    scale: Scale
    programs: tuple[str, ...]
    steps: tuple[Step, ...]
    salt: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of everything that can be left out."""
        return (*(step.name for step in self.steps), *self.programs)

    def only(self, parts: Collection[str], salt: int = 0) -> Self:
        """Return the plan with these parts; raises ValueError for a name that it does not have."""
        if unknown := sorted(set(parts) - set(self.parts)):
            raise ValueError(f"seed {self.seed} has no {', '.join(unknown)}; its parts: {', '.join(self.parts)}")
        return dataclasses.replace(
            self,
            programs=tuple(name for name in self.programs if name in parts),
            steps=tuple(step for step in self.steps if step.name in parts),
            salt=salt,
        )

    def rng(self, purpose: str) -> random.Random:
        """Return the random numbers for one purpose, independent of all others."""
        return random.Random(f"{self.seed}/{self.salt}/{purpose}")


def plan_of(seed: int, scale: Scale | None = None) -> Plan:
    """Draw the plan of ``seed``."""
    rng = random.Random(f"{seed}/plan")
    drawn = scale or (SPARSE if seed % BUSY_EVERY else BUSY)
    programs = [
        *(f"producer-{number}" for number in range(rng.randint(*drawn.producers))),
        *(f"stream-{number}" for number in range(rng.randint(*drawn.stream_consumers))),
        *(f"queue-{number}" for number in range(rng.randint(*drawn.queue_consumers))),
        "checkpoint",
        "devices",
        "maintenance",
        *(name for name, probability in SOMETIMES.items() if rng.random() < probability),
    ]
    steps = []
    at_seconds = 0.0
    for number in range(1, rng.randint(*drawn.steps) + 1):
        at_seconds += rng.uniform(
            *rng.choice([drawn.short_gap_seconds, drawn.short_gap_seconds, drawn.long_gap_seconds])
        )
        lead, burst = rng.uniform(0, 1), rng.uniform(0.5, 2.5)
        steps.append(Step(number, at_seconds, lead, burst, rng.choice(OPERATIONS), rng.getrandbits(32)))
    return Plan(seed, drawn, tuple(programs), tuple(steps))
