"""When things happened, from the files of clients."""

from __future__ import annotations

from chaos.cluster import ORDERS, PAYMENTS
from chaos.evidence import timeline_of
from chaos.judge import RunEvidence, SubscriptionEvidence, TopicEvidence
from demo.checks import Delivery
from headgate import SubscriptionType


def test_a_child_waits_until_a_stream_of_the_orders_gets_its_first_record() -> None:
    def delivered(*deliveries: tuple[int, int]) -> list[Delivery]:
        return [Delivery(at_ns, "a#1", segment, 0, "k", 0) for at_ns, segment in deliveries]

    stream = SubscriptionEvidence("billing", SubscriptionType.STREAM, delivered((70, 5), (60, 5), (50, 4)))
    queue = SubscriptionEvidence("audit", SubscriptionType.QUEUE, delivered((20, 5), (21, 6)))
    other = SubscriptionEvidence("accounts", SubscriptionType.STREAM, delivered((30, 5), (31, 6)))
    run = RunEvidence(
        topics=[TopicEvidence(ORDERS, 0, [], [], [], [stream, queue]), TopicEvidence(PAYMENTS, 1, [], [], [], [other])]
    )

    assert timeline_of(run, 0, 100, [], {5: 10, 6: 15}).children == [(10, 60), (15, 100)]
