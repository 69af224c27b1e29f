"""Builds messages about a subscription: grants for consumers, descriptions for operators. Pure."""

from collections.abc import Mapping
from typing import Final

from headgate.model.layout import (
    KEY_BUCKETS,
    BucketRange,
    SegmentSlice,
    bucket_bounds,
    buckets_of,
    key_bucket,
    segment_of,
    sort_key,
)
from headgate.protocol.replies import BucketStart, ConsumerFenced, Grant
from headgate.views.subscriptions import (
    AssignmentStatus,
    BucketRangeAssignment,
    ConsumerInfo,
    HeldBucketRange,
    SegmentAssignment,
    SubscriptionInfo,
)
from shard.balancing.bucket_split import is_shareable
from shard.reporting.progress import segment_status, unacknowledged
from shard.state.consumers import Holding, RegisteredConsumer
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.steps import Steps, encoding_cost, parts
from shard.subscriptions.deliveries import failed_in
from shard.subscriptions.gate import Gate
from shard.subscriptions.positions import external_grant

_NO_RANGES: Final[list[BucketRangeAssignment]] = []
_UNKNOWN: Final[Mapping[str, int]] = {}


def build_grant(
    subscription: Subscription, topic: TopicView, segment_slice: SegmentSlice, *, durable: int, now_ms: int
) -> Grant:
    """Return the grant of a held ``segment_slice``. Reading starts at the position of each bucket.

    ``durable``: the newest durable chunk. A record that does not exist yet will be in a later one, however long ago the
    segment's last record was stored, if there is one. ``now_ms``: ledger time, for what is delivered again later.
    """
    # A whole segment without a call: a consumer may get thousands at once.
    segment, first_bucket, end_bucket = (
        (segment_slice, 0, 0) if isinstance(segment_slice, int) else sort_key(segment_slice)
    )
    redelivery, progress = subscription.redelivery, subscription.progress
    divided = segment in progress.progress_by_bucket
    starts = _bucket_starts(subscription, segment, buckets_of(segment_slice)) if divided else []
    start = min([part.start_offset for part in starts]) if starts else progress.positions.get(segment, 0)
    acknowledged = progress.acknowledged_ranges.get(segment)
    described, tail = topic.layout.segments[segment], topic.tails[segment]
    return Grant(
        segment=segment,
        first_bucket=first_bucket,
        end_bucket=end_bucket,
        generation=subscription.holdings[segment_slice].generation,
        first_hash=described.first_hash,
        last_hash=described.last_hash,
        start_offset=start,
        start_chunk=tail.chunk_of(start) if start < tail.next_offset else durable + 1,
        end_offset=described.end_offset,
        # Most segments have none of these.
        acknowledged=list(acknowledged) if acknowledged else [],
        external=external_grant(subscription, topic, segment) if topic.external else None,
        starts=[part for part in starts if part.start_offset > start or part.acknowledged] if starts else [],
        failed=failed_in(subscription, topic, segment_slice, now_ms) if redelivery.attempts else [],
        parked=[
            key
            for key in redelivery.parked.within(described.first_hash, described.last_hash)
            if key_bucket(key, KEY_BUCKETS) in buckets_of(segment_slice)
        ]
        if redelivery.parked.keys
        else [],
    )


def _bucket_starts(subscription: Subscription, segment: int, buckets: range) -> list[BucketStart]:
    """Return the start of each of ``buckets``, with equal neighbors combined."""
    found: list[BucketStart] = []
    for bucket in buckets:
        progress = subscription.progress.acknowledged_in(segment, bucket)
        part = BucketStart(bucket, bucket + 1, progress.position, list(progress.acknowledged_ranges))
        if found and (found[-1].start_offset, found[-1].acknowledged) == (part.start_offset, part.acknowledged):
            part = BucketStart(found.pop().first_bucket, bucket + 1, part.start_offset, part.acknowledged)
        found.append(part)
    return found


