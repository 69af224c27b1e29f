"""Decide which segments of a topic are pruned now, and say of every other sealed one why it stays.

Values in, a `PruneDecision` out. Who carries it out, and what becomes of the data, is for controller.retention.pruner.

The rules:

1. Only sealed segments go, and ancestors first: one whose ancestor stays, stays. So a parent that is missing from the
   layout was drained, which is what the gate takes it for.
2. A segment stays for its retention, counted from its sealing.
3. It stays until every STREAM and QUEUE subscription, and every one whose type is not known, has acknowledged all of
   it: a drained fact is on record, or the position stands at the sealed end (who left before anybody counted has read
   it all the same).
4. CHECKPOINT subscriptions acknowledge nothing. For them a segment stays for a bounded time after its sealing (Pulsar's
   scalable topics keep everything for as long as there is one).
5. A subscription that has had no consumer for too long keeps nothing, if that is switched on. It is named, because it
   loses what it has not read.
6. A topic without subscriptions keeps a segment for its retention and no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coordinator.decisions.gate import tracks_acknowledgements
from coordinator.state.subscription import Subscription
from headgate.model.entries import SubscriptionType
from headgate.model.layout import Layout, Segment, SegmentState

KEEP_FOREVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What holds for one topic."""

    retention_ms: int
    """How long after its sealing; `KEEP_FOREVER`: nothing goes."""
    checkpoint_retention_ms: int
    subscription_expiry_ms: int
    """0: no subscription is ever abandoned."""


@dataclass(frozen=True, slots=True)
class PruneDecision:
    """What goes and what stays."""

    segments: tuple[int, ...]
    """Ancestors first."""
    kept: Mapping[int, str]
    """Sealed segment → why it stays."""
    abandoned: tuple[str, ...]
    """Subscriptions that were not asked, by name."""


def decide_pruning(
    layout: Layout, subscriptions: Iterable[Subscription], rules: RetentionRules, now_ms: int
) -> PruneDecision:
    """Return which segments of ``layout`` go at ``now_ms``."""
    subscriptions = sorted(subscriptions, key=lambda subscription: subscription.name)
    abandoned = [subscription for subscription in subscriptions if _is_abandoned(subscription, rules, now_ms)]
    asked = [subscription for subscription in subscriptions if subscription not in abandoned]
    gone: list[int] = []
    kept: dict[int, str] = {}
    # Ids rise, so ancestors come before their descendants.
    for segment_id, segment in sorted(layout.segments.items()):
        if segment.state is not SegmentState.SEALED:
            continue
        reason = _retention_reason(segment, gone, layout, asked, rules, now_ms)
        if reason is None:
            gone.append(segment_id)
        else:
            kept[segment_id] = reason
    return PruneDecision(tuple(gone), MappingProxyType(kept), tuple(subscription.name for subscription in abandoned))


def _retention_reason(
    segment: Segment,
    gone: list[int],
    layout: Layout,
    asked: Iterable[Subscription],
    rules: RetentionRules,
    now_ms: int,
) -> str | None:
    assert segment.sealed_at_ms is not None, "a sealed segment knows when"
    sealed_ms = now_ms - segment.sealed_at_ms
    if rules.retention_ms == KEEP_FOREVER:
        return "nothing of this topic goes: its retention is none"
    if waits := [parent for parent in segment.parents if parent in layout.segments and parent not in gone]:
        return f"its ancestors {', '.join(map(str, waits))} stay"
    if sealed_ms < rules.retention_ms:
        return f"sealed {_seconds(sealed_ms)} s ago, kept for {_seconds(rules.retention_ms)} s"
    for subscription in asked:
        if subscription.type == SubscriptionType.CHECKPOINT:
            if sealed_ms < rules.checkpoint_retention_ms:
                return (
                    f"sealed {_seconds(sealed_ms)} s ago, kept for {_seconds(rules.checkpoint_retention_ms)} s for "
                    f"CHECKPOINT subscription {subscription.name!r}"
                )
        elif not _is_drained(subscription, segment):
            at = subscription.position(segment.segment_id)
            return f"subscription {subscription.name!r} has not read it to its end: {at} of {segment.end_offset}"
    return None


def _is_drained(subscription: Subscription, segment: Segment) -> bool:
    if not tracks_acknowledgements(subscription.type):
        return False
    assert segment.end_offset is not None, "a sealed segment has an end"
    return segment.segment_id in subscription.drained or subscription.position(segment.segment_id) >= segment.end_offset


def _is_abandoned(subscription: Subscription, rules: RetentionRules, now_ms: int) -> bool:
    since = subscription.unused_since_ms
    return bool(rules.subscription_expiry_ms) and since is not None and now_ms - since >= rules.subscription_expiry_ms


def _seconds(milliseconds: int) -> int:
    return milliseconds // 1000
