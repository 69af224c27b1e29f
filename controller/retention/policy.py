"""Decides which sealed segments of a topic are pruned now, and why the others are retained. Pure.

1. Only sealed segments are pruned, ancestors first. A segment with a retained ancestor is retained,
   so a parent that is missing from the layout was drained, as the gate assumes.
2. A segment is retained for the retention time after it was sealed; without subscriptions, no
   longer.
3. It is retained until every STREAM, QUEUE and untyped subscription has acknowledged all of it: it
   is drained, or the position is at the sealed end (the consumer left before a drain check).
4. CHECKPOINT subscriptions retain a segment for a bounded time after it was sealed. (Pulsar's
   scalable topics: as long as the subscription exists.)
5. A subscription that had no consumers for the subscription expiry retains nothing. It is reported,
   because it loses its unread records.

Times are ages that leaders lived through (shard.state.ledger_time): no step of a clock prunes
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from headgate.model.entries import SubscriptionType
from headgate.model.layout import Layout, Segment, SegmentState
from shard.state.subscription import Subscription
from shard.steps import Steps
from shard.subscriptions.gate import tracks_acknowledgements

KEEP_FOREVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    retention_ms: int
    """Time after sealing; `KEEP_FOREVER`: nothing is pruned."""
    checkpoint_retention_ms: int
    subscription_expiry_ms: int
    """0: subscriptions do not expire."""


SEGMENTS_PER_COST = 8
"""Sealed segments of one subscription that are looked at for the cost of one unit."""


@dataclass(frozen=True, slots=True)
class PruneDecision:
    segments: tuple[int, ...]
    """Ancestors first."""
    retained: Mapping[int, str]
    """Sealed segment → reason."""
    abandoned: tuple[str, ...]
    """Names of the subscriptions that retain nothing, because they expired."""


PruneBasis = tuple[Layout, tuple[tuple[object, ...], ...]]


def prune_basis(layout: Layout, subscriptions: Iterable[Subscription]) -> PruneBasis:
    """Return what a decision depends on. While it is equal, what may be pruned does not become less.

    Only acknowledgements and drained segments change meanwhile, and both only allow more.
    """
    return layout, tuple(
        (each.subscription_id, each.type, each.seek_generation, each.unused_since_ms) for each in subscriptions
    )


def decide_pruning(
    layout: Layout, subscriptions: Iterable[Subscription], rules: RetentionRules, age_ms: Callable[[int], int]
) -> Steps[PruneDecision]:
    """Decide for the state that the steps find; see `prune_basis`. ``age_ms`` returns the age of a ledger time."""
    yield len(layout.segments)
    abandoned: list[str] = []
    retaining: list[Subscription] = []
    for subscription in sorted(subscriptions, key=lambda subscription: subscription.name):
        if _is_abandoned(subscription, rules, age_ms):
            abandoned.append(subscription.name)
        else:
            retaining.append(subscription)
    # Ancestors have lower ids than their descendants.
    age_of = cache(age_ms)  # Of few different times: an import seals thousands of segments at once.
    sealed_ms = {
        segment: _sealed_ms(known, age_of)
        for segment, known in sorted(layout.segments.items())
        if known.state is SegmentState.SEALED
    }
    if rules.retention_ms == KEEP_FOREVER:
        forever = dict.fromkeys(sealed_ms, "the topic has unlimited retention")
        return PruneDecision((), MappingProxyType(forever), tuple(abandoned))
    kept = yield from _kept_for_subscriptions(layout, sealed_ms, retaining, rules)
    yield len(sealed_ms)
    pruned: dict[int, None] = {}
    """In order, ancestors first."""
    retained: dict[int, str] = {}
    for segment, age in sealed_ms.items():
        blocking = [
            parent for parent in layout.segments[segment].parents if parent in layout.segments and parent not in pruned
        ]
        if blocking:
            retained[segment] = f"its ancestors {', '.join(map(str, blocking))} are retained"
        elif age < rules.retention_ms:
            retained[segment] = f"sealed {_seconds(age)} s ago, retained for {_seconds(rules.retention_ms)} s"
        elif segment in kept:
            retained[segment] = kept[segment]
        else:
            pruned[segment] = None
    return PruneDecision(tuple(pruned), MappingProxyType(retained), tuple(abandoned))


def _kept_for_subscriptions(
    layout: Layout, sealed_ms: Mapping[int, int], retaining: Iterable[Subscription], rules: RetentionRules
) -> Steps[dict[int, str]]:
    """Return the segments past their retention time that a subscription retains, and why: the first one by name."""
    ends = {segment: layout.segments[segment].end_offset or 0 for segment in sealed_ms}
    due = {segment for segment, age in sealed_ms.items() if age >= rules.retention_ms}
    kept: dict[int, str] = {}
    for subscription in retaining:
        yield 1 + len(due) // SEGMENTS_PER_COST
        if subscription.type == SubscriptionType.CHECKPOINT:
            found = {
                segment: f"sealed {_seconds(sealed_ms[segment])} s ago, retained for "
                f"{_seconds(rules.checkpoint_retention_ms)} s for CHECKPOINT subscription {subscription.name!r}"
                for segment in due
                if sealed_ms[segment] < rules.checkpoint_retention_ms
            }
        else:
            found = {
                segment: f"subscription {subscription.name!r} has acknowledged {subscription.position(segment)} of "
                f"{ends[segment]} records"
                for segment in _undrained(subscription, due, ends)
            }
        kept |= found
        due -= found.keys()
    return kept


def _undrained(subscription: Subscription, segments: AbstractSet[int], ends: Mapping[int, int]) -> Iterable[int]:
    """Return those of ``segments`` that ``subscription`` has not acknowledged to their end."""
    if not tracks_acknowledgements(subscription.type):
        return segments
    positions = subscription.positions
    return [segment for segment in segments - subscription.drained if positions.get(segment, 0) < ends[segment]]


def _sealed_ms(segment: Segment, age_ms: Callable[[int], int]) -> int:
    assert segment.sealed_at_ms is not None, "a sealed segment has a sealing time"
    return age_ms(segment.sealed_at_ms)


def _is_abandoned(subscription: Subscription, rules: RetentionRules, age_ms: Callable[[int], int]) -> bool:
    since = subscription.unused_since_ms
    return bool(rules.subscription_expiry_ms) and since is not None and age_ms(since) >= rules.subscription_expiry_ms


def _seconds(milliseconds: int) -> int:
    return milliseconds // 1000