def fenced_push(
    subscription: Subscription, consumer: RegisteredConsumer, leader_epoch: int, reason: str
) -> ConsumerFenced:
    """Return the message that tells ``consumer`` that it was removed, and why."""
    return ConsumerFenced(
        topic=subscription.topic,
        subscription=subscription.name,
        consumer=consumer.consumer,
        incarnation=consumer.incarnation,
        leader_epoch=leader_epoch,
        reason=reason,
    )


def describe(
    subscription: Subscription, topic: TopicView, gate: Gate, last_heard_age_ms: Mapping[str, int] = _UNKNOWN
) -> Steps[SubscriptionInfo]:
    """Describe ``subscription``. ``last_heard_age_ms``: of its connected consumers, as far as the caller knows."""
    yield len(subscription.holdings)
    bucket_ranges = _range_progress_by_segment(subscription, topic)
    yield len(subscription.holdings) + len(subscription.consumers)
    consumers = _consumers(subscription, gate, last_heard_age_ms)
    segments: list[SegmentAssignment] = []
    for cost, some_segments in parts(sorted(topic.layout.segments)):
        yield cost
        segments += (
            _progress(subscription, topic, gate, segment, bucket_ranges.get(segment, _NO_RANGES))
            for segment in some_segments
        )
    yield encoding_cost(segments, consumers)
    return SubscriptionInfo(
        topic=topic.name,
        subscription=subscription.name,
        subscription_id=subscription.subscription_id,
        type=subscription.type,
        order=subscription.order,
        balance=subscription.balance,
        user=subscription.user,
        started_at_ms=subscription.progress.started_at_ms,
        dropped_records=subscription.dropped_records,
        policy=subscription.redelivery.policy,
        failed=len(subscription.redelivery.failed),
        dead=len(subscription.redelivery.dead),
        parked_keys=len(subscription.redelivery.parked.keys),
        seek_generation=subscription.seek_generation,
        consumers=consumers,
        segments=tuple(segments),
    )


def _consumers(
    subscription: Subscription, gate: Gate, last_heard_age_ms: Mapping[str, int]
) -> tuple[ConsumerInfo, ...]:
    slices: dict[str, list[SegmentSlice]] = {name: [] for name in subscription.consumers}
    for segment_slice, holding in sorted(subscription.holdings.items()):
        slices[holding.consumer].append(segment_slice)
    idle = idle_reasons(subscription, gate)
    return tuple(
        ConsumerInfo(
            consumer=name,
            incarnation=consumer.incarnation,
            connected=consumer.disconnected_at_ms is None,
            segments=tuple(sorted({segment_of(segment_slice) for segment_slice in slices[name]})),
            bucket_ranges=tuple(
                HeldBucketRange(segment_slice.segment, *bucket_bounds(segment_slice))
                for segment_slice in slices[name]
                if isinstance(segment_slice, BucketRange)
            ),
            idle=idle.get(name, ""),
            capacity=consumer.capacity,
            host=consumer.host,
            version=consumer.version,
            registered_at_ms=consumer.registered_at_ms,
            disconnected_at_ms=consumer.disconnected_at_ms,
            last_heard_age_ms=last_heard_age_ms.get(name),
        )
        for name, consumer in sorted(subscription.consumers.items())
    )


def _progress(
    subscription: Subscription, topic: TopicView, gate: Gate, segment: int, bucket_ranges: list[BucketRangeAssignment]
) -> SegmentAssignment:
    holding = subscription.holdings.get(segment)
    count = unacknowledged(subscription, topic, segment)
    return SegmentAssignment(
        segment=segment,
        status=segment_status(subscription, gate, segment, shared=bool(bucket_ranges)),
        acknowledged_offset=subscription.position(segment),
        # A consumer of an external topic may be beyond the last known offset.
        next_offset=max(topic.tails[segment].next_offset, subscription.position(segment)),
        consumer=None if holding is None else holding.consumer,
        generation=None if holding is None else holding.generation,
        blocked_by=gate.blocked.get(segment, ()),
        label=topic.layout.segments[segment].label,
        checkpoint=subscription.progress.checkpoint(segment),
        weight=subscription.weights.get(segment) if subscription.balance == "load" else None,
        bucket_ranges=tuple(bucket_ranges),
        unacknowledged=None if count is None else count.records,
        estimated=count is not None and count.estimated,
    )


