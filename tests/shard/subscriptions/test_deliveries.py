"""Which deliveries of a QUEUE begin and fail, rule by rule."""

from unittest.mock import Mock, patch

import pytest

from headgate.model import entries as e
from headgate.model.layout import BucketRange, slice_fields
from headgate.protocol import requests
from shard.subscriptions import deliveries
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

ADA = {"topic": "orders", "subscription": "billing", "consumer": "ada", "incarnation": 1}


@pytest.fixture
async def harness(lead: Lead) -> CoordinatorHarness:
    """Consumer ada holds segment 0 with nine records, of which 0 and 8 are acknowledged and 1 has failed once."""
    harness = lead("ada", segments=1, records=9, type="QUEUE")
    assert harness.acknowledge("ada", 0, 1) is harness.acknowledge("ada", 0, 9, first_offset=8) is None
    harness.propose(e.DeliveriesFailed(topic_id=1, subscription_id=2, records=[(0, 1, 3, 0, "unlucky")]))
    return harness


def generation(harness: CoordinatorHarness) -> int:
    return harness.subscription.holdings[0].generation


def begin(harness, *records: tuple[int, int], limit: int = 10, **other: object) -> tuple[object, ...]:
    """Begin (offset, delivery) pairs; return the offsets that begin, and the reply."""
    named = [
        requests.BegunRecord(0, other.get("generation", generation(harness)), offset, 3, count)
        for offset, count in records
    ]
    request = requests.BeginDeliveries(**{**ADA, **{key: other[key] for key in other if key in ADA}}, records=named)
    begun, reply = deliveries.judge_begun(harness.subscription, harness.topic, request, limit)
    return [offset for _, offset, _, _ in begun], reply.rejected, reply.delayed


def fail(harness: CoordinatorHarness, *records: tuple[int, int], limit: int = 10) -> tuple[object, ...]:
    named = [requests.NegativeAcknowledgement(0, generation(harness), at, 3, count, 500) for at, count in records]
    batch = requests.AcknowledgeBatch(**ADA, negative=named)
    failed, rejected = deliveries.judge_failed(harness.subscription, harness.topic, batch, limit, now_ms=1000)
    return failed, rejected


def die(harness: CoordinatorHarness, offset: int, topic: str) -> None:
    policy = e.DeliveryPolicy(max_deliveries=1, dead_letter_topic=topic)
    harness.propose(e.DeliveryPolicySet(topic_id=1, subscription_id=2, policy=policy, token="t"))
    harness.propose(e.DeliveriesFailed(topic_id=1, subscription_id=2, records=[(0, offset, 3, 0, "again")]))


async def test_the_next_delivery_of_a_record_begins_and_fails(harness: CoordinatorHarness) -> None:
    assert ([1, 2], [], []) == begin(harness, (1, 2), (2, 1))
    assert ([(0, 1, 3, 1500, ""), (0, 2, 3, 1500, "")], []) == fail(harness, (1, 2), (2, 1))


@pytest.mark.parametrize(
    ("record", "other", "reason"),
    [
        ((2, 1), {"consumer": "eve"}, "not registered"),
        ((2, 1), {"incarnation": 0}, "now incarnation 1"),
        ((2, 1), {"generation": 99}, "not by 'ada' at generation 99"),
        ((9, 1), {}, "has no offset 9"),
        ((0, 1), {}, "the delivery has ended"),
        ((8, 1), {}, "the delivery has ended"),
        ((2, 2), {}, "follows only 0 failures"),
        ((1, 1), {}, "the delivery has ended"),
        ((2, 1), {"type": "STREAM"}, "only QUEUE delivers again"),
    ],
)
async def test_nothing_else_begins(harness, record: tuple[int, int], other: dict[str, str], reason: str) -> None:
    harness.subscription.type = e.SubscriptionType(other.get("type", "QUEUE"))
    begun, rejected, delayed = begin(harness, record, **other)

    assert ([], []) == (begun, delayed)
    assert [0] == [index for index, _ in rejected]
    assert reason in rejected[0][1]


async def test_a_repeated_failure_is_accepted_and_has_no_effect(harness: CoordinatorHarness) -> None:
    """Its reply was lost: the first copy has counted. The record may be in the dead-letter topic by now."""
    assert ([], []) == fail(harness, (1, 1), (0, 1))
    assert ([(0, 2, 3, 1500, "")], []) == fail(harness, (2, 1), (2, 1))
    late = requests.NegativeAcknowledgement(0, generation(harness), 0, 3, 1)
    [(_, never)] = harness.coordinator.acknowledge(requests.AcknowledgeBatch(**ADA, negative=[late])).redeliveries
    assert 0 == never.delivery


