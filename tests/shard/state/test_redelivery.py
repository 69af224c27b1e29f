"""The records of a QUEUE that were begun or have failed, entry by entry."""

import pytest

from headgate.model import entries as e
from headgate.model.layout import BucketRange
from shard.state.redelivery import Attempts, OffsetSearch
from shard.state.subscription import Subscription
from tests.shard.state.test_subscription import IDS, acknowledged, subscription

POLICY = e.DeliveryPolicy(max_deliveries=2, dead_letter_topic="dead")


def queue(*entries: e.AnyEntry, policy: e.DeliveryPolicy = POLICY) -> Subscription:
    """Return a queue whose segment 0 is held at generation 7; each entry is in a chunk of its own."""
    known = subscription("QUEUE")
    first = [
        e.DeliveryPolicySet(**IDS, policy=policy, token="p"),
        e.ConsumerRegistered(**IDS, consumer="ada", incarnation=1, client_id="a"),
        e.SegmentGranted(**IDS, segment=0, consumer="ada", generation=7),
    ]
    for at_ms, entry in enumerate([*first, *entries]):
        known.apply(entry, at_ms)
    return known


def begun(*offsets: int) -> e.DeliveriesBegun:
    return e.DeliveriesBegun(**IDS, records=[(0, offset, 3, 7) for offset in offsets])


def failed(*offsets: int) -> e.DeliveriesFailed:
    return e.DeliveriesFailed(**IDS, records=[(0, offset, 3, 99, "unlucky") for offset in offsets])


def removed(reason: str) -> e.ConsumerRemoved:
    return e.ConsumerRemoved(**IDS, consumer="ada", incarnation=1, reason=reason)


def released(reason: str) -> e.SegmentReleased:
    return e.SegmentReleased(**IDS, segment=0, generation=7, reason=reason)


@pytest.mark.parametrize(
    ("end", "failures"),
    [
        (removed("evicted"), 1),
        (removed("replaced"), 1),
        (removed("failed"), 1),
        (released("timed_out"), 1),
        (removed("left"), 0),
        (released("confirmed"), 0),
        (e.SubscriptionSeek(**IDS, seek_generation=1, positions={1: 0}, token="s"), 0),
    ],
    ids=lambda value: getattr(value, "reason", "seek"),
)
def test_only_the_loss_of_a_holder_fails_what_it_has_begun(end: e.AnyEntry, failures: int) -> None:
    known = queue(begun(4, 5), acknowledged((0, 5, 6)), end).redelivery

    found = known.of(0, 4)
    assert failures == (0 if found is None else found.failures)
    assert found is None or (found.generation, found.reason[:12]) == (0, "its consumer")
    assert known.of(0, 5) is None
    assert known.of(0, 6) is None


def test_a_record_that_is_handed_back_keeps_its_failures() -> None:
    assert Attempts(3, 1, not_before_ms=99, reason="unlucky") == queue(
        failed(4), begun(4), released("confirmed")
    ).redelivery.of(0, 4)


def test_a_record_is_dead_after_so_many_failures_and_keeps_its_topic() -> None:
    other = e.DeliveryPolicySet(**IDS, policy=e.DeliveryPolicy(max_deliveries=1, dead_letter_topic="other"), token="q")
    known = queue(failed(4), begun(4, 5), removed("evicted"), other, failed(6)).redelivery

    assert {1: (0, 4), 2: (0, 6)} == known.dead
    assert Attempts(3, 2, 0, 0, "its consumer ada was lost", 1, 5, "dead") == known.of(0, 4)
    assert Attempts(3, 1, 0, 0, "unlucky", 2, 7, "other") == known.of(0, 6)
    assert [known.of(0, 5)] == known.failed
    assert "p" == known.secret, "by which its consumers share the sender of dead letters, whatever the policy"


def test_without_a_limit_no_record_is_dead() -> None:
    assert not queue(*[failed(4)] * 99, policy=e.DeliveryPolicy()).redelivery.dead


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        (acknowledged((0, 3, 5)), [5]),
        (acknowledged((0, 3, 6, 0, 3)), [4, 5]),
        (acknowledged((0, 3, 6, 3, 4)), []),
        (acknowledged((0, 0, 100)), []),
        (e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 0}, token="s"), []),
        (e.SubscriptionSeek(**IDS, seek_generation=1, positions={1: 0}, token="s"), [4, 5]),
    ],
    ids=["a range", "other buckets", "its bucket", "all", "a seek", "a seek elsewhere"],
)
def test_a_record_is_forgotten_when_its_bucket_is_acknowledged_or_its_segment_moves(entry: e.AnyEntry, left: list[int]):
    known = queue(failed(4), failed(4), failed(5), entry).redelivery

    assert left == sorted(known.attempts.get(0, {}))
    assert ([(0, 4)] if 4 in left else []) == list(known.dead.values())


def test_a_pruned_segment_has_no_records() -> None:
    known = queue(failed(4), begun(5))
    known.forget_segments({0: 9})

    assert {} == known.redelivery.attempts


def test_deliveries_of_one_range_of_buckets_outlive_the_holder_of_another() -> None:
    known = queue(released("confirmed"))
    for generation, buckets in ((8, (0, 8)), (9, (8, 16))):
        known.apply(e.SegmentGranted(**IDS, segment=0, consumer="ada", generation=generation, first_bucket=buckets[0], end_bucket=buckets[1]), 9)  # fmt: skip
    known.apply(e.DeliveriesBegun(**IDS, records=[(0, 4, 3, 8), (0, 5, 9, 9)]), 9)
    known.apply(e.SegmentReleased(**IDS, segment=0, generation=8, reason="timed_out", first_bucket=0, end_bucket=8), 9)

    assert BucketRange(0, 8, 16) in known.holdings
    assert (1, 0) == (known.redelivery.of(0, 4).failures, known.redelivery.of(0, 5).failures)


def test_a_search_finds_what_is_in_the_range() -> None:
    search = OffsetSearch({0: dict.fromkeys([9, 1, 5], Attempts(0))})

    assert [[1, 5], [5], [], []] == [search.within(*part) for part in [(0, 1, 9), (0, 2, 9), (0, 2, 5), (1, 0, 100)]]
