"""When things happened, from the files of clients."""

from __future__ import annotations

from chaos.cluster import ORDERS, PAYMENTS
from chaos.evidence import timeline_of
from chaos.judge import RunEvidence, SentRecord, SubscriptionEvidence, TopicEvidence
from demo.checks import Delivery, StoredRecord
from headgate import SubscriptionType

STORED = {5: 12, 6: 11, 7: 40}
"""Segment → when its first record was acknowledged."""


def test_a_child_waits_until_a_stream_of_the_orders_gets_its_first_record() -> None:
    def delivered(*deliveries: tuple[int, int]) -> list[Delivery]:
        return [Delivery(at_ns, "a#1", segment, 0, "k", 0) for at_ns, segment in deliveries]

    stream = SubscriptionEvidence("billing", SubscriptionType.STREAM, delivered((70, 5), (60, 5), (50, 4)))
    queue = SubscriptionEvidence("audit", SubscriptionType.QUEUE, delivered((20, 5), (21, 6)))
    other = SubscriptionEvidence("accounts", SubscriptionType.STREAM, delivered((30, 5), (31, 6)))
    sent = [
        SentRecord("k", segment, 0, at_ns + later, "committed") for segment, at_ns in STORED.items() for later in (3, 0)
    ]
    stored = [StoredRecord(segment, 0, "k", segment) for segment in STORED]
    run = RunEvidence(
        topics=[
            TopicEvidence(ORDERS, 0, sent, stored, [], [stream, queue]),
            TopicEvidence(PAYMENTS, 1, [], [], [], [other]),
        ]
    )

    assert timeline_of(run, 0, 100, [], {5: 10, 6: 15, 7: 20}).children == [(12, 60), (15, 100), (40, 100)]


def test_a_child_without_records_does_not_wait() -> None:
    """A split and a merge follow each other while the producer is cut off, and some records were not stored."""
    sent = [SentRecord("k", 5, 0, 9, "failed"), SentRecord("k", 6, 0, 9, "unknown")]
    run = RunEvidence(topics=[TopicEvidence(ORDERS, 0, sent, [StoredRecord(6, 0, "k", 6)], [], [])])

    assert timeline_of(run, 0, 100, [], {5: 10, 6: 15}).children == []
