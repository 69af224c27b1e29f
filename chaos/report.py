"""The report of a run, as a document for programs and as a page for people. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from chaos.judge import RunEvidence
from chaos.timeline import SECOND_NS, FaultEffect, Timeline
from demo import checks
from demo.checks import Violation

EXAMPLES: Final = 5
"""Violations of one kind that the page shows."""
RULES: Final = (
    ("lost", "acknowledged, and not in the ledger"),
    ("stored despite failure", "reported as not stored, and in the ledger"),
    ("rejected", "valid, and refused for good"),
    ("stored twice", "in the ledger more than once"),
    ("stored out of order", "in the ledger after a later record of its key"),
    ("not delivered", "in the ledger, and not delivered to a subscription"),
    ("altered", "delivered, and different in the ledger"),
    ("out of order", "first delivered after a later record of its key"),
    ("two holders", "delivered to a former holder after a record of its key to the next one"),
    ("never sent", "delivered, and sent by no producer"),
    ("child before parent", "segments granted before an ancestor was drained"),
    ("repeated without reason", "delivered again without another grant, or below an acknowledged position"),
    ("delivered without a grant", "delivered to a consumer that was never granted the segment"),
    ("stopped", "topics that stopped although a fault does not concern them"),
    ("not recovered", "topics that accepted nothing after a fault"),
    ("program ended", "producers and consumers that ended on their own"),
    ("not finished", "steps of the run that failed or took too long"),
)
"""Each rule of the judge, and what a violation of it is."""


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in the report."""

    number: int
    name: str
    summary: str
    note: str
    began_seconds: float
    ended_seconds: float
    acknowledged: int
    delivered: int
    commands: int
    failed_commands: int
    outage_seconds: dict[str, float]
    longest_outage_seconds: float
    longest_latency_ms: float
    children_wait_seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run."""

    seed: int
    command: str
    seconds: float
    passed: bool
    faults: list[FaultRow]
    not_tried: dict[str, str]
    """Kind of fault → why this run did not have it."""
    records: dict[str, dict[str, int]]
    """Topic → counts of its records."""
    subscriptions: dict[str, dict[str, int]]
    terms: dict[str, int]
    """Topic → how many terms its shard had."""
    commands: dict[str, dict[str, int]]
    """The operator's command → how many succeeded and failed."""
    failures: list[str]
    """The failed commands, each with its reason."""
    restarts: list[str]
    """Daemons that ended on their own and were started again, each with the last line of its log."""
    violations: list[Violation]


def fault_rows(run: RunEvidence, timeline: Timeline) -> list[FaultRow]:
    """Return a row for each fault; its effects are counted until the next fault begins."""
    ends = [fault.began_ns for fault in run.faults[1:]] + [timeline.ended_ns]
    return [
        _row(number, fault_effect, timeline, run)
        for number, fault_effect in enumerate(
            (timeline.effect(fault, until) for fault, until in zip(run.faults, ends, strict=False)), 1
        )
    ]


def _row(number: int, effect: FaultEffect, timeline: Timeline, run: RunEvidence) -> FaultRow:
    fault = run.faults[number - 1]
    return FaultRow(
        number=number,
        name=fault.name,
        summary=fault.summary,
        note=fault.note,
        began_seconds=round((fault.began_ns - timeline.began_ns) / SECOND_NS, 1),
        ended_seconds=round((fault.ended_ns - timeline.began_ns) / SECOND_NS, 1),
        acknowledged=effect.acknowledged,
        delivered=effect.delivered,
        commands=effect.commands,
        failed_commands=effect.failed_commands,
        outage_seconds={topic: round(seconds, 2) for topic, seconds in effect.outage_seconds.items()},
        longest_outage_seconds=round(max(effect.outage_seconds.values(), default=0.0), 2),
        longest_latency_ms=round(effect.longest_latency_ms, 1),
        children_wait_seconds=round(effect.children_wait_seconds, 1),
    )


def make_report(
    run: RunEvidence,
    timeline: Timeline,
    violations: Sequence[Violation],
    *,
    seed: int,
    command: str,
    not_tried: Mapping[str, str],
    restarts: Sequence[str],
) -> Report:
    """Return the report of a run that was judged."""
    records, subscriptions = {}, {}
    commands: dict[str, Counter[bool]] = defaultdict(Counter)
    for operation in timeline.operations:
        commands[operation.name][not operation.error] += 1
    for topic in run.topics:
        outcomes = Counter(record.outcome for record in topic.sent)
        records[topic.topic] = {"sent": len(topic.sent), **sorted_counts(outcomes), "stored": len(topic.stored)}
        for subscription in topic.subscriptions:
            blocked = checks.blocked_segments(topic.chunks, topic.shard, topic.topic, subscription.name)
            subscriptions[f"{topic.topic}/{subscription.name}"] = {
                "delivered": len(subscription.deliveries),
                "redelivered": checks.repeated(subscription.deliveries),
                "children": len(blocked),
            }
    return Report(
        seed=seed,
        command=command,
        seconds=round((timeline.ended_ns - timeline.began_ns) / SECOND_NS, 1),
        passed=not violations,
        faults=fault_rows(run, timeline),
        not_tried=dict(not_tried),
        records=records,
        subscriptions=subscriptions,
        terms={topic.topic: len({chunk.header.leader_epoch for chunk in topic.chunks}) for topic in run.topics},
        commands={
            name: {"succeeded": outcomes[True], "failed": outcomes[False]}
            for name, outcomes in sorted(commands.items())
        },
        failures=[
            f"{(each.began_ns - timeline.began_ns) / SECOND_NS:.0f} s, {each.name}: {each.error}"
            for each in timeline.operations
            if each.error
        ],
        restarts=list(restarts),
        violations=list(violations),
    )


