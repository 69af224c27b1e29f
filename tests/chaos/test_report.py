"""The report of a run: a page and a document that say the same."""

from __future__ import annotations

import json

from chaos.judge import RunEvidence, SentRecord, SubscriptionEvidence, TopicEvidence
from chaos.report import EXAMPLES, RULES, Report, document, make_report, markdown, verdict
from chaos.timeline import SECOND_NS, FaultWindow, Operation, Timeline
from demo.checks import Delivery, StoredRecord, Violation
from headgate.ledger.chunk import Chunk, ChunkHeader
from headgate.model import entries as e

SENT = [
    SentRecord("k", n, n * SECOND_NS, n * SECOND_NS + 4_000_000, "committed" if n < 4 else "unknown") for n in range(5)
]
FAULTS = [
    FaultWindow("leader-killed", "The leader gets SIGKILL.", SECOND_NS // 2, 2 * SECOND_NS, "It was daemon-2."),
    FaultWindow("broker <cut>", "The broker is cut.", 3 * SECOND_NS, 3 * SECOND_NS + 1),
]
OPERATIONS = [
    Operation("split", 0, SECOND_NS),
    Operation("split", SECOND_NS, 2 * SECOND_NS, "no leader"),
    Operation("daemon drain", 2 * SECOND_NS, 3 * SECOND_NS),
]
TIMELINE = Timeline(
    0,
    5 * SECOND_NS,
    {"orders": [(s.sent_ns, s.done_ns) for s in SENT[:4]]},
    [1, 2],
    OPERATIONS,
    [(SECOND_NS, SECOND_NS * 3 // 2)],
)
LEDGER = [
    Chunk(
        ChunkHeader(format=3, shard=0, number=1, leader_epoch=1, at_ms=1, entries=1, records=0),
        (e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x"),),
    )
]
RUN = RunEvidence(
    topics=[
        TopicEvidence(
            "orders",
            0,
            SENT,
            [StoredRecord(0, n, "k", n) for n in range(4)],
            LEDGER,
            [SubscriptionEvidence("billing", e.SubscriptionType.STREAM, [Delivery(1, "a#1", 0, 0, "k", 0)] * 2)],
        )
    ],
    faults=FAULTS,
)


def report(*violations: Violation) -> Report:
    return make_report(
        RUN,
        TIMELINE,
        violations,
        seed=7,
        command="python -m chaos --seed 7",
        not_tried={"disk-full": "there is no C compiler"},
        restarts=["daemon-1 ended with code 1: headgate: reason"],
    )


def test_the_page_has_a_row_for_each_fault_and_each_rule() -> None:
    page = markdown(report(), "chart.svg")

    assert "**every invariant held**, after 5 s and 2 faults" in page
    assert (
        "| 1 | leader-killed | 0-2 | 1 | 0 | 1 (1 failed) | 1.0 | 0.5 | The leader gets SIGKILL. It was daemon-2. |"
        in page
    )
    assert all(f"| {meaning} | 0 |" in page for _, meaning in RULES)
    assert "| `orders` | 5 | 4 | 0 | 1 | 4 | 1 |" in page
    assert "| `orders/billing` | 2 | 1 | 0 |" in page
    assert "| split | 1 | 1 |" in page
    assert "* 1 s, split: no leader" in page
    assert "* disk-full: there is no C compiler" in page
    assert "* daemon-1 ended with code 1: headgate: reason" in page
    assert "(chart.svg)" in page


def test_a_violation_is_named_in_one_line_counted_and_shown_a_few_times() -> None:
    lost = [Violation("lost", f"orders: k #{n}") for n in range(2 * EXAMPLES)]
    made = report(*lost, Violation("stopped", "orders"))
    page, found = markdown(made, "chart.svg"), document(made)

    assert f"lost: orders: k #0; {2 * EXAMPLES} more" == verdict(made.violations)
    assert f"| acknowledged, and not in the ledger | {2 * EXAMPLES} |" in page
    assert EXAMPLES == page.count("* lost: ")
    assert (False, {"lost": 2 * EXAMPLES, "stopped": 1}) == (found["passed"], found["violation_counts"])
    assert EXAMPLES + 1 == len(found["violations"])
    assert verdict([]) == "every invariant held"
    assert verdict([Violation("lost", "x")]) == "lost: x"


def test_the_document_is_json_with_the_same_faults() -> None:
    found = json.loads(json.dumps(document(report())))

    assert ["leader-killed", "broker <cut>"] == [fault["name"] for fault in found["faults"]]
    assert {"orders": 1.0} == {name: round(s, 1) for name, s in found["faults"][0]["outage_seconds"].items()}
    assert (7, True, {"orders": 1}) == (found["seed"], found["passed"], found["terms"])
