"""Draws what happens in one simulated run, as a list that can be cut: its programs, and its faults and commands.

A plan says which programs run, which operations are injected when, and how large and busy the world is. Every step has a
seed of its own, and steps have absolute times, so a plan without some of its parts still does the others as before.
The salt changes what a plan leaves open (delays, pauses, keys): cutting moves these too, and shrinking tries some salts.

Rare operations and programs are drawn from random numbers of their own, so the seeds that were known before they existed
still have the same parts beside them, and a command with ``--parts`` plays the same run.

Most seeds are sparse worlds: long quiet times, which cost little, and bursts of records around each fault. One of a
hundred is busy: everything happens all the time. From `FIRST_SMALL_SEED` on, one of 250 is, and three of four are small:
fewer programs and steps, and some programs not at all, because a feature that is left out lets others meet (Groce and
others, "Swarm Testing", 2012). One of seven has several shards or daemons, and
operations on their leaders (`tests.simulation.cluster_plan`); `plan_of(seed, SPARSE)` is its plan without them.
"""

import dataclasses
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from tests.simulation.cluster_plan import CUT, GRACEFUL, HASTE, draw, is_calm, is_clustered

_OPERATIONS = """
    split split_twice split_twice merge crash_leader crash_leader freeze_leader restart_broker unreliable_network
    unreliable_network unreliable_network zookeeper_outage expire_session store_trouble store_trouble consumer_joins
    consumer_leaves consumer_vanishes daemon_stops seek seek delete_subscription clock_step damaged_reads
"""
OPERATIONS: Final = tuple(_OPERATIONS.split())
"""The operations of `FaultInjector`; one that is listed several times is drawn as many times as often."""
_RARE_OPERATIONS = """
    damaged_object power_failure clock_drift other_versions retained_messages external_topic
"""
RARE_OPERATIONS: Final = tuple(_RARE_OPERATIONS.split())
"""The operations of `RareFaults`: one of them in some worlds, because they cost much."""
RARELY: Final = 0.1
"""Probability of a rare operation."""
BUSY_EVERY, FRESH_BUSY_EVERY = 100, 250
"""The second from `FIRST_SMALL_SEED` on: a busy world costs as much as fifteen others."""
SHARED_EVERY: Final = 5
"""Sparse seeds whose chunks are Parquet: as many of a thousand as CI played when all were."""
Chunks = Literal["parquet", "shared", "memory"]
"""Encoded, and decoded for each reader; encoded, and decoded once; neither."""
FIRST_SMALL_SEED: Final = 1000
SMALL_SHARE: Final = 0.75
"""Probability of a small world, from this seed on: tests name many of those before, and what they find."""
OPTIONAL: Final = ("checkpoint", "devices", "maintenance")
"""Programs that only some small worlds have."""
SOMETIMES: Final = {"import": 0.1, "forger": 0.1, "faulty": 0.15, "quotas": 0.1}
"""Probability of a program that continues at its source position, of one that forges announcements, of one that changes
batches of others, and of quotas that clients exceed."""

