"""Explains why a consumer has no segment. Pure. The first matching reason applies.

1. All segments are blocked by undrained ancestors, or all are drained.
2. The consumer made no progress for too long, and has not asked for a record since.
3. A segment is moving, so the idle consumer may be about to get it.
4. When balancing by load, no single move would even out the load.
5. The type does not share segments: CHECKPOINT, or not yet known.
6. The consumer cannot read bucket ranges, or no other consumer can.
7. Each segment is already divided into single buckets.

The text also states how many segments are blocked: those would give more to read.
"""

from headgate.model.hashing import KEY_BUCKETS, buckets_of, segment_of
from shard.balancing.bucket_split import is_shareable
from shard.state.subscription import Subscription
from shard.subscriptions.gate import Gate


def idle_reasons(subscription: Subscription, gate: Gate) -> dict[str, str]:
    busy = {holding.consumer for holding in subscription.holdings.values()}
    idle = sorted(subscription.consumers.keys() - busy)
    readable, waiting = len(gate.grantable), len(gate.blocked)
    if readable == 0:
        blocked = f"all {waiting} segments are blocked" if waiting > 1 else "the only segment left is blocked"
        reason = blocked if waiting else "all segments are drained"
        return dict.fromkeys(idle, reason)
    suffix = f"; {waiting} of {readable + waiting} segments are blocked" if waiting else ""
    moving = _has_pending_handover(subscription, gate)
    able = sum(consumer.supports_bucket_ranges for consumer in subscription.consumers.values())
    return {
        name: "it made no progress for too long, and its program has not asked for a record since"
        if subscription.consumers[name].stalled_at_ms is not None
        else _reason(subscription, moving=moving, shares=subscription.consumers[name].supports_bucket_ranges, able=able)
        + suffix
        for name in idle
    }


def _reason(subscription: Subscription, *, moving: bool, shares: bool, able: int) -> str:
    if moving:
        return "a segment is moving between consumers"
    if subscription.balance == "load" and len(subscription.holdings) >= len(subscription.consumers):
        return "moving a segment to it would not even out the load"
    if not is_shareable(subscription.type):
        kind = "of type CHECKPOINT" if subscription.type else "of unknown type"
        return f"segments of a subscription {kind} are not shared, and each has a consumer"
    if not shares:
        return "its client reads whole segments only, and each has a consumer"
    if able == 1:
        return "the clients of the other consumers read whole segments only"
    return f"each segment is already shared by {KEY_BUCKETS} consumers"


def _has_pending_handover(subscription: Subscription, gate: Gate) -> bool:
    held = dict.fromkeys(gate.grantable, 0)
    for segment_slice, holding in subscription.holdings.items():
        if holding.revoked_at_ms is not None:
            return True
        if segment_of(segment_slice) in held:
            held[segment_of(segment_slice)] += len(buckets_of(segment_slice))
    return any(count < KEY_BUCKETS for count in held.values())
