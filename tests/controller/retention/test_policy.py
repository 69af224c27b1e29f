"""Which segments are pruned, and why the others are retained."""

from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.retention.policy import (
    PruneDecision,
    RetentionRules,
    decide_pruning,
    decide_rolls,
    deletable,
    prune_basis,
    rules_for,
    trim_point,
)
from controller.settings.sections import RetentionSettings
from headgate.ledger.objects import ChunkRange
from headgate.model.entries import DeliveryPolicy, TopicPolicy
from headgate.model.layout import Layout
from shard.state.consumers import Consumers
from shard.state.progress import Progress
from shard.state.redelivery import Attempts
from shard.state.subscription import Subscription
from shard.state.topic import SegmentTail
from shard.steps import complete
from shard.subscriptions.gate import compute_gate

HOUR = 3_600_000
SPLIT = Layout.initial(1, 0).split(0, 10, 0)
"""Segment 0 of ten records, sealed at 0; 1 and 2 are active."""
DEEP = SPLIT.split(1, 5, 0).merge(2, 4, {2: 4, 4: 0}, 0)
"""0 → 1, 2; 1 → 3, 4; 2 and 4 → 5. Active: 3 and 5."""


def subscription(
    kind: Any = "STREAM", *, name: str = "s", unused_since_ms: int | None = None, **fields: Any
) -> Subscription:
    """``fields``: of its progress."""
    order, consumers = "strict" if kind == "STREAM" else "none", Consumers(unused_since_ms=unused_since_ms)
    return Subscription(1, "t", 2, name, kind, order, consumers=consumers, progress=Progress(**fields))


def rules_of(**rules: Any) -> RetentionRules:
    fields = {"max_age_ms": HOUR, "checkpoint_retention_ms": 2 * HOUR, "subscription_expiry_ms": 0} | rules
    return RetentionRules(**fields)


def tails_of(layout: Layout, size_bytes: int = 100, records: int = 10) -> dict[int, SegmentTail]:
    return {segment: SegmentTail(next_offset=records, size_bytes=size_bytes) for segment in layout.segments}


def pruning(layout: Layout, *subscriptions: Subscription, now_ms: int = HOUR, **rules: Any) -> PruneDecision:
    steps = decide_pruning(
        layout, tails_of(layout), subscriptions, rules_of(**rules), lambda since_ms: now_ms - since_ms
    )
    return complete(steps)


@pytest.mark.parametrize(
    ("max_bytes", "pruned"), [(600, ()), (500, (0,)), (400, (0, 1)), (299, (0, 1, 2)), (0, (0, 1, 2, 4)), (-1, ())]
)
def test_a_topic_loses_its_oldest_segments_while_it_has_its_greatest_size_without_them(max_bytes, pruned):
    assert pruned == pruning(DEEP, max_age_ms=-1, max_bytes=max_bytes).segments


def test_a_subscription_retains_what_is_too_much_unless_it_is_ignored_or_all_are() -> None:
    unread = subscription(positions={0: 9})

    assert pruning(SPLIT, unread, max_age_ms=-1, max_bytes=0).segments == ()
    assert pruning(SPLIT, unread, subscription("CHECKPOINT", name="c"), ignored="all").segments == (0,)
    unread.redelivery.policy = DeliveryPolicy(ignored_by_retention=True)
    assert pruning(SPLIT, unread).segments == (0,)
    assert pruning(SPLIT, unread, subscription(name="other")).segments == ()
    assert pruning(SPLIT, unread, ignored="none").segments == (), "the command prunes only what is drained"
    unread.redelivery.policy = DeliveryPolicy()
    assert pruning(SPLIT, unread, max_age_ms=-1, max_bytes=1000).retained == {
        0: "sealed 3600 s ago, retained while the topic has at most 1000 bytes (max-bytes)"
    }


ROLLED = Layout.initial(2, 0).roll(0, 10, 1000)
"""0 → 2; 1 and 2 are active."""


