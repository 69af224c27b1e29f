"""The judges of a topic and of a chaos run find each planted violation, name it, and report nothing about a clean run."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.judge import FaultWindow, RunEvidence, judge
from headgate.model import entries as e
from headgate.model.entries import SubscriptionType
from tests.support.samples.chunks import ledger
from trials.judge import (
    STALLED_SECONDS,
    BlockedSegment,
    Delivery,
    Patience,
    SentRecord,
    StoredRecord,
    SubscriptionEvidence,
    TopicEvidence,
    Violation,
    blocked_segments,
    grants,
)

SUBSCRIPTION = {"topic_id": 1, "subscription_id": 2}


def granted(segment: int, consumer: str, generation: int) -> e.SegmentGranted:
    return e.SegmentGranted(segment=segment, consumer=consumer, generation=generation, **SUBSCRIPTION)


def released(segment: int, generation: int) -> e.SegmentReleased:
    return e.SegmentReleased(segment=segment, generation=generation, reason="holder_left", **SUBSCRIPTION)


def acknowledged(segment: int, end: int) -> e.RecordsAcknowledged:
    return e.RecordsAcknowledged(seek_generation=0, ranges=[e.AcknowledgedRange(segment, 0, end)], **SUBSCRIPTION)


BEGINNING: list[e.AnyEntry] = [
    e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x"),
    e.SubscriptionCreated(
        subscription="billing", subscription_type=SubscriptionType.STREAM, order="strict", positions={}, **SUBSCRIPTION
    ),
    granted(0, "a", 1),
]
RECORDS = e.RecordsStored(topic_id=1, count=2, placements=[e.Placement(0, 0, 65535, 0, 2)], size_bytes=1)
SPLIT = e.SegmentSplit(topic_id=1, segment=0, end_offset=2, token="y")
CLEAN_LEDGER = ledger(BEGINNING, [RECORDS], [acknowledged(0, 2)], [SPLIT], [granted(1, "a", 2)])


def sent(counter: int, *, outcome: str = "committed", done_ns: int | None = None) -> SentRecord:
    return SentRecord("k", counter, counter * 10, counter * 10 + 5 if done_ns is None else done_ns, outcome)


def delivered(at_ns: int, segment: int, offset: int, counter: int, consumer: str = "a#1") -> Delivery:
    return Delivery(at_ns, consumer, segment, offset, "k", counter)


STORED = [StoredRecord(0, 0, "k", 0), StoredRecord(0, 1, "k", 1), StoredRecord(1, 0, "k", 2)]
DELIVERED = [delivered(1, 0, 0, 0), delivered(2, 0, 1, 1), delivered(3, 1, 0, 2)]
TOPIC = TopicEvidence(
    topic="orders",
    shard=0,
    sent=[sent(0), sent(1), sent(2)],
    stored=STORED,
    chunks=CLEAN_LEDGER,
    subscriptions=[SubscriptionEvidence("billing", SubscriptionType.STREAM, DELIVERED)],
)


def run(topic: TopicEvidence = TOPIC, **fields: object) -> RunEvidence:
    return replace(RunEvidence(topics=[topic]), **fields)


def with_deliveries(*deliveries: Delivery, kind: SubscriptionType = SubscriptionType.STREAM) -> TopicEvidence:
    return replace(TOPIC, subscriptions=[SubscriptionEvidence("billing", kind, deliveries)])


def test_a_clean_run_has_no_violation() -> None:
    assert [] == judge(run())


PLANTED: dict[str, tuple[str, Callable[[], TopicEvidence]]] = {
    "an acknowledged record is missing": ("lost", lambda: replace(TOPIC, sent=[*TOPIC.sent, sent(9)])),
    "a failed record is stored": (
        "stored despite failure",
        lambda: replace(TOPIC, sent=[sent(0), sent(1, outcome="failed"), sent(2)]),
    ),
    "a valid record is refused": ("rejected", lambda: replace(TOPIC, sent=[*TOPIC.sent, sent(9, outcome="rejected")])),
    "a record is stored twice": (
        "stored twice",
        lambda: replace(
            TOPIC,
            stored=[*STORED, StoredRecord(1, 1, "k", 2)],
            subscriptions=[
                SubscriptionEvidence("billing", SubscriptionType.STREAM, [*DELIVERED, delivered(4, 1, 1, 2)])
            ],
        ),
    ),
    "a key's records are stored out of order": ("stored out of order", lambda: replace(TOPIC, stored=STORED[::-1])),
    "a record is not delivered": ("lost, not delivered", lambda: with_deliveries(*DELIVERED[:2])),
    "a delivery differs from the ledger": (
        "altered, lost, never sent",
        lambda: with_deliveries(*DELIVERED[:2], delivered(3, 1, 0, 7), kind=SubscriptionType.QUEUE),
    ),
    "a key's records are delivered out of order": (
        "out of order",
        lambda: with_deliveries(delivered(2, 0, 0, 0), delivered(1, 0, 1, 1), DELIVERED[2]),
    ),
    "a child is granted before its parent is drained": (
        "child before parent",
        lambda: replace(
            TOPIC, chunks=ledger(BEGINNING, [RECORDS], [SPLIT], [granted(1, "a", 2)], [acknowledged(0, 2)])
        ),
    ),
    "a record is delivered twice with one grant": (
        "repeated without reason",
        lambda: with_deliveries(*DELIVERED, delivered(4, 1, 0, 2)),
    ),
    "a record is delivered that was acknowledged before the grant": (
        "repeated without reason",
        lambda: replace(
            with_deliveries(*DELIVERED, delivered(4, 0, 0, 0, "b#1")),
            chunks=ledger(
                BEGINNING,
                [RECORDS],
                [acknowledged(0, 1)],
                [released(0, 1), granted(0, "b", 2)],
                [acknowledged(0, 2)],
                [SPLIT],
                [granted(1, "a", 3)],
            ),
        ),
    ),
    "a consumer without a grant receives a record": (
        "delivered without a grant",
        lambda: with_deliveries(*DELIVERED, delivered(4, 1, 0, 2, "b#1")),
    ),
}


@pytest.mark.parametrize(("invariants", "topic"), PLANTED.values(), ids=PLANTED)
def test_a_planted_violation_is_found_alone_and_named(invariants: str, topic: Callable[[], TopicEvidence]) -> None:
    found = judge(run(topic()))

    assert invariants == ", ".join(sorted({violation.invariant for violation in found}))
    assert all(violation.detail.startswith("orders: ") for violation in found)


def test_the_time_that_a_child_was_blocked_follows_from_the_timestamps_of_the_ledger() -> None:
    chunks = ledger(BEGINNING, [RECORDS], [SPLIT], [acknowledged(0, 2)], [granted(1, "a", 2)])

    assert [BlockedSegment(1, (0,), 2.0, 1.0)] == blocked_segments(chunks, 0, "orders", "billing")


def test_the_release_of_a_child_of_an_idle_segment_counts_from_its_split() -> None:
    """Its grandparent was read long before, and its parent never had a record."""
    early = [BEGINNING, [RECORDS], [SPLIT], [acknowledged(0, 2)], [granted(1, "a", 2)], *([] for _ in range(20))]
    idle = e.SegmentSplit(topic_id=1, segment=1, end_offset=0, token="z")
    chunks = ledger(*early, [idle], [granted(3, "a", 3)])

    assert BlockedSegment(3, (1,), 1.0, 1.0) == blocked_segments(chunks, 0, "orders", "billing")[-1]


def test_an_unknown_outcome_may_be_stored_or_not() -> None:
    unknown = replace(TOPIC, sent=[sent(0), sent(1, outcome="unknown"), sent(2), sent(3, outcome="unknown")])

    assert [] == judge(run(unknown))


def test_only_a_stream_must_be_in_order_and_wait_for_ancestors() -> None:
    early = ledger(BEGINNING, [RECORDS], [SPLIT], [granted(1, "a", 2)], [acknowledged(0, 2)])
    queue = with_deliveries(delivered(2, 0, 0, 0), delivered(1, 0, 1, 1), DELIVERED[2], kind=SubscriptionType.QUEUE)

    assert [] == judge(run(replace(queue, chunks=early)))


def test_a_record_may_be_delivered_again_after_another_grant() -> None:
    chunks = ledger(
        BEGINNING,
        [RECORDS],
        [released(0, 1), granted(0, "b", 2)],
        [released(0, 2), granted(0, "a", 3)],
        [acknowledged(0, 2)],
        [SPLIT],
        [granted(1, "a", 4)],
    )
    again = with_deliveries(*DELIVERED, delivered(4, 0, 1, 1, "b#1"), delivered(5, 0, 1, 1))

    assert [] == judge(run(replace(again, chunks=chunks)))
    assert (2, 0) == (grants(chunks, 0, "orders", "billing")["a", 0].count, grants(chunks, 0, "orders", "x").get(0, 0))


def test_each_run_of_a_consumer_may_receive_what_an_earlier_one_did_not_acknowledge() -> None:
    assert [] == judge(run(with_deliveries(*DELIVERED, delivered(4, 1, 0, 2, "a#2"))))


FAULT = FaultWindow("spark-killed", "", 4, 20, continuing=frozenset({"orders"}))


def test_a_topic_must_continue_during_a_fault_that_does_not_concern_it() -> None:
    silent = replace(TOPIC, sent=[sent(0, done_ns=1), sent(1, done_ns=2), sent(2, done_ns=30)])

    assert [] == judge(run(replace(TOPIC, sent=[sent(0), sent(1), sent(2)]), faults=[FAULT]))
    assert [Violation("stopped", "orders accepted nothing during spark-killed, which does not concern it")] == judge(
        run(silent, faults=[FAULT])
    )
    assert [] == judge(run(silent, faults=[replace(FAULT, continuing=frozenset())]))


@pytest.mark.parametrize("outcome", ["unknown", "failed"])
def test_a_record_that_was_not_acknowledged_does_not_show_that_a_topic_continues(outcome: str) -> None:
    times = [1, 2, 30]
    silent = [sent(n, done_ns=at) for n, at in enumerate(times)]
    other = SentRecord("x", 0, 1, 10, outcome)
    last = SentRecord("x", 1, 1, 40, outcome)

    assert ["stopped"] == [v.invariant for v in judge(run(replace(TOPIC, sent=[*silent, other]), faults=[FAULT]))]
    never = replace(FAULT, ended_ns=35)
    assert ["not recovered"] == [v.invariant for v in judge(run(replace(TOPIC, sent=[*silent, last]), faults=[never]))]


def test_every_topic_must_accept_records_after_a_fault() -> None:
    late = replace(FAULT, ended_ns=25)

    assert [Violation("not recovered", "orders accepted nothing after the end of spark-killed")] == judge(
        run(faults=[late])
    )


def test_a_program_that_ended_and_a_step_that_failed_are_violations() -> None:
    note = Violation("not finished", "broker-cut: no leader")

    assert [note, Violation("program ended", "billing-1 ended with code 1")] == judge(
        run(ended_programs=["billing-1 ended with code 1"], notes=[note])
    )


def test_a_run_has_stalled_after_a_time_without_a_change() -> None:
    patience = Patience(0)

    assert not any(patience.ended(second, second // 100) for second in range(0, 36_000, 50))
    assert not patience.ended(36_000, 360)
    assert not patience.ended(36_000 + STALLED_SECONDS - 1, 360)
    assert patience.ended(36_000 + STALLED_SECONDS, 360)
    assert not patience.ended(36_000 + STALLED_SECONDS, 361), "it continues after all"
