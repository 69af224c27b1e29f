"""Time to compute an assignment, against the assignors of faust and kafka-python.

Ours is shard.balancing.target, called as a coordinator calls it. The others are the sticky
assignors of two Python clients for Kafka, called directly with inputs that were built before the
clock started. All sides get the same consumers, segments and previous balanced assignment. The
value is faust's time over ours when one consumer joins 1 000 that hold 10 000 segments.
kafka-python's assignor needs minutes for that, so it is compared at a tenth.

Moves are checked as well, because a segment that changes its owner is unread for a while: the
number of moves must equal the minimum that follows from the counts alone, and a split must not move
any segment that it does not touch.

`growth` is the time per segment at 10 000 consumers and 100 000 segments, over that at a tenth of
both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness import peer_assignors as peers
from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, Rounds, run_alternating
from shard.balancing.target import AssignmentInput, assign

SEGMENTS_EACH = 10
CONSUMERS, MANY_CONSUMERS, FEW_CONSUMERS = 1000, 10_000, 100


@dataclass(frozen=True, slots=True)
class Workload:
    """One change, and the assignment before it."""

    consumers: Sequence[str]
    segments: Collection[int]
    holders: Mapping[int, str]
    preferred_owners: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def held(self) -> dict[str, list[int]]:
        """Consumer → segments it holds and may keep."""
        held: dict[str, list[int]] = {name: [] for name in self.consumers}
        for segment, name in self.holders.items():
            if name in held:
                held[name].append(segment)
        return held

    def solve(self) -> dict[int, str]:
        """Return our target assignment."""
        return assign(AssignmentInput(self.segments, self.consumers, self.holders, self.preferred_owners))


def workloads(consumers: int) -> dict[str, Workload]:
    """Return all workloads for a number of consumers and ten times as many segments."""
    names = [f"consumer-{number:05}" for number in range(consumers)]
    segments = range(consumers * SEGMENTS_EACH)
    holders = assign(AssignmentInput(segments, names, {}))
    split = [*segments[1:], len(segments), len(segments) + 1]
    parent = [holders[0]]
    return {
        "full": Workload(names, segments, {}),
        "stable": Workload(names, segments, holders),
        "join_one": Workload([*names, "new"], segments, holders),
        "leave_one": Workload(names[:-1], segments, holders),
        "split_one": Workload(names, split, holders, {len(segments): parent, len(segments) + 1: parent}),
        "join_many": Workload([*names, *(f"new-{number}" for number in range(consumers // 10))], segments, holders),
    }


def moved(workload: Workload, target: Mapping[int, str]) -> int:
    """Return how many segments were moved away from consumers that remain."""
    there = set(workload.consumers)
    return sum(1 for s, name in target.items() if workload.holders.get(s) in there and workload.holders[s] != name)


def fewest_moves(held: Collection[int], segments: int) -> int:
    """Return the minimum number of moves that balances ``held`` segments per consumer.

    A consumer keeps at most its quota. The quotas differ by one, and the number of larger ones is fixed.
    """
    quota, larger = divmod(segments, len(held))
    above = [count - quota for count in held if count > quota]
    return sum(above) - min(larger, len(above))


def measure(effort: Effort) -> Measurement:
    """Return faust's time over ours when one consumer joins."""
    peers.install(effort.progress)
    rounds = effort.pick(11, 3)
    ours = workloads(CONSUMERS)
    timed = {name: _compare_with(peers.faust, ours[name], rounds, effort) for name in ("join_one", "leave_one", "full")}
    few = workloads(FEW_CONSUMERS)["join_one"]
    kafka = _compare_with(peers.kafka, few, effort.pick(3, 1), effort)
    parts: dict[str, Part] = {**_speed(timed, kafka), **_moves(ours, few)}
    many = workloads(effort.pick(MANY_CONSUMERS, CONSUMERS * 3))
    for name in ("join_one", "full"):
        parts[f"{name}_growth"] = _growth(ours[name], many[name], rounds, effort)
    return Measurement(timed["join_one"].median_ratio("peer", "ours").value, parts)


def _compare_with(
    peer: Callable[[peers.Held, int], Callable[[], Any]], workload: Workload, rounds: int, effort: Effort
) -> Rounds:
    ready = [peer(workload.held, len(workload.segments)) for _ in range(rounds + 1)]

    def call() -> object:
        # A new input for each round, because the assignor changes it.
        return ready.pop()()

    return run_alternating({"peer": call, "ours": workload.solve}, rounds, effort.progress)


def _speed(timed: Mapping[str, Rounds], kafka: Rounds) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, rounds in timed.items():
        compared = rounds.median_ratio("peer", "ours")
        parts |= {
            f"{name}_over_ours": round(compared.value, 1),
            f"{name}_faust_ms": compared.parts["peer_ms"],
            f"{name}_ours_ms": compared.parts["ours_ms"],
            f"{name}_lowest": compared.parts["lowest"],
        }
    parts["kafka_join_one_over_ours_at_a_tenth"] = round(kafka.median_ratio("peer", "ours").value, 1)
    return parts


def _moves(ours: Mapping[str, Workload], few: Workload) -> dict[str, Part]:
    """Return the moves; fail if ours are not the fewest, or if a split moves a segment that it does not touch."""
    parts: dict[str, Part] = {}
    for name, workload in ours.items():
        target = workload.solve()
        counts = Counter(target.values())
        assert max(counts.values()) - min(counts[each] for each in workload.consumers) <= 1, f"{name} is not balanced"
        parts[f"{name}_moved"] = moved(workload, target)
        grantable = set(workload.segments)
        held = [sum(1 for segment in keys if segment in grantable) for keys in workload.held.values()]
        assert parts[f"{name}_moved"] == fewest_moves(held, len(grantable)), f"{name} moves more than it must"
    assert parts["split_one_moved"] == 0, "a split moved what it does not touch"
    join = ours["join_one"]
    parts["join_one_moved_faust"] = moved(join, peers.faust_owners(peers.faust(join.held, len(join.segments))()))
    parts["join_one_moved_kafka_at_a_tenth"] = moved(
        few, peers.kafka_owners(peers.kafka(few.held, len(few.segments))())
    )
    return parts


def _growth(small: Workload, large: Workload, rounds: int, effort: Effort) -> float:
    timed = run_alternating({"large": large.solve, "small": small.solve}, rounds, effort.progress)
    return round(timed.median_ratio("large", "small").value * len(small.segments) / len(large.segments), 2)


BENCHMARK = Benchmark(
    unit="times faster than faust when one joins",
    goal=35,
    better="higher",
    measure=measure,
    part_goals={"leave_one_over_ours": 7, "full_over_ours": 100},
)