RARE_PROGRAMS: Final = {"external": 0.08, "rule_breaker": 0.04}
"""Probability of a topic whose records are elsewhere, and of a program that sends what no correct client sends. A world
with the second has the first too."""
RARE_CLIENTS: Final = {"large_records": 0.012, "first_version": 0.006, "crowd": 0.006}
"""Probability of records so large that weights follow them, and of a crowd of consumers at the end, of which some are of the
first version. Each has random numbers of its own."""
SITUATIONS: Final = {
    "inspector": 0.03,
    "late_pushes": 0.04,
    "late_pipeline": 0.03,
    "cut_producer": 0.06,
    "newcomers": 0.008,
    "slow_contender": 0.008,
    "workers": 0.04,
    "parkers": 0.04,
    "lasting": 0.05,
    "settings": 0.1,
    "growth": 0.08,
    "rebirth": 0.05,
    "inquirer": 0.05,
    "upgrade": 0.05,
    "tenants": 0.03,
    "hotspots": 0.04,
    "moved_clocks": 0.04,
}
"""Probability of each program of `tests.simulation.rare_programs`: the inspector and the hotspots in worlds that scale
and prune segments, those with odd seeds, and the producer that is cut beside the import program."""
DISTURBING: Final = frozenset([*SOMETIMES, *RARE_PROGRAMS, *RARE_CLIENTS, *SITUATIONS])


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
    optional: float
    """Probability of each of `OPTIONAL`."""
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
    optional=1.0,
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
    optional=1.0,
    hurried=False,
)
SMALL: Final = dataclasses.replace(SPARSE, steps=(2, 5), producers=(1, 1), stream_consumers=(1, 2), optional=0.5)


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
    shards: int = 1
    clustered: bool = False
    """Whether it has operations on leaders, and possibly several shards or more than two daemons."""

    @property
    def calm(self) -> bool:
        """Whether clients may notice nothing of it."""
        return is_calm([step.operation for step in self.steps], self.programs, DISTURBING)

    @property
    def cuts_only(self) -> bool:
        """Whether nothing but cuts from the broker disturbs the daemons."""
        return {step.operation for step in self.steps} <= GRACEFUL | {CUT}

    @property
    def chunks(self) -> Chunks:
        """How chunks are encoded and decoded (`tests.simulation.shared_decoding`)."""
        if self.scale is BUSY:
            return "parquet"
        return "memory" if self.seed % SHARED_EVERY else "shared"

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of everything that can be left out."""
        return (*(step.name for step in self.steps), *self.programs)

    @property
    def kinds(self) -> frozenset[str]:
        """Its programs and operations."""
        return frozenset([*self.programs, *(step.operation for step in self.steps)])

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
    rng = random.Random(f"{seed}/plan")
    drawn = scale or _scale_of(seed)
    programs = [
        *(f"producer-{number}" for number in range(rng.randint(*drawn.producers))),
        *(f"stream-{number}" for number in range(rng.randint(*drawn.stream_consumers))),
        *(f"queue-{number}" for number in range(rng.randint(*drawn.queue_consumers))),
        *(name for name in OPTIONAL if drawn.optional == 1 or rng.random() < drawn.optional),
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
    rarity = random.Random(f"{seed}/rare programs").random()
    programs += [name for name, probability in RARE_PROGRAMS.items() if rarity < probability]
    programs += _situations(seed, drawn, programs)
    programs += [name for name, probability in RARE_CLIENTS.items() if _draw(seed, name) < probability]
    plan = Plan(seed, drawn, tuple(programs), tuple(_with_rare_step(seed, steps)))
    return _clustered(plan) if scale is None and drawn is not BUSY and is_clustered(seed) else plan


def _draw(seed: int, purpose: str) -> float:
    return random.Random(f"{seed}/{purpose}").random()


def _situations(seed: int, scale: Scale, programs: Collection[str]) -> list[str]:
    """Draw the programs that make a situation, each from random numbers of its own."""
    pointless = {
        "inspector": seed % 2 == 0,
        "hotspots": seed % 2 == 0 or scale is BUSY or seed < FIRST_SMALL_SEED or "quotas" in programs,
        "cut_producer": "import" not in programs,
        "parkers": scale is BUSY,  # Each step of a resumption reads all chunks again: ten minutes.
        "settings": seed < FIRST_SMALL_SEED,
        # Parked records are processed slowly: those that are sent beside the fault take longer than it may last.
        "lasting": seed < FIRST_SMALL_SEED or _draw(seed, "parkers") < SITUATIONS["parkers"],
        "growth": scale is BUSY or "quotas" in programs,
        "upgrade": seed < FIRST_SMALL_SEED,
        "moved_clocks": seed < FIRST_SMALL_SEED,
        "tenants": scale is BUSY or seed < FIRST_SMALL_SEED or "quotas" in programs,
        "rebirth": scale is BUSY or seed < FIRST_SMALL_SEED or "quotas" in programs,
    }
    drawn = [name for name, share in SITUATIONS.items() if not pointless.get(name) and _draw(seed, name) < share]
    # Its level allows growth.
    return [*drawn, *["growth"] * ("upgrade" in drawn and "growth" not in drawn and not pointless["growth"])]


def _scale_of(seed: int) -> Scale:
    if not seed % (BUSY_EVERY if seed < FIRST_SMALL_SEED else FRESH_BUSY_EVERY):
        return BUSY
    small = seed >= FIRST_SMALL_SEED and random.Random(f"{seed}/scale").random() < SMALL_SHARE
    return SMALL if small else SPARSE


def _clustered(plan: Plan) -> Plan:
    """Return the plan with several shards or daemons; its times and numbers stay those of the sparse plan."""
    common = [step for step in plan.steps if step.operation not in RARE_OPERATIONS]
    drawn = draw(plan.seed, [step.operation for step in common])
    operations = {step.number: operation for step, operation in zip(common, drawn.operations, strict=True)}
    # The operations wait less long for a new leader than a slow one takes.
    left_out = {"slow_contender"} | (DISTURBING if drawn.calm else set())
    programs = [name for name in plan.programs if name not in left_out]
    steps = [
        dataclasses.replace(
            step, operation=operations.get(step.number, step.operation), at_seconds=HASTE * step.at_seconds
        )
        for step in plan.steps
        if not drawn.calm or step.number in operations
    ]
    return dataclasses.replace(
        plan, clustered=True, shards=drawn.shards, programs=(*programs, *drawn.programs), steps=tuple(steps)
    )


def _with_rare_step(seed: int, steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps in the order of time, with a rare one in some worlds. Its number is not one of the others."""
    rng = random.Random(f"{seed}/rare")
    if rng.random() >= RARELY:
        return steps
    at_seconds = rng.uniform(0, steps[-1].at_seconds)
    step = Step(
        0, at_seconds, rng.uniform(0, 1), rng.uniform(0.5, 2.5), rng.choice(RARE_OPERATIONS), rng.getrandbits(32)
    )
    return sorted([*steps, step], key=lambda each: each.at_seconds)
