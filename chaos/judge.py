"""Judge a run from what producers and consumers wrote, and from the ledger. Pure.

Nothing that a daemon reports is used. Each topic follows the rules of trials.judge, and beyond them:

7. A cluster that lost a server which it needs for elections or counts only, or one chunk of another shard, continues.
8. After each fault, every topic accepts records again.

A program that ended on its own is a violation, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.timeline import FaultWindow
from trials.judge import TopicEvidence, Violation, judge_topic


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