def sorted_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return ``counts`` by name."""
    return dict(sorted(counts.items()))


def verdict(violations: Sequence[Violation]) -> str:
    """Return the result in one line, which names the first violation."""
    if not violations:
        return "every invariant held"
    first = violations[0]
    more = f"; {len(violations) - 1} more" if len(violations) > 1 else ""
    return f"{first.invariant}: {first.detail}{more}"


def markdown(report: Report) -> str:
    """Return the page."""
    lines = [
        f"Result: **{verdict(report.violations)}**, after {report.seconds:g} s and {len(report.faults)} faults.",
        "",
        f"Repeat it with `{report.command}`.",
        "",
        "| | fault | at, s | acknowledged | delivered | commands | longest outage, s | children waited, s | what |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_fault_line(row) for row in report.faults),
        "",
        "Acknowledged, delivered and commands: what succeeded while the fault lasted. The outage is the longest",
        "time without an acknowledged record on the topic that had the longest one, until the next fault began.",
        "Children waited: the longest time in which a STREAM consumer got no record of a child, after one was stored.",
        *_commands(report.commands),
        "",
        "| topic | sent | acknowledged | failed | unknown | stored | terms |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| `{topic}` | {counts['sent']:,} | {counts.get('committed', 0):,} | {counts.get('failed', 0):,} "
            f"| {counts.get('unknown', 0):,} | {counts['stored']:,} | {report.terms[topic]} |"
            for topic, counts in report.records.items()
        ),
        "",
        "| subscription | delivered | again after a fault or handover | children that waited |",
        "|---|---|---|---|",
        *(
            f"| `{name}` | {counts['delivered']:,} | {counts['redelivered']:,} | {counts['children']} |"
            for name, counts in report.subscriptions.items()
        ),
        "",
        "| invariant | violations |",
        "|---|---|",
        *(f"| {meaning} | {_count(report.violations, name)} |" for name, meaning in RULES),
    ]
    if report.violations:
        lines += ["", *(f"* {violation.invariant}: {violation.detail}" for violation in examples(report.violations))]
    if report.failures:
        lines += ["", "Commands that failed:", "", *(f"* {failure}" for failure in report.failures)]
    if report.restarts:
        lines += ["", "Daemons that ended on their own, and were started again:", ""]
        lines += [f"* {restart}" for restart in report.restarts]
    if report.not_tried:
        lines += ["", "Not in this run:", "", *(f"* {name}: {why}" for name, why in report.not_tried.items())]
    return "\n".join([*lines, ""])


def _commands(commands: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the table of the operator's commands."""
    if not commands:
        return []
    rows = (f"| {name} | {counts['succeeded']} | {counts['failed']} |" for name, counts in commands.items())
    return ["", "| command | succeeded | failed |", "|---|---|---|", *rows]


def examples(violations: Sequence[Violation]) -> list[Violation]:
    """Return the first violations of each kind."""
    shown: Counter[str] = Counter()
    found = []
    for violation in violations:
        shown[violation.invariant] += 1
        if shown[violation.invariant] <= EXAMPLES:
            found.append(violation)
    return found


def document(report: Report) -> dict[str, Any]:
    """Return the report for programs; of each kind of violation, the first ones."""
    counts = Counter(violation.invariant for violation in report.violations)
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(report, violations=examples(report.violations)))
    return found | {"violation_counts": sorted_counts(counts)}


def _fault_line(row: FaultRow) -> str:
    commands = f"{row.commands}" + (f" ({row.failed_commands} failed)" if row.failed_commands else "")
    what = f"{row.summary} {row.note}".strip()
    return (
        f"| {row.number} | {row.name} | {row.began_seconds:.0f}-{row.ended_seconds:.0f} | {row.acknowledged:,} "
        f"| {row.delivered:,} | {commands} | {row.longest_outage_seconds:.1f} "
        f"| {row.children_wait_seconds:.1f} | {what} |"
    )


def _count(violations: Sequence[Violation], invariant: str) -> int:
    return sum(violation.invariant == invariant for violation in violations)
