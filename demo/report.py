"""Report of a run: summary and violated guarantees, built only from the topic's evidence."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.scenario import BILLING, Run
from headgate.ledger.chunk import Chunk
from headgate.model import entries as e
from trials.judge import BlockedSegment, TopicEvidence, Violation, blocked_segments, examples, judge_topic, repeated

INVARIANTS = (
    *("lost", "stored twice", "stored out of order", "not delivered", "altered", "out of order"),
    "child before parent",
)
"""Those that the table counts, also if none was broken."""


@dataclass(frozen=True)
class Findings:
    summary: dict[str, Any]
    violations: list[Violation]
    blocked: list[BlockedSegment]
    unfinished: dict[str, str]
    """Subscription → what it had not received when nothing changed any more, and why. This is no violation."""


def evaluate_run(run: Run, topic: TopicEvidence) -> Findings:
    outcomes = Counter(record.outcome for record in topic.sent)
    blocked = blocked_segments(topic.chunks, topic.shard, topic.topic, BILLING[0].subscription)
    summary: dict[str, Any] = {
        "produced": " ".join(
            [f"sent={len(topic.sent)}", *(f"{name}={count}" for name, count in sorted(outcomes.items()))]
        ),
        "committed": outcomes["committed"],
        "stored": len(topic.stored),
        "keys": len({record.key for record in topic.stored}),
        "chunks": len(topic.chunks),
        "subscriptions": {
            each.name: {"delivered": len(each.deliveries), "again": repeated(each.deliveries), "type": each.kind}
            for each in topic.subscriptions
        },
        "failover_seconds": failover_seconds(topic.chunks, run.killed_leader_at_ms),
        "children": len(blocked),
        "blocked_seconds": [child.blocked_seconds for child in blocked],
        "release_seconds": [child.release_seconds for child in blocked if child.release_seconds is not None],
    }
    violations = judge_topic(topic, unfinished=run.waiting)
    if not blocked and BILLING[0].subscription not in run.waiting:
        violations.append(Violation("no child blocked", "no child waited for its parents: the run proves nothing"))
    return Findings(summary, violations, blocked, {name: str(waiting) for name, waiting in run.waiting.items()})


def failover_seconds(chunks: Sequence[Chunk], killed_at_ms: int | None) -> float | None:
    """Return the time from the kill to the first records of the next leader term, by the ledger's timestamps."""
    if killed_at_ms is None:
        return None
    new_term = False
    for chunk in chunks:
        if chunk.header.at_ms < killed_at_ms:
            continue
        new_term = new_term or any(isinstance(entry, e.TermStarted) for entry in chunk.entries)
        if new_term and any(isinstance(entry, e.RecordsStored) for entry in chunk.entries):
            return (chunk.header.at_ms - killed_at_ms) / 1000
    return None


def show(found: Findings, console: Console) -> None:
    summary = found.summary
    console.print()
    table = Table(
        title="Result, from the ledger and the consumers' records", title_justify="left", show_header=False, box=None
    )
    table.add_row("produced", summary["produced"])
    table.add_row("committed", f"{summary['committed']:,} records, {summary['keys']} keys")
    table.add_row("stored", f"{summary['stored']:,} records in {summary['chunks']:,} chunks")
    for name, counts in summary["subscriptions"].items():
        again = f", {counts['again']:,} of them redelivered after a crash or handover" if counts["again"] else ""
        table.add_row(f"delivered to {name} ({counts['type']})", f"{counts['delivered']:,}{again}")
    counts = Counter(violation.invariant for violation in found.violations)
    for invariant in INVARIANTS:
        table.add_row(invariant, str(counts[invariant]))
    table.add_row("blocked children", f"{summary['children']}: {_span(summary['blocked_seconds'])}")
    table.add_row("last acknowledgement to release", _span(summary["release_seconds"]))
    failover = summary["failover_seconds"]
    table.add_row("failover, kill to next record stored", "none" if failover is None else f"{failover:.1f} s")
    console.print(table)
    for child in found.blocked:
        parents = f"segment{'s' * (len(child.parents) > 1)} {', '.join(map(str, child.parents))}"
        line = f"  segment {child.segment} waited {child.blocked_seconds:.1f} s for {parents}"
        console.print(line, highlight=False)
    console.print()
    for name, waiting in found.unfinished.items():
        console.print(f"not delivered to {name} yet: {waiting}", highlight=False, soft_wrap=True)
    if not found.violations:
        held = "every guarantee held" if not found.unfinished else "no guarantee was broken, and the run did not finish"
        console.print(held, style="bold yellow" if found.unfinished else "bold green")
        return
    console.print(f"{len(found.violations)} violations", style="bold red")
    for violation in examples(found.violations):
        console.print(f"  {violation.invariant}: {violation.detail}", highlight=False)


def _span(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    return f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
