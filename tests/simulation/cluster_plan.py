"""Draws what is special in the plans of several shards: their size, their extra parts, and the operations on leaders.

Pure, and with random numbers of its own. One of seven sparse seeds is such a world, so all other seeds draw what they would
draw without it. A calm plan has only operations that no client may notice, so more can be checked.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.layout import shard_of

CLUSTERED_EVERY: Final = 7
CLUSTERED_REST: Final = 3
MAIN_TOPIC: Final = "orders"
DAEMONS: Final = 2
"""In every world; `daemon-3` and `daemon-4` are parts of a plan."""
_OPERATIONS = """
    shard_transfer shard_transfer shard_transfer daemon_drain daemon_drain daemon_undrain rolling_restart
    describe_cluster
"""
OPERATIONS: Final = tuple(_OPERATIONS.split())
"""The graceful operations of `Operators`; one that is listed several times is drawn as many times as often."""
FAULTS: Final = ("crash_in_transfer", "crash_in_transfer", "cut_in_transfer", "cut_in_transfer", "abandoned_successor")
"""Its operations that disturb a transfer."""
CUT: Final = "broker_cut"
"""In one of four worlds that are not calm, it is the only fault: a cut then has an effect that is known exactly."""
GRACEFUL: Final = frozenset(OPERATIONS) | {"split", "split_twice", "merge", "consumer_joins"}
HASTE: Final = 0.5
"""Part of the time of another sparse plan. More shards and daemons cost more, and transfers are short."""


@dataclass(frozen=True, slots=True)
class ClusterDraw:
    """What replaces parts of a sparse plan."""

    shards: int
    calm: bool
    programs: tuple[str, ...]
    """Added to the others."""
    operations: tuple[str, ...]


def is_clustered(seed: int) -> bool:
    """Return whether the sparse world of ``seed`` has several shards or daemons."""
    return seed % CLUSTERED_EVERY == CLUSTERED_REST


def draw(seed: int, operations: Sequence[str]) -> ClusterDraw:
    """Draw the cluster of ``seed``; ``operations`` are those of its steps so far."""
    rng = random.Random(f"{seed}/cluster")
    shards = rng.choice([1, 2, 2, 3, 3, 4])
    daemons = rng.choice([2, 3, 3, 4])
    calm = rng.random() < 1 / 3
    main = shard_of(MAIN_TOPIC, shards)
    programs = [f"daemon-{number}" for number in range(DAEMONS + 1, daemons + 1)]
    programs += [f"shard-{shard}" for shard in range(shards) if shard != main]
    drawn = []
    for operation in operations:
        other = rng.choice(OPERATIONS if calm or rng.random() < 1 / 2 else FAULTS)
        keeps = operation in GRACEFUL if calm else rng.random() < 1 / 3
        drawn.append(operation if keeps else other)
    if not calm and random.Random(f"{seed}/{CUT}").random() < 1 / 4:
        drawn = [operation if operation in GRACEFUL else CUT for operation in drawn]
    return ClusterDraw(shards, calm, tuple(programs), tuple(drawn))


def is_calm(operations: Collection[str], programs: Collection[str], disturbing: Collection[str]) -> bool:
    """Return whether clients may notice nothing: no fault, and no program that disturbs others."""
    return set(operations) <= GRACEFUL and not set(programs) & set(disturbing)


def topic_on(shard: int, shards: int) -> str:
    """Return the name of the topic that a world has on ``shard``."""
    names = [MAIN_TOPIC, *(f"{MAIN_TOPIC}-{number}" for number in range(100))]
    return next(name for name in names if shard_of(name, shards) == shard)
