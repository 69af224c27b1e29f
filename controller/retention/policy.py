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

Times are ages that leaders lived through (controller.state.ledger_time): no step of a clock prunes
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coordinator.decisions.gate import tracks_acknowledgements
from coordinator.state.subscription import Subscription
from headgate.model.entries import SubscriptionType
from headgate.model.layout import Layout, Segment, SegmentState

KEEP_FOREVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    retention_ms: int
    """Time after sealing; `KEEP_FOREVER`: nothing is pruned."""
    checkpoint_retention_ms: int
    subscription_expiry_ms: int
    """0: subscriptions do not expire."""


@dataclass(frozen=True, slots=True)
class PruneDecision:
    segments: tuple[int, ...]
    """Ancestors first."""
    retained: Mapping[int, str]
    """Sealed segment → reason."""
    abandoned: tuple[str, ...]
    """Names of the subscriptions that retain nothing, because they expired."""


def decide_pruning(
    layout: Layout, subscriptions: Iterable[Subscription], rules: RetentionRules, age_ms: Callable[[int], int]
) -> PruneDecision:
    """``age_ms`` returns the age of a ledger time."""
    subscriptions = sorted(subscriptions, key=lambda subscription: subscription.name)
    abandoned = [subscription for subscription in subscriptions if _is_abandoned(subscription, rules, age_ms)]
    retaining = [subscription for subscription in subscriptions if subscription not in abandoned]
    pruned: dict[int, None] = {}
    """In order, ancestors first."""
    retained: dict[int, str] = {}
    # Ancestors have lower ids than their descendants.
    for segment_id, segment in sorted(layout.segments.items()):
        if segment.state is not SegmentState.SEALED:
            continue
        reason = _retention_reason(segment, pruned, layout, retaining, rules, age_ms)
        if reason is None:
            pruned[segment_id] = None
        else:
            retained[segment_id] = reason
    return PruneDecision(
        tuple(pruned), MappingProxyType(retained), tuple(subscription.name for subscription in abandoned)
    )


def _retention_reason(
    segment: Segment,
    pruned: Container[int],
    layout: Layout,
    retaining: Iterable[Subscription],
    rules: RetentionRules,
    age_ms: Callable[[int], int],
) -> str | None:
    assert segment.sealed_at_ms is not None, "a sealed segment has a sealing time"
    sealed_ms = age_ms(segment.sealed_at_ms)
    if rules.retention_ms == KEEP_FOREVER:
        return "the topic has unlimited retention"
    if blocking := [parent for parent in segment.parents if parent in layout.segments and parent not in pruned]:
        return f"its ancestors {', '.join(map(str, blocking))} are retained"
    if sealed_ms < rules.retention_ms:
        return f"sealed {_seconds(sealed_ms)} s ago, retained for {_seconds(rules.retention_ms)} s"
    for subscription in retaining:
        if subscription.type == SubscriptionType.CHECKPOINT:
            if sealed_ms < rules.checkpoint_retention_ms:
                return (
                    f"sealed {_seconds(sealed_ms)} s ago, retained for {_seconds(rules.checkpoint_retention_ms)} s for "
                    f"CHECKPOINT subscription {subscription.name!r}"
                )
        elif not _is_drained(subscription, segment):
            position = subscription.position(segment.segment_id)
            return f"subscription {subscription.name!r} has acknowledged {position} of {segment.end_offset} records"
    return None


def _is_drained(subscription: Subscription, segment: Segment) -> bool:
    if not tracks_acknowledgements(subscription.type):
        return False
    assert segment.end_offset is not None, "a sealed segment has an end"
    return segment.segment_id in subscription.drained or subscription.position(segment.segment_id) >= segment.end_offset


def _is_abandoned(subscription: Subscription, rules: RetentionRules, age_ms: Callable[[int], int]) -> bool:
    since = subscription.unused_since_ms
    return bool(rules.subscription_expiry_ms) and since is not None and age_ms(since) >= rules.subscription_expiry_ms


def _seconds(milliseconds: int) -> int:
    return milliseconds // 1000
