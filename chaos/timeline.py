"""What happened when: latencies and outages, from the times of single operations. Pure.

All times are nanoseconds of the machine's monotonic clock, which all processes share and which no fault steps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """One fault, as it happened."""

    name: str
    summary: str
    began_ns: int
    ended_ns: int
    note: str = ""
    """What it did: which process, and how often."""
    continuing: frozenset[str] = frozenset()
    """Topics that it does not concern, and that must accept records meanwhile."""


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """What clients noticed of one fault, from its beginning until the next one began."""

    acknowledged: int
    """Records acknowledged until it ended, of all topics."""
    delivered: int
    commands: int
    """Commands that succeeded until it ended, such as splits."""
    failed_commands: int
    outage_seconds: Mapping[str, float]
    """Topic → the longest time without an acknowledged record."""
    longest_latency_ms: float
    """From `send` to the acknowledgement, of the records that were acknowledged meanwhile."""
    children_wait_seconds: float
    """Longest wait of a segment, created meanwhile by a split or merge, until a consumer got its first record."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A command of the operator."""

    name: str
    began_ns: int
    ended_ns: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each operation of a run was done."""

    began_ns: int
    ended_ns: int
    acknowledged: Mapping[str, Sequence[tuple[int, int]]]
    """Topic → (when it was sent, when it was acknowledged) of each record, by the second."""
    delivered: Sequence[int]
    """When each delivery to a consumer was made, rising."""
    operations: Sequence[Operation] = field(default=())
    children: Sequence[tuple[int, int]] = field(default=())
    """When a split or merge had created each child and a record of it was stored, and when a consumer got one."""

    def effect(self, fault: FaultWindow, until_ns: int) -> FaultEffect:
        """Return what clients noticed of ``fault``; the next one begins at ``until_ns``."""
        done = {topic: [at for _, at in records] for topic, records in self.acknowledged.items()}
        latencies = [
            (at - sent) / 1e6
            for records in self.acknowledged.values()
            for sent, at in records
            if fault.began_ns <= at <= until_ns
        ]
        commands = [each for each in self.operations if fault.began_ns <= each.ended_ns <= fault.ended_ns]
        return FaultEffect(
            acknowledged=sum(count_between(times, fault.began_ns, fault.ended_ns) for times in done.values()),
            delivered=count_between(self.delivered, fault.began_ns, fault.ended_ns),
            commands=sum(not each.error for each in commands),
            failed_commands=sum(bool(each.error) for each in commands),
            outage_seconds={
                topic: longest_gap_seconds(times, fault.began_ns, until_ns) for topic, times in done.items()
            },
            longest_latency_ms=max(latencies, default=0.0),
            children_wait_seconds=max(
                (max(0, got - made) / SECOND_NS for made, got in self.children if fault.began_ns <= made <= until_ns),
                default=0.0,
            ),
        )


def count_between(times: Sequence[int], began_ns: int, ended_ns: int) -> int:
    """Return how many of ``times``, which rise, are in a window."""
    return bisect_right(times, ended_ns) - bisect_left(times, began_ns)


def longest_gap_seconds(times: Sequence[int], began_ns: int, ended_ns: int) -> float:
    """Return the longest time between two of ``times``, which rise, or an edge of the window and one of them."""
    inside = times[bisect_left(times, began_ns) : bisect_right(times, ended_ns)]
    edges = [began_ns, *inside, ended_ns]
    return max(after - before for before, after in pairwise(edges)) / SECOND_NS