@pytest.mark.parametrize(
    ("rules", "now_ms", "rolled"),
    [
        ({}, 1000 + HOUR // 8, [(1, "age"), (2, "age")]),
        ({}, HOUR // 8, [(1, "age")]),
        ({}, 1000 + HOUR, [(1, "age")]),  # A subscription retains 0, so another segment would free nothing.
        ({"max_age_ms": 0}, 4999, []),
        ({"max_age_ms": 0}, 5000, [(1, "age")]),
        ({"max_age_ms": -1, "max_bytes": 1600}, 7000, [(1, "size"), (2, "size")]),
        ({"max_age_ms": -1, "max_bytes": 1601}, 7000, [(1, "size"), (2, "size")]),
        ({"max_age_ms": -1, "max_bytes": 1616}, 7000, []),
        ({"max_age_ms": -1, "max_bytes": 150}, 7000, [(1, "size")]),
        ({"max_age_ms": -1}, 10**15, []),
    ],
)
def test_an_active_segment_is_rolled_at_a_part_of_the_greatest_age_or_size(rules, now_ms, rolled):
    rolls = decide_rolls(ROLLED, tails_of(ROLLED), rules_of(**rules), lambda since_ms: now_ms - since_ms)

    assert rolled == [(roll.segment, roll.why) for roll in rolls]
    assert [] == decide_rolls(ROLLED, tails_of(ROLLED, records=0), rules_of(), lambda since_ms: HOUR - since_ms)


@pytest.mark.parametrize(
    ("policy", "settings", "expected"),
    [
        (TopicPolicy(), {}, (-1, -1, "chosen")),
        (TopicPolicy(), {"max_age_seconds": 1.5, "max_bytes": 7, "ignore_subscriptions": True}, (1500, 7, "all")),
        (
            TopicPolicy(max_age_ms=-1, max_bytes=0, ignore_subscriptions=False),
            {"max_age_seconds": 1.5, "max_bytes": 7, "ignore_subscriptions": True},
            (-1, 0, "chosen"),
        ),
    ],
)
def test_a_topic_overrides_the_settings_of_the_cluster(policy, settings, expected):
    rules = rules_for(policy, RetentionSettings(**settings))

    assert expected == (rules.max_age_ms, rules.max_bytes, rules.ignored)


CHECKPOINT = subscription("CHECKPOINT")
READ, UNREAD = subscription(drained={0}, name="a"), subscription(name="b")
ACKNOWLEDGED = subscription(positions={0: 10})
OF_UNKNOWN_TYPE = subscription(None, positions={0: 10}, drained={0})
"""It may be CHECKPOINT, whose consumers acknowledge nothing, so its position does not count."""


@pytest.mark.parametrize(
    ("subscriptions", "now_ms", "reason"),
    [
        pytest.param([], HOUR, None, id="without subscriptions only the retention time counts"),
        pytest.param([READ], HOUR, None, id="drained"),
        pytest.param([ACKNOWLEDGED], HOUR, "10 of 10 records, and a drain check is missing", id="both witnesses"),
        pytest.param([subscription("QUEUE", positions={0: 10})], HOUR, None, id="its children do not wait"),
        pytest.param([READ], HOUR - 1, "sealed 3599 s ago, retained for 3600 s (max-age)", id="drained, and too young"),
        *(
            pytest.param([subscription(kind, positions={0: 9})], 10**12, "'s' has acknowledged 9 of 10 records")
            for kind in ("STREAM", "QUEUE", None)
        ),
        pytest.param([OF_UNKNOWN_TYPE], HOUR, "subscription 's' has acknowledged", id="of unknown type"),
        pytest.param([READ, UNREAD], HOUR, "'b'", id="each subscription can retain it"),
        pytest.param([UNREAD, subscription(name="a")], HOUR, "'a'", id="the first by name, whatever the order"),
        pytest.param([CHECKPOINT], 2 * HOUR - 1, "for CHECKPOINT subscription 's'", id="CHECKPOINT for a time"),
        pytest.param([CHECKPOINT], 2 * HOUR, None, id="and no longer"),
    ],
)
def test_a_sealed_segment_is_pruned_or_retained_for_a_reason(subscriptions, now_ms, reason):
    found = pruning(SPLIT, *subscriptions, now_ms=now_ms)

    assert ((0,), {}) == (found.segments, found.retained) if reason is None else reason in found.retained[0]


def test_a_segment_without_a_record_is_retained_for_a_subscription_of_unknown_type() -> None:
    retained = pruning(Layout.initial(1, 0).split(0, 0, 0), subscription(None)).retained
    assert retained == {0: "subscription 's' has acknowledged 0 of 0 records"}


def test_a_record_that_is_not_yet_in_its_dead_letter_topic_retains_its_segment() -> None:
    parked = subscription(drained={0}, positions={0: 10})
    parked.redelivery.attempts[0] = {4: Attempts(0, dead_letter=1)}

    assert pruning(SPLIT, parked).segments == ()


OF_BASIS = ["subscription_id", "type", "order", "progress.seek_generation", "consumers.unused_since_ms"]


@pytest.mark.parametrize("change", [*OF_BASIS, "redelivery.policy"])
def test_a_decision_is_made_again_after_what_may_retain_more(change: str) -> None:
    changed = subscription()
    *part, name = change.split(".")
    value = DeliveryPolicy(ignored_by_retention=True) if name == "policy" else 5
    setattr(attrgetter(*part)(changed) if part else changed, name, value)
    assert prune_basis(SPLIT, [subscription()]) != prune_basis(SPLIT, [changed])


def test_ancestors_are_pruned_first() -> None:
    assert pruning(DEEP, subscription(drained={0, 1, 2, 4})).segments == (0, 1, 2, 4)

    held = pruning(DEEP, subscription(drained={0, 2, 4}))
    assert held.segments == (0, 2)
    assert held.retained[4] == "its ancestors 1 are retained"


@pytest.mark.parametrize(
    ("since_ms", "now_ms", "expiry_ms", "expires"),
    [
        pytest.param(0, 3 * HOUR, 3 * HOUR, True, id="unused for that long"),
        pytest.param(0, 3 * HOUR - 1, 3 * HOUR, False, id="unused for less"),
        pytest.param(0, 10**12, 0, False, id="expiry is disabled"),
        pytest.param(None, 10**12, 1, False, id="in use"),
    ],
)
def test_an_unused_subscription_expires(since_ms: Any, now_ms: int, expiry_ms: int, expires: bool) -> None:
    found = pruning(SPLIT, subscription(unused_since_ms=since_ms), now_ms=now_ms, subscription_expiry_ms=expiry_ms)

    assert (found.segments, found.abandoned) == (((0,), ("s",)) if expires else ((), ()))
    # What keeps dead letters does not expire.
    keeper = subscription("QUEUE", name="dead-letters-0-7", unused_since_ms=0)
    assert () == pruning(SPLIT, keeper, now_ms=10**12, subscription_expiry_ms=1).segments


@st.composite
def _situations(draw: st.DrawFn) -> tuple[Layout, list[Subscription]]:
    layout = Layout.initial(draw(st.integers(1, 3)), 0)
    for at_ms in range(draw(st.integers(0, 6))):
        ring = sorted(layout.active(), key=lambda segment: segment.first_hash)
        if draw(st.booleans()) and len(ring) > 1:
            at = draw(st.integers(0, len(ring) - 2))
            first, second = ring[at].segment_id, ring[at + 1].segment_id
            layout = layout.merge(first, second, {first: 5, second: 5}, at_ms)
        else:
            layout = layout.split(draw(st.sampled_from(ring)).segment_id, 5, at_ms)
    ids = st.sets(st.sampled_from(sorted(layout.segments)))
    kinds = st.sampled_from(["STREAM", "QUEUE"])
    return layout, [
        subscription(kind, drained=drained, name=f"s{n}")
        for n, (kind, drained) in enumerate(draw(st.lists(st.tuples(kinds, ids), max_size=3)))
    ]


@given(_situations())
def test_pruned_segments_are_drained_and_change_no_gate(situation: tuple[Layout, list[Subscription]]) -> None:
    """Every sealed segment is either pruned or retained, and all subscriptions drained the pruned ones."""
    layout, subscriptions = situation
    found = pruning(layout, *subscriptions, now_ms=10**9)
    after = layout
    for segment in found.segments:
        after = after.prune([segment])

    assert set(found.segments) | set(found.retained) == layout.sealed
    for known in subscriptions:
        assert known.drained.issuperset(found.segments)
        before = compute_gate(layout, known.drained, known.type, known.order).grantable
        assert compute_gate(after, known.drained, known.type, known.order).grantable == before


def test_one_prune_removes_fewer_segments_the_more_subscriptions_fold_it() -> None:
    layout = Layout.initial(600, 0).changed(range(600), [], lambda _: 0, 0)
    many = pruning(layout, *(subscription(name=f"s{n}", drained=set(layout.sealed)) for n in range(40)))
    assert (600, tuple(range(512))) == (len(pruning(layout).segments), many.segments)
    assert many.retained == dict.fromkeys(
        range(512, 600), "one prune removes at most 512 segments of this topic: prune again"
    )


@pytest.mark.parametrize(("segments", "extra"), [(15, 1), (16, 2)])
def test_a_subscription_costs_a_unit_and_one_for_each_eight_segments_that_are_due(segments: int, extra: int) -> None:
    """The leader serves others between steps, so a cost that is too low stalls it and one that is too high delays pruning."""
    layout = Layout.initial(segments, 0)
    for segment in range(segments):
        layout = layout.split(segment, 0, 0)
    rules = rules_of(checkpoint_retention_ms=HOUR)

    def cost(*subscriptions: Subscription) -> int:
        return sum(decide_pruning(layout, {}, subscriptions, rules, lambda since_ms: HOUR - since_ms))

    assert cost(subscription()) - cost() == 1 + extra


def point(snapshots: list[int], *manifests: tuple[int, int, int]) -> int:
    """Return the trim point at hour 10 with a delay of 6 h; manifests are (first, last, hour written)."""
    visible = [(ChunkRange(first, last), (10 - hour) * HOUR) for first, last, hour in manifests]
    return trim_point(snapshots, visible, delay_ms=6 * HOUR)


@pytest.mark.parametrize(
    ("snapshots", "manifests", "expected"),
    [
        pytest.param([30, 40], [(1, 20, 0)], 20, id="the last compacted chunk is kept"),
        pytest.param([15, 40], [(1, 20, 0)], 15, id="chunks from the oldest snapshot on are kept"),
        pytest.param([30], [(1, 20, 0)], 1, id="one snapshot, which may be damaged later"),
        pytest.param([30, 40], [], 1, id="nothing is compacted"),
        pytest.param([30, 40], [(1, 20, 5)], 1, id="a manifest younger than the delay"),
        pytest.param([30, 40], [(1, 10, 4), (11, 20, 5)], 10, id="one manifest younger than the delay"),
        pytest.param([30, 40], [(11, 20, 0)], 1, id="no manifest covers the first chunks"),
        pytest.param([60, 70], [(1, 10, 0), (11, 20, 1), (1, 20, 9)], 20, id="replaced manifests count"),
    ],
)
def test_the_trim_point_keeps_what_restore_and_readers_need(snapshots, manifests, expected):
    assert expected == point(snapshots, *manifests)


def test_the_first_chunk_of_every_term_is_kept() -> None:
    assert [2, 3, 5] == deletable([5, 4, 3, 2, 1, 6], below=6, term_start_chunks=[1, 4])