def _range_progress_by_segment(subscription: Subscription, topic: TopicView) -> dict[int, list[BucketRangeAssignment]]:
    """Return shared segment → progress of its bucket ranges, held and free ones."""
    found: dict[int, list[BucketRangeAssignment]] = {}
    for segment_slice, holding in sorted(subscription.holdings.items()):
        if isinstance(segment_slice, BucketRange):
            known = found.setdefault(segment_slice.segment, [])
            _fill_gap(subscription, topic, segment_slice.segment, known, segment_slice.first_bucket)
            status: AssignmentStatus = "granted" if holding.revoked_at_ms is None else "revoking"
            known.append(_range_progress(subscription, topic, segment_slice, status, holding))
    for segment, known in found.items():
        _fill_gap(subscription, topic, segment, known, KEY_BUCKETS)
    return found


def _fill_gap(
    subscription: Subscription, topic: TopicView, segment: int, known: list[BucketRangeAssignment], end_bucket: int
) -> None:
    first_bucket = known[-1].end_bucket if known else 0
    if first_bucket < end_bucket:
        free = BucketRange(segment, first_bucket, end_bucket)
        known.append(_range_progress(subscription, topic, free, "waiting", None))


def _range_progress(
    subscription: Subscription,
    topic: TopicView,
    bucket_range: BucketRange,
    status: AssignmentStatus,
    holding: Holding | None,
) -> BucketRangeAssignment:
    count = unacknowledged(subscription, topic, bucket_range)
    return BucketRangeAssignment(
        first_bucket=bucket_range.first_bucket,
        end_bucket=bucket_range.end_bucket,
        status=status,
        acknowledged_offset=min(
            subscription.progress.acknowledged_in(bucket_range.segment, bucket).position
            for bucket in buckets_of(bucket_range)
        ),
        consumer=None if holding is None else holding.consumer,
        generation=None if holding is None else holding.generation,
        unacknowledged=None if count is None else count.records,
        estimated=count is not None and count.estimated,
    )


def idle_reasons(subscription: Subscription, gate: Gate) -> dict[str, str]:
    """Explain why each consumer without a segment has none. The first matching reason applies.

    1. All segments are blocked by undrained ancestors, or all are drained.
    2. The consumer made no progress for too long, and has not asked for a record since.
    3. A segment is moving, so the idle consumer may be about to get it.
    4. When balancing by load, no single move would even out the load.
    5. The type does not share segments: CHECKPOINT, or not yet known.
    6. The consumer cannot read bucket ranges, or no other consumer can.
    7. Each segment is already divided into single buckets.

    The text also states how many segments are blocked: those would give more to read.
    """
    busy = {holding.consumer for holding in subscription.holdings.values()}
    idle = sorted(subscription.consumers.keys() - busy)
    readable, waiting = len(gate.grantable), len(gate.blocked)
    if readable == 0:
        blocked = f"all {waiting} segments are blocked" if waiting > 1 else "the only segment left is blocked"
        return dict.fromkeys(idle, blocked if waiting else "all segments are drained")
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
    holdings = subscription.holdings
    if any(holding.revoked_at_ms is not None for holding in holdings.values()):
        return True
    held = {segment: 0 for segment in gate.grantable if segment not in holdings}
    for segment_slice in holdings if held else ():
        if segment_of(segment_slice) in held:
            held[segment_of(segment_slice)] += len(buckets_of(segment_slice))
    return any(count < KEY_BUCKETS for count in held.values())
