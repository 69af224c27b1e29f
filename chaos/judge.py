"""Judge a run from what producers and consumers wrote, and from the ledger. Pure.

Nothing that a daemon reports is used. Each topic follows the rules of trials.judge, and beyond them:

7. A cluster that lost a server which it needs for elections or counts only, or one chunk of another shard, continues.
8. After each fault, every topic accepts records again.

A program that ended on its own is a violation, too.

All times of a timeline are nanoseconds of the machine's monotonic clock, which all processes share and no fault steps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from trials.judge import TopicEvidence, Violation, judge_topic

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FaultWindow:
    name: str
    summary: str
    began_ns: int
    ended_ns: int
    note: str = ""
    """What it did: which process, and how often."""
    continuing: frozenset[str] = frozenset()
    """Topics that it does not concern, and that must accept records meanwhile."""


class FaultEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in a report, and what clients noticed of it from its beginning until the next one began."""

    name: str
    summary: str
    note: str
    began_seconds: float
    ended_seconds: float
    acknowledged: int
    """Records acknowledged until it ended, of all topics."""
    delivered: int
    commands: int
    """Commands that succeeded until it ended, such as splits."""
    failed_commands: int
    longest_outage_seconds: float
    """Without an acknowledged record, on the topic that had the longest one."""
    children_wait_seconds: float
    """Longest wait of a segment, created meanwhile by a split or merge, until a consumer got its first record."""


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    began_ns: int
    ended_ns: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    began_ns: int
    ended_ns: int
    acknowledged: Mapping[str, Sequence[int]]
    """Topic → when each record was acknowledged, rising."""
    delivered: Sequence[int]
    """When each delivery to a consumer was made, rising."""
    operations: Sequence[Operation] = field(default=())
    children: Sequence[tuple[int, int]] = field(default=())
    """When a split or merge had created each child and a record of it was stored, and when a consumer got one."""

    def effect(self, fault: FaultWindow, until_ns: int) -> FaultEffect:
        """Return what clients noticed of ``fault``; the next one begins at ``until_ns``."""
        commands = [each for each in self.operations if fault.began_ns <= each.ended_ns <= fault.ended_ns]
        outages = [longest_gap_seconds(times, fault.began_ns, until_ns) for times in self.acknowledged.values()]
        waits = [got - made for made, got in self.children if fault.began_ns <= made <= until_ns]
        return FaultEffect(
            name=fault.name,
            summary=fault.summary,
            note=fault.note,
            began_seconds=round((fault.began_ns - self.began_ns) / SECOND_NS, 1),
            ended_seconds=round((fault.ended_ns - self.began_ns) / SECOND_NS, 1),
            acknowledged=sum(
                count_between(times, fault.began_ns, fault.ended_ns) for times in self.acknowledged.values()
            ),
            delivered=count_between(self.delivered, fault.began_ns, fault.ended_ns),
            commands=sum(not each.error for each in commands),
            failed_commands=sum(bool(each.error) for each in commands),
            longest_outage_seconds=round(max(outages, default=0.0), 2),
            children_wait_seconds=round(max([0, *waits]) / SECOND_NS, 1),
        )


def count_between(times: Sequence[int], began_ns: int, ended_ns: int) -> int:
    return bisect_right(times, ended_ns) - bisect_left(times, began_ns)


def longest_gap_seconds(times: Sequence[int], began_ns: int, ended_ns: int) -> float:
    """Return the longest time between two of ``times``, which rise, or an edge of the window and one of them."""
    inside = times[bisect_left(times, began_ns) : bisect_right(times, ended_ns)]
    edges = [began_ns, *inside, ended_ns]
    return max(after - before for before, after in pairwise(edges)) / SECOND_NS


@dataclass(frozen=True, slots=True)
class RunEvidence:
    topics: Sequence[TopicEvidence]
    faults: Sequence[FaultWindow] = ()
    ended_programs: Sequence[str] = ()
    """Producers and consumers that ended without being asked to, each with the reason."""
    notes: Sequence[Violation] = field(default=())
    """What was found while the run was in progress, such as a server that did not come back."""


def judge(run: RunEvidence) -> list[Violation]:
    found = [*run.notes, *(Violation("program ended", reason) for reason in run.ended_programs)]
    for topic in run.topics:
        found += [
            Violation(violation.invariant, f"{topic.topic}: {violation.detail}") for violation in judge_topic(topic)
        ]
    return [*found, *stopped(run), *not_recovered(run)]


def stopped(run: RunEvidence) -> list[Violation]:
    """Return faults during which a topic that should have continued accepted nothing."""
    return [
        Violation("stopped", f"{topic.topic} accepted nothing during {fault.name}, which does not concern it")
        for fault in run.faults
        for topic in run.topics
        if topic.topic in fault.continuing
        and not any(
            record.outcome == "committed" and fault.began_ns <= record.done_ns <= fault.ended_ns
            for record in topic.sent
        )
    ]


def not_recovered(run: RunEvidence) -> list[Violation]:
    """Return topics that accepted nothing after a fault had ended."""
    newest = {
        topic.topic: max((record.done_ns for record in topic.sent if record.outcome == "committed"), default=0)
        for topic in run.topics
    }
    return [
        Violation("not recovered", f"{topic} accepted nothing after the end of {fault.name}")
        for fault in run.faults
        for topic, done_ns in newest.items()
        if done_ns <= fault.ended_ns
    ]
