"""Say what would move if the layout or the consumers changed, without doing it.

The same gate and target that decide decide here, on a layout and on consumers that are only supposed. Values in, a
`ChangePlan` out.

The rules:

1. Changes are supposed in the order splits, merges, joins, leaves; one that would be refused is refused here, in the
   same words.
2. ``at_once`` is where everything would be when the handovers are through. What is revoked now counts as given up.
3. ``when_drained`` is what would move after that, once every sealed segment is drained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from coordinator.balancing.affinity import heirs_of
from coordinator.balancing.balance import owners
from coordinator.balancing.bucket_split import pools
from coordinator.decisions.gate import Gate, open_gate, tracks_acknowledgements
from coordinator.state.subscription import Subscription
from coordinator.state.topic_view import TopicView
from headgate.errors import LayoutError
from headgate.model.bucket_ranges import Place, bounds_of, segment_of
from headgate.model.layout import Layout, SegmentState
from headgate.protocol import messages as m


def what_if(subscription: Subscription, topic: TopicView, changes: m.PlanChanges) -> m.ChangePlan:
    """Return what ``changes`` would move.

    Raises:
        LayoutError: a split or merge, or a consumer that joins or leaves, is impossible; says why.

    """
    before = {p: holding.consumer for p, holding in subscription.holdings.items()}
    layout = _changed(topic, changes)
    consumers = _consumers(subscription, changes)
    kept = {
        place: holding.consumer
        for place, holding in subscription.holdings.items()
        if holding.revoked_at_ms is None and holding.consumer in consumers
    }
    gate = open_gate(layout, subscription.drained, subscription.type, subscription.order)
    at_once = _settled(subscription, layout, gate, consumers, kept)
    sealed = {s for s, segment in layout.segments.items() if segment.state is SegmentState.SEALED}
    drained = subscription.drained | sealed if tracks_acknowledgements(subscription.type) else subscription.drained
    later_gate = open_gate(layout, drained, subscription.type, subscription.order)
    later = _settled(subscription, layout, later_gate, consumers, at_once)
    return m.ChangePlan(
        topic=topic.name,
        subscription=subscription.name,
        created=[
            m.PlannedSegment(
                segment=segment,
                first_hash=layout.segments[segment].first_hash,
                last_hash=layout.segments[segment].last_hash,
                parents=list(layout.segments[segment].parents),
                blocked_by=list(gate.blocked.get(segment, ())),
            )
            for segment in sorted(layout.segments.keys() - topic.layout.segments.keys())
        ],
        at_once=_moves(before, at_once),
        when_drained=_moves(at_once, later),
        consumers=_loads(
            {name: len(subscription.held_by(name)) for name in subscription.consumers}, consumers, at_once, later
        ),
    )


def _changed(topic: TopicView, changes: m.PlanChanges) -> Layout:
    layout = topic.layout
    if topic.external is not None and (changes.splits or changes.merges):
        raise LayoutError(f"topic {topic.name!r} is external: its source decides how it splits and merges")

    def end(segment: int) -> int:
        tail = topic.tails.get(segment)
        return 0 if tail is None else tail.next_offset

    for segment in changes.splits:
        layout = layout.split(segment, end(segment), 0)
    for first, second in changes.merges:
        layout = layout.merge(first, second, {first: end(first), second: end(second)}, 0)
    return layout


def _consumers(subscription: Subscription, changes: m.PlanChanges) -> dict[str, bool]:
    """Return name → whether it can share segments; who is only supposed to join can."""
    consumers = {name: consumer.shares for name, consumer in subscription.consumers.items()}
    for name in changes.add_consumers:
        if name in consumers:
            raise LayoutError(f"consumer {name!r} is there already: {_listed(consumers)}")
        consumers[name] = True
    for name in changes.remove_consumers:
        if name not in consumers:
            raise LayoutError(f"there is no consumer {name!r}: {_listed(consumers)}")
        del consumers[name]
    return consumers


def _listed(consumers: Collection[str]) -> str:
    return f"consumers are {', '.join(sorted(consumers))}" if consumers else "there are no consumers"


def _settled(
    subscription: Subscription,
    layout: Layout,
    gate: Gate,
    consumers: Mapping[str, bool],
    holders: Mapping[Place, str],
) -> dict[Place, str]:
    """Return segment or share → owner once everybody has what the target says."""
    settled: dict[Place, str] = {}
    for pool in pools(subscription.type, gate.grantable, consumers, holders):
        heirs = heirs_of(holders, layout, pool.places)
        settled |= owners(subscription, pool, holders, heirs)
    return settled


def _moves(before: Mapping[Place, str], after: Mapping[Place, str]) -> list[m.PlannedMove]:
    return [
        m.PlannedMove(
            segment=segment_of(place),
            before=before.get(place),
            after=after.get(place),
            first_bucket=bounds_of(place)[0],
            end_bucket=bounds_of(place)[1],
        )
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    ]


def _loads(
    before: Mapping[str, int],
    consumers: Collection[str],
    at_once: Mapping[Place, str],
    later: Mapping[Place, str],
) -> list[m.ConsumerLoad]:
    there, first, then = set(consumers), Counter(at_once.values()), Counter(later.values())
    return [
        m.ConsumerLoad(
            consumer=name,
            before=before.get(name),
            at_once=first[name] if name in there else None,
            when_drained=then[name] if name in there else None,
        )
        for name in sorted(before.keys() | set(consumers))
    ]
