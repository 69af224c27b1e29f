"""The report of a run, as a document for programs and as a page for people. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from chaos.judge import SECOND_NS, FaultEffect, RunEvidence, Timeline
from trials.judge import Violation, blocked_segments, examples, repeated

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
FAULT_COLUMNS: Final = (
    *("", "fault", "at, s", "acknowledged", "delivered", "commands"),
    *("longest outage, s", "children waited, s", "what"),
)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    command: str
    seconds: float
    passed: bool
    faults: list[FaultEffect]
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
    ends = [*(fault.began_ns for fault in run.faults[1:]), timeline.ended_ns]
    records, subscriptions = {}, {}
    commands: dict[str, Counter[bool]] = defaultdict(Counter)
    for operation in timeline.operations:
        commands[operation.name][not operation.error] += 1
    for topic in run.topics:
        outcomes = Counter(record.outcome for record in topic.sent)
        records[topic.topic] = {"sent": len(topic.sent), **dict(sorted(outcomes.items())), "stored": len(topic.stored)}
        for subscription in topic.subscriptions:
            blocked = blocked_segments(topic.chunks, topic.shard, topic.topic, subscription.name)
            subscriptions[f"{topic.topic}/{subscription.name}"] = {
                "delivered": len(subscription.deliveries),
                "redelivered": repeated(subscription.deliveries),
                "children": len(blocked),
            }
    return Report(
        seed=seed,
        command=command,
        seconds=round((timeline.ended_ns - timeline.began_ns) / SECOND_NS, 1),
        passed=not violations,
        faults=[timeline.effect(fault, until) for fault, until in zip(run.faults, ends, strict=False)],
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


def verdict(violations: Sequence[Violation]) -> str:
    """Return the result in one line, which names the first violation."""
    if not violations:
        return "every invariant held"
    first = violations[0]
    more = f"; {len(violations) - 1} more" if len(violations) > 1 else ""
    return f"{first.invariant}: {first.detail}{more}"


def markdown(report: Report) -> str:
    found = Counter(violation.invariant for violation in report.violations)
    lines = [
        f"Result: **{verdict(report.violations)}**, after {report.seconds:g} s and {len(report.faults)} faults.",
        "",
        f"Repeat it with `{report.command}`.",
        *_table(FAULT_COLUMNS, [_fault_row(number, fault) for number, fault in enumerate(report.faults, 1)]),
        "",
        "Acknowledged, delivered and commands: what succeeded while the fault lasted. The outage is the longest",
        "time without an acknowledged record on the topic that had the longest one, until the next fault began.",
        "Children waited: the longest time in which a STREAM consumer got no record of a child, after one was stored.",
        *_table(
            ("command", "succeeded", "failed"),
            [(name, counts["succeeded"], counts["failed"]) for name, counts in report.commands.items()],
        ),
        *_table(
            ("topic", "sent", "acknowledged", "failed", "unknown", "stored", "terms"),
            [
                (
                    f"`{topic}`",
                    *(f"{counts.get(each, 0):,}" for each in ("sent", "committed", "failed", "unknown", "stored")),
                    report.terms[topic],
                )
                for topic, counts in report.records.items()
            ],
        ),
        *_table(
            ("subscription", "delivered", "again after a fault or handover", "children that waited"),
            [
                (f"`{name}`", f"{counts['delivered']:,}", f"{counts['redelivered']:,}", counts["children"])
                for name, counts in report.subscriptions.items()
            ],
        ),
        *_table(("invariant", "violations"), [(meaning, found[name]) for name, meaning in RULES]),
        *_list("", [f"{violation.invariant}: {violation.detail}" for violation in examples(report.violations)]),
        *_list("Commands that failed:", report.failures),
        *_list("Daemons that ended on their own, and were started again:", report.restarts),
        *_list("Not in this run:", [f"{name}: {why}" for name, why in report.not_tried.items()]),
    ]
    return "\n".join([*lines, ""])


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a table without an empty body."""
    lines = [columns, ["---"] * len(columns), *rows] if rows else []
    return ["", *(f"| {' | '.join(map(str, line))} |" for line in lines)] if lines else []


def _list(title: str, items: Sequence[str]) -> list[str]:
    head = ["", title] if title else []
    return [*head, "", *(f"* {item}" for item in items)] if items else []


def _fault_row(number: int, row: FaultEffect) -> Sequence[object]:
    commands = f"{row.commands}" + (f" ({row.failed_commands} failed)" if row.failed_commands else "")
    return (
        number,
        row.name,
        f"{row.began_seconds:.0f}-{row.ended_seconds:.0f}",
        f"{row.acknowledged:,}",
        f"{row.delivered:,}",
        commands,
        f"{row.longest_outage_seconds:.1f}",
        f"{row.children_wait_seconds:.1f}",
        f"{row.summary} {row.note}".strip(),
    )


def document(report: Report) -> dict[str, Any]:
    """Return the report for programs; of each kind of violation, the first ones."""
    counts = Counter(violation.invariant for violation in report.violations)
    found: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(report, violations=examples(report.violations)))
    return found | {"violation_counts": dict(sorted(counts.items()))}
