"""Plans which segments would move if the layout or the consumers changed. Pure.

1. Changes apply in the order splits, merges, joining, leaving consumers. An impossible change is
   rejected with the message of the real one.
2. ``after_rebalance`` is the state after all handovers. A pending revocation counts as released.
3. ``after_drain`` lists the further moves once all sealed segments are drained.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from headgate.errors import LayoutError
from headgate.model.layout import Layout, SegmentSlice, slice_fields
from headgate.model.text import listed
from headgate.protocol.requests import PlanChanges
from headgate.views.explanations import ConsumerSegmentCount, Plan, ProposedMove, ProposedSegment
from shard.balancing.balance import compute_target
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.steps import Steps
from shard.subscriptions.gate import compute_gate, drained_without_count, tracks_acknowledgements


def plan_changes(subscription: Subscription, topic: TopicView, changes: PlanChanges) -> Steps[Plan]:
    """Plan the moves that ``changes`` would cause.

    Raises LayoutError: a split, a merge, or a joining or leaving consumer is impossible.
    """
    before = {held: holding.consumer for held, holding in subscription.holdings.items()}
    layout = _changed(topic, changes)
    consumers = _consumers(subscription, changes)
    kept = {
        segment_slice: holding.consumer
        for segment_slice, holding in subscription.holdings.items()
        if holding.revoked_at_ms is None and holding.consumer in consumers
    }
    drained = subscription.drained.union(
        drained_without_count(layout, subscription.drained, subscription.type, subscription.progress.start_positions)
    )
    size = len(layout.segments) + len(consumers)
    yield size
    gate = compute_gate(layout, drained, subscription.type, subscription.order)
    yield size
    after_rebalance = compute_target(subscription, layout, gate.grantable, consumers, kept)
    if tracks_acknowledgements(subscription.type):
        drained |= layout.sealed
    yield size
    later_gate = compute_gate(layout, drained, subscription.type, subscription.order)
    yield size
    later = compute_target(subscription, layout, later_gate.grantable, consumers, after_rebalance)
    yield size
    moves_after_rebalance = _moves(before, after_rebalance)
    yield size
    moves_after_drain = _moves(after_rebalance, later)
    yield size
    return Plan(
        topic=topic.name,
        subscription=subscription.name,
        created=tuple(
            ProposedSegment(
                segment=segment,
                first_hash=layout.segments[segment].first_hash,
                last_hash=layout.segments[segment].last_hash,
                parents=layout.segments[segment].parents,
                blocked_by=gate.blocked.get(segment, ()),
            )
            for segment in sorted(layout.segments.keys() - topic.layout.segments.keys())
        ),
        after_rebalance=tuple(moves_after_rebalance),
        after_drain=tuple(moves_after_drain),
        consumers=tuple(_loads(subscription.consumers, consumers, before, after_rebalance, later)),
    )


def _changed(topic: TopicView, changes: PlanChanges) -> Layout:
    layout = topic.layout
    if topic.external is not None and (changes.splits or changes.merges):
        raise LayoutError(f"topic {topic.name!r} is external: only its source splits and merges segments")

    def end(segment: int) -> int:
        tail = topic.tails.get(segment)
        return 0 if tail is None else tail.next_offset

    return layout.changed(changes.splits, changes.merges, end, 0)


def _consumers(subscription: Subscription, changes: PlanChanges) -> dict[str, bool]:
    """Return name → whether it can read bucket ranges. A hypothetical consumer can."""
    consumers = {name: consumer.supports_bucket_ranges for name, consumer in subscription.consumers.items()}
    for name in changes.add_consumers:
        if name in consumers:
            raise LayoutError(f"consumer {name!r} is already registered; consumers: {listed(sorted(consumers))}")
        consumers[name] = True
    for name in changes.remove_consumers:
        if name not in consumers:
            raise LayoutError(f"there is no consumer {name!r}; consumers: {listed(sorted(consumers)) or 'none'}")
        del consumers[name]
    return consumers


def _moves(before: Mapping[SegmentSlice, str], after: Mapping[SegmentSlice, str]) -> list[ProposedMove]:
    return [
        ProposedMove(**slice_fields(segment_slice), before=before.get(segment_slice), after=after.get(segment_slice))
        for segment_slice in sorted(before.keys() | after.keys())
        if before.get(segment_slice) != after.get(segment_slice)
    ]


def _loads(
    registered: Collection[str],
    consumers: Collection[str],
    before: Mapping[SegmentSlice, str],
    after_rebalance: Mapping[SegmentSlice, str],
    later: Mapping[SegmentSlice, str],
) -> list[ConsumerSegmentCount]:
    held, first, then = Counter(before.values()), Counter(after_rebalance.values()), Counter(later.values())
    return [
        ConsumerSegmentCount(
            consumer=name,
            before=held[name] if name in registered else None,
            after_rebalance=first[name] if name in consumers else None,
            after_drain=then[name] if name in consumers else None,
        )
        for name in sorted({*registered, *consumers})
    ]
