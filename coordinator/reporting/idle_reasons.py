"""Say why a consumer reads nothing, in words for people.

Values in, words out; nothing is decided here. First match wins:

1. Every segment waits for undrained ancestors, or none is left to read.
2. Something is on its way from one consumer to another: whoever is idle may be about to get it.
3. Balanced by load, it would be worse off, or make others so, with any one thing that they hold.
4. CHECKPOINT never shares a segment, nor is one shared while the type is unknown.
5. The consumer cannot read shares, or nobody beside it can.
6. Every segment is cut into its single buckets already.

Where segments wait for ancestors, that is said as well: there would be more to read without.
"""

from __future__ import annotations

from coordinator.balancing.bucket_split import is_shareable
from coordinator.decisions.gate import Gate
from coordinator.state.subscription import Subscription
from headgate.model.bucket_ranges import buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS


def idle_reasons(subscription: Subscription, gate: Gate) -> dict[str, str]:
    """Return the reason for every registered consumer that holds nothing, by name."""
    busy = {holding.consumer for holding in subscription.holdings.values()}
    idle = sorted(subscription.consumers.keys() - busy)
    if not idle:
        return {}
    readable, waiting = len(gate.grantable), len(gate.blocked)
    if readable == 0:
        nothing = f"all {waiting} segments wait for ancestors" if waiting else "every segment is drained"
        return dict.fromkeys(idle, nothing)
    more = f"; {waiting} of {readable + waiting} segments wait for ancestors" if waiting else ""
    moving = _has_pending_handover(subscription, gate)
    able = sum(consumer.supports_bucket_ranges for consumer in subscription.consumers.values())
    return {
        name: _reason(
            subscription, moving=moving, shares=subscription.consumers[name].supports_bucket_ranges, able=able
        )
        + more
        for name in idle
    }


def _reason(subscription: Subscription, *, moving: bool, shares: bool, able: int) -> str:
    if moving:
        return "a segment is on its way from one consumer to another"
    if subscription.balance == "load" and len(subscription.holdings) >= len(subscription.consumers):
        return "balanced by load, nothing that others hold would be read better here"
    if not is_shareable(subscription.type):
        return f"{subscription.type or 'a subscription without a type'} never shares, and every segment has a consumer"
    if not shares:
        return "it cannot share a segment (its client is too old), and every segment has a consumer"
    if able == 1:
        return "no other consumer can share a segment with it (their clients are too old)"
    return f"every segment is shared by {KEY_BUCKETS} already"


def _has_pending_handover(subscription: Subscription, gate: Gate) -> bool:
    held = dict.fromkeys(gate.grantable, 0)
    for segment_slice, holding in subscription.holdings.items():
        if holding.revoked_at_ms is not None:
            return True
        if segment_of(segment_slice) in held:
            held[segment_of(segment_slice)] += len(buckets_of(segment_slice))
    return any(count < KEY_BUCKETS for count in held.values())
