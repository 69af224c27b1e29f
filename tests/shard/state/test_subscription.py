"""The fold of one subscription, entry by entry."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.layout import BucketRange
from headgate.model.positions import OffsetRanges
from headgate.protocol.backlog import RecordCount
from shard.state.consumers import Holdings
from shard.state.subscription import Subscription

IDS = {"topic_id": 1, "subscription_id": 2}
RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda drawn: (drawn[0], sum(drawn))), max_size=30
)


def subscription(kind: str = "STREAM", positions: dict[int, int] | None = None) -> Subscription:
    created = e.SubscriptionCreated(
        **IDS, subscription="billing", subscription_type=kind, order="none", positions=positions or {}
    )
    return Subscription.created(created, "orders")


def acknowledged(*ranges: tuple[int, int, int], seek_generation: int = 0) -> e.RecordsAcknowledged:
    parts = [e.AcknowledgedRange(*part) for part in ranges]
    return e.RecordsAcknowledged(**IDS, seek_generation=seek_generation, ranges=parts)


def held() -> Subscription:
    """Consumer ada holds segments 0 and 1, of which 1 is revoked; bob holds 2."""
    known = subscription()
    for name in ("ada", "bob"):
        known.apply(e.ConsumerRegistered(**IDS, consumer=name, incarnation=1, client_id=name), 0)
    for segment, name in ((0, "ada"), (1, "ada"), (2, "bob")):
        known.apply(e.SegmentGranted(**IDS, segment=segment, consumer=name, generation=segment + 1), 0)
    known.apply(e.SegmentRevoked(**IDS, segment=1, generation=2), 7)
    return known


@given(RANGES)
def test_queue_ranges_equal_the_set_of_acknowledged_offsets(ranges: list[tuple[int, int]]) -> None:
    """Compared with a plain set. The ranges are sorted, disjoint, separated, and above the position."""
    known, expected = subscription("QUEUE"), set()
    for first, end in ranges:
        known.apply(acknowledged((0, first, end)), 0)
        expected |= set(range(first, end))

        above = known.progress.acknowledged_ranges.get(0, [])
        assert expected == set(range(known.position(0))) | {n for part in above for n in range(*part)}
        edges = [known.position(0), *(edge for part in above for edge in part)]
        assert all(before < after for before, after in pairwise(edges))


def test_a_snapshot_follows_acknowledgements_up_to_a_seek_and_nothing_else() -> None:
    known = held()
    shot = known.snapshot()
    known.apply(acknowledged((0, 0, 5)), 0)
    assert 5 == shot.position(0)

    known.apply(e.SegmentRevoked(**IDS, segment=0, generation=1), 7)
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)
    known.apply(e.ConsumerDisconnected(**IDS, consumer="ada", incarnation=1), 7)
    known.apply(e.SegmentsDrained(**IDS, segments=[0], seek_generation=1), 7)

    assert not known.holdings, "a seek ends all grants"
    assert known.holdings.held_at(2, 3) is None
    assert (5, 0, set()) == (shot.position(0), shot.seek_generation, shot.drained)
    assert [None, 7, None] == [shot.holdings[segment].revoked_at_ms for segment in (0, 1, 2)]
    assert shot.consumers["ada"].disconnected_at_ms is None


def test_entries_of_an_older_seek_generation_are_ignored() -> None:
    known = subscription()
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)
    known.apply(acknowledged((0, 0, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0], seek_generation=0), 0)

    assert {0: 2} == known.progress.positions
    assert set() == known.drained


def test_a_seek_revokes_drained_facts_and_ranges_of_the_moved_segments() -> None:
    known = subscription("QUEUE", {0: 1})
    known.apply(acknowledged((0, 3, 5), (1, 3, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0, 1], seek_generation=0), 0)
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)

    assert ({1}, {0: 2}) == (known.drained, known.progress.start_positions)
    assert {1: OffsetRanges([(3, 5)])} == known.progress.acknowledged_ranges
    assert (2, 0) == (known.position(0), known.position(1))


def test_a_removed_consumer_holds_nothing() -> None:
    known = held()
    known.apply(e.ConsumerRemoved(**IDS, consumer="ada", incarnation=1, reason="left"), 9)
    assert ({2}, {"bob"}) == (set(known.holdings), set(known.consumers))


def test_a_pruned_segment_leaves_no_state_behind() -> None:
    known = held()
    known.apply(acknowledged((0, 0, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0], seek_generation=0), 0)
    known.apply(e.SegmentWeightsSet(**IDS, weights={0: 16}), 0)
    known.forget_segments({0: 0})

    assert ({}, {}, set()) == (known.weights, known.progress.positions, known.drained)
    assert {1, 2} == set(known.holdings)


def test_a_configuration_sets_type_and_order() -> None:
    known = subscription()
    known.apply(e.SubscriptionConfigured(**IDS, subscription_type="QUEUE", order="none"), 7)
    assert ("QUEUE", "none", "count", 7) == (known.type, known.order, known.balance, known.gated_since_ms)
    known.apply(e.SubscriptionConfigured(**IDS, subscription_type="QUEUE", order="none", balance="load"), 9)
    assert ("load", 7) == (known.balance, known.gated_since_ms)


def test_a_consumer_is_registered_since_its_incarnation_joined() -> None:
    known = held()
    ada = {**IDS, "consumer": "ada", "client_id": known.consumers["ada"].client_id}
    known.apply(e.ConsumerRegistered(**ada, incarnation=2, host="node-a", version="1"), 10)
    known.apply(e.ConsumerRegistered(**ada, incarnation=2, capacity=50, host="node-a", version="1"), 20)
    assert known.consumers["ada"].registered_at_ms == 10, "only its capacity has changed"

    known.apply(e.ConsumerRegistered(**ada, incarnation=3, host="node-b", version="1"), 30)
    assert (known.consumers["ada"].registered_at_ms, known.consumers["ada"].host) == (30, "node-b")


def test_a_subscription_is_unused_since_its_last_consumer_was_removed() -> None:
    known = held()
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={}, token=""), 5)
    assert known.consumers.unused_since_ms is None

    known.apply(e.ConsumerRemoved(**IDS, consumer="ada", incarnation=1, reason="left"), 10)
    assert known.consumers.unused_since_ms is None
    known.apply(e.ConsumerRemoved(**IDS, consumer="bob", incarnation=1, reason="evicted"), 20)
    assert known.consumers.unused_since_ms == 20
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=2, positions={}, token=""), 25)
    # What moves it without a consumer uses it.
    assert known.consumers.unused_since_ms == known.progress.started_at_ms == known.gated_since_ms == 25
    known.apply(e.ConsumerRegistered(**IDS, consumer="ada", incarnation=2, client_id="ada"), 30)
    assert known.consumers.unused_since_ms is None


FACTS = st.lists(
    st.tuples(st.sampled_from([(0, 0), (0, 8), (8, 16), (4, 8), (15, 16)]), st.integers(0, 20), st.integers(1, 6)),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@given(FACTS)
def test_the_progress_of_a_bucket_combines_its_ranges_and_those_of_all_buckets(kind: str, facts: list) -> None:
    """Compared with one plain set per bucket."""
    known = subscription(kind)
    expected: list[set[int]] = [set() for _ in range(16)]
    for (first_bucket, end_bucket), drawn, length in facts:
        first = 0 if kind == "STREAM" else drawn
        known.apply(acknowledged((0, first, first + length, first_bucket, end_bucket)), 0)
        for offsets in expected[first_bucket : end_bucket or 16]:
            offsets.update(range(first, first + length))

    for bucket, offsets in enumerate(expected):
        progress = known.progress.acknowledged_in(0, bucket)
        assert offsets == set(range(progress.position)) | {
            n for part in progress.acknowledged_ranges for n in range(*part)
        }
    assert known.position(0) == min(known.progress.acknowledged_in(0, bucket).position for bucket in range(16))
    assert (0 in known.progress.progress_by_bucket) == any(offsets != expected[0] for offsets in expected)
    assert not (known.progress.progress_by_bucket and known.progress.acknowledged_ranges), (
        "progress is in one of the two"
    )


def test_a_seek_resets_all_buckets_of_the_moved_segments() -> None:
    known = subscription("QUEUE")
    known.apply(acknowledged((0, 3, 5, 0, 8), (1, 3, 5, 0, 8)), 0)
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)

    assert {2} == {known.progress.acknowledged_in(0, bucket).position for bucket in range(16)}
    assert {1} == set(known.progress.progress_by_bucket)


def test_a_pruned_segment_leaves_no_bucket_state_behind() -> None:
    known = held()
    known.apply(e.SegmentGranted(**IDS, segment=3, consumer="bob", generation=4, first_bucket=0, end_bucket=8), 0)
    known.apply(acknowledged((3, 0, 5, 0, 8)), 0)
    known.forget_segments({3: 0})

    assert ({}, None) == (known.progress.progress_by_bucket, known.holdings.held_at(3, 4))
    assert {0, 1, 2} == set(known.holdings)


def test_a_bucket_range_is_held_at_its_generation_until_released() -> None:
    known = held()
    bucket_range = BucketRange(3, 0, 8)
    range_fields = {**IDS, "segment": 3, "generation": 4, "first_bucket": 0, "end_bucket": 8}
    known.apply(e.SegmentGranted(**range_fields, consumer="bob"), 0)
    known.apply(e.SegmentRevoked(**range_fields), 7)

    assert bucket_range == known.holdings.held_at(3, 4)
    for holdings in (known.holdings, Holdings(known.holdings, 5)):
        assert ([bucket_range], [2]) == (holdings.held_in({3}), holdings.held_in({2})), "as it was, and restored"
    assert known.holdings.held_at(2, 4) is None
    assert [2, bucket_range] == known.holdings.held_by("bob")
    assert (7, 5) == (known.holdings[bucket_range].revoked_at_ms, known.holdings.next_generation)
    known.apply(e.SegmentReleased(**range_fields, reason="confirmed"), 8)
    assert (None, []) == (known.holdings.held_at(3, 4), known.holdings.held_in({3}))


def test_only_what_a_holder_does_in_its_buckets_is_its_progress() -> None:
    known = held()
    parts = {
        name: {"segment": 3, "generation": n, "first_bucket": 8 * n - 32, "end_bucket": 8 * n - 24}
        for n, name in enumerate(("ada", "bob"), 4)
    }
    for name, part in parts.items():
        known.apply(e.SegmentGranted(**IDS, **part, consumer=name), 1)
        known.consumers.set_stalled(name, 2)
    policy = e.DeliveryPolicy(max_processing_ms=60_000)
    known.apply(e.DeliveryPolicySet(**IDS, policy=policy, token="p"), 3)
    assert {3} == {each.progressed_at_ms for each in known.holdings.values()}, "there was no limit before"
    known.consumers.set_stalled("ada", 4)
    known.apply(e.DeliveriesBegun(**IDS, records=[(3, 0, 9, 5)]), 5)
    assert [3, 5] == [known.holdings[BucketRange(3, first, first + 8)].progressed_at_ms for first in (0, 8)]
    known.apply(e.SegmentReleased(**IDS, **parts["ada"], reason="confirmed"), 6)

    assert {"ada": 4, "bob": None} == {name: each.stalled_at_ms for name, each in known.consumers.items()}


def test_weights_are_merged_and_the_balance_is_recorded() -> None:
    known = subscription()
    known.apply(e.SubscriptionConfigured(**IDS, subscription_type="STREAM", order="strict", balance="load"), 0)
    known.apply(e.SegmentWeightsSet(**IDS, weights={0: 16, 1: 400}), 0)
    known.apply(e.SegmentWeightsSet(**IDS, weights={1: 90}), 0)

    assert ("load", {0: 16, 1: 90}) == (known.balance, known.weights)


def test_an_entry_without_balance_or_capacity_has_the_defaults() -> None:
    """Defaults are not encoded."""
    entry = e.ConsumerRegistered(**IDS, consumer="ada", incarnation=1, client_id="c")
    assert b"capacity" not in e.encode_entry(entry)
    known = subscription()
    known.apply(e.decode_entry(e.encode_entry(entry)), 0)

    assert (100, "count") == (known.consumers["ada"].capacity, known.balance)


def test_the_latest_thousand_removed_consumers_are_remembered() -> None:
    known = subscription()
    for n in range(1001):
        known.apply(e.ConsumerRegistered(**IDS, consumer=f"c{n}", incarnation=1, client_id="c"), 0)
        known.apply(e.ConsumerRemoved(**IDS, consumer=f"c{n}", incarnation=1, reason="left"), 0)

    assert [f"c{n}" for n in range(1, 1001)] == [each.consumer for each in known.consumers.removed]


def test_the_backlog_of_a_queue_is_exact_for_a_segment_and_estimated_for_a_part_of_it() -> None:
    known = subscription("QUEUE")
    known.apply(acknowledged((0, 2, 5)), 0)

    assert RecordCount(7) == known.progress.unacknowledged_records(0, 10)
    assert RecordCount(4, estimated=True) == known.progress.unacknowledged_records(BucketRange(0, 0, 8), 10)
    known.apply(acknowledged((0, 0, 5, 0, 8)), 0)
    assert [6, 3] == [known.progress.unacknowledged_records(part, 10).records for part in (0, BucketRange(0, 0, 8))]


def test_a_segment_that_was_acknowledged_beyond_its_known_end_has_no_backlog() -> None:
    """The source of an external topic knows the end of an active segment, the ledger does not."""
    assert RecordCount(0) == subscription(positions={0: 7}).progress.unacknowledged_records(0, 0)


def test_the_newest_checkpoint_of_each_segment_is_kept_until_a_seek_moves_it() -> None:
    known = subscription()
    a, b, x = (e.Checkpoint(text, 1, 1) for text in "abx")
    for checkpoints in ({0: a, 1: x}, {0: b}):
        known.apply(e.RecordsAcknowledged(**IDS, seek_generation=0, ranges=[], checkpoints=checkpoints), 0)
    assert {0: b, 1: x} == known.progress.checkpoints
    known.apply(e.SubscriptionSeek(**IDS, seek_generation=1, positions={0: 0}, token="t"), 0)

    assert {1: x} == known.progress.checkpoints