async def test_a_confirmation_of_a_dead_letter_of_another_history_has_no_effect(harness: CoordinatorHarness) -> None:
    """After an older ledger was put back, another record may have the number."""
    die(harness, 1, "dead")
    died_at_ms = harness.subscription.redelivery.attempts[0][1].died_at_ms
    assert [(0, "the delivery has ended")] == begin(harness, (1, 3))[1]
    for at_ms, who, found in ((died_at_ms + 1, "ada", {}), (died_at_ms, "eve", {}), (died_at_ms, "ada", {1: (0, 1)})):
        confirmed = requests.ConfirmDeadLetters(**ADA | {"consumer": who}, stored=[(1, at_ms)])
        assert found == deliveries.stored_dead_letters(harness.subscription, confirmed)


async def test_dead_letters_wait_for_none_of_a_topic_that_takes_none(harness: CoordinatorHarness) -> None:
    for offset, topic in enumerate(("gone", "gone", "gone", "dead"), 2):
        die(harness, offset, topic)
    with patch("shard.subscriptions.deliveries.MAX_DEAD_LETTERS", 2):
        replies = [harness.heartbeat("ada", dead_letter_problem=each) for each in ("", "gone: there is no such topic")]
    assert [[1, 2], [1, 4]] == [[letter.number for letter in reply.dead_letters] for reply in replies]
    assert ("ada", False) == (deliveries.sender_of(harness.subscription), not harness.coordinator.deliveries.problem)
    harness.disconnect("anonymous/client-ada")
    assert deliveries.sender_of(harness.subscription) is None
    harness.subscription.redelivery.forget([0])
    harness.heartbeat("ada")
    assert "" == harness.coordinator.deliveries.problem, "it is over with the last dead letter"


async def test_at_the_limit_new_records_wait_and_those_that_are_kept_go_their_way(harness: CoordinatorHarness) -> None:
    assert ([1, 2], [], [2]) == begin(harness, (1, 2), (2, 1), (3, 1), limit=2)
    failed, rejected = fail(harness, (3, 1), (1, 2), limit=1)
    assert ([(0, 1, 3, 1500, "")], [0]) == (failed, [index for index, _ in rejected])
    harness.acknowledge("ada", 0, 2, first_offset=1, delivery=2)
    assert ([3], [], []) == begin(harness, (3, 1), limit=1)
    assert [10_000, 10_000, 9] == [deliveries.record_limit(Mock(tails=range(count))) for count in (0, 1, 4096)]


async def test_an_acknowledgement_of_an_earlier_delivery_does_not_count(harness: CoordinatorHarness) -> None:
    assert "delivery 1 of offset 1 of segment 0 has ended" == harness.acknowledge("ada", 0, 3, first_offset=1)
    assert harness.acknowledge("ada", 0, 3, first_offset=2) is None
    assert harness.acknowledge("ada", 0, 2, first_offset=1, delivery=2) is None
    assert 3 == harness.subscription.position(0)
    assert {} == harness.subscription.redelivery.attempts
    die(harness, 4, "dead")
    assert "has ended" in harness.acknowledge("ada", 0, 5, first_offset=4, delivery=2), "not even of the next one"
    other = BucketRange(0, 8, 16)
    harness.subscription.holdings.release(0)
    grant = e.SegmentGranted(topic_id=1, subscription_id=2, **slice_fields(other), consumer="ada", generation=9)
    harness.subscription.holdings.grant(grant, 0)
    assert harness.acknowledge("ada", other, 5, first_offset=4) is None, "the dead one is in bucket 3"
    harness.propose(e.DeliveriesBegun(topic_id=1, subscription_id=2, records=[(0, 5, 3, 8)]))
    for part, found in ((other, []), (BucketRange(0, 0, 8), [4])):
        assert found == [each.offset for each in deliveries.failed_in(harness.subscription, harness.topic, part, 0)]
    begun = requests.BeginDeliveries(**ADA, records=[requests.BegunRecord(0, 9, 6, 3, 1)])
    [(_, reason)] = deliveries.judge_begun(harness.subscription, harness.topic, begun, 9)[1].rejected
    assert "generation 9 of segment 0 has no offset 6 in bucket 3" == reason
