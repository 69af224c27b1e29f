"""Decides which held segments make no progress, and whether another consumer can take them. Pure.

For a subscription with `max_processing_ms`, this applies to segments with unacknowledged records, whose holder is
connected and was not asked to release them:

1. A holder makes progress when it is granted the segment, and when it acknowledges, negatively acknowledges or begins
   a record of it. Without records there is nothing to do, so the time begins with the oldest one that is not
   acknowledged, rounded up to `SLOT_MS` of ledger time. After ten minutes, or in a sealed
   segment, the age of that record is no longer known: a leader that saw it earlier remembers it. QUEUE: records that
   wait for their next delivery, or are dead, do not count.
2. The time runs by the ledger's clock, so a change of leader does not renew it. An outage is not the holder's fault:
   each leader first gives it as long as a lost heartbeat takes to be noticed, or the limit if that is shorter.
3. If the ledger's clock was ahead, or the time began under this leader, the wait of this leader alone counts: its wall
   clock may be set.
4. The holder of an external segment reports when its oldest unhandled record arrived, or that there is none.
5. A segment is taken away only if another connected consumer can have it, whose own segments make progress.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headgate.model.layout import SegmentSlice, buckets_of, segment_of
from shard.state.progress import AcknowledgementProgress
from shard.state.redelivery import Attempts
from shard.state.subscription import Subscription
from shard.state.topic import TopicView

NEVER_TRIED: Final = Attempts(0)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A held segment, or a bucket range of one, with unacknowledged records."""

    segment_slice: SegmentSlice
    consumer: str
    offset: int
    """The first record that is not acknowledged."""
    progressed_ms: int
    """Ledger time of the last progress of its holder, or from which on the record is due, if that is later."""
    since_ms: int
    """Ledger time since which its holder has made no progress. A later look at the same record may know less."""


def unfinished(
    subscription: Subscription, topic: TopicView, now_ms: int, unhandled: Mapping[int, int | None]
) -> Iterator[Unfinished]:
    """Yield what rule 1 applies to. ``unhandled``: see `coordinator.membership.Membership.oldest_unhandled_ms`."""
    for held, holding in subscription.holdings.items():
        if holding.revoked_at_ms is None and subscription.consumers[holding.consumer].disconnected_at_ms is None:
            tail, arrived_ms = topic.tails[segment_of(held)], unhandled.get(segment_of(held))
            if arrived_ms is not None:
                position = subscription.position(segment_of(held))
                progressed_ms = max(holding.progressed_at_ms, arrived_ms)
                yield Unfinished(held, holding.consumer, position, progressed_ms, progressed_ms)
                continue
            offset, due_ms = _first_due(subscription, held, tail.next_offset, now_ms)
            if offset < tail.next_offset:
                stored_ms = tail.traffic.stored_by_ms(tail.next_offset - offset)
                stored_ms = stored_ms or topic.layout.segments[segment_of(held)].sealed_at_ms or 0
                progressed_ms = max(holding.progressed_at_ms, due_ms)
                yield Unfinished(held, holding.consumer, offset, progressed_ms, max(progressed_ms, stored_ms))


def _first_due(subscription: Subscription, held: SegmentSlice, end_offset: int, now_ms: int) -> tuple[int, int]:
    """Return the first record for the holder, and the ledger time before which it had to wait; the end: none is due."""
    segment, first = segment_of(held), (end_offset, 0)
    attempts = subscription.redelivery.attempts.get(segment, {})
    for bucket in buckets_of(held) if segment in subscription.progress.progress_by_bucket else (0,):
        for offset in _unacknowledged(subscription.progress.acknowledged_in(segment, bucket), end_offset):
            known = attempts.get(offset, NEVER_TRIED)
            if not known.dead_letter and known.not_before_ms <= now_ms:
                first = min(first, (offset, known.not_before_ms))
                break
    return first


def _unacknowledged(progress: AcknowledgementProgress, end_offset: int) -> Iterator[int]:
    offset = progress.position
    for acknowledged, following in (*progress.acknowledged_ranges, (end_offset, end_offset)):
        yield from range(offset, acknowledged)
        offset = following


def is_stalled(since_ms: int, now_ms: int, waited_seconds: float, limit_ms: int, window_seconds: float) -> bool:
    """Apply rules 2 and 3. ``waited_seconds``: for how long this leader has seen no progress since ``since_ms``."""
    limit_seconds = limit_ms / 1000
    return waited_seconds >= limit_seconds or (
        now_ms - since_ms >= limit_ms and waited_seconds >= min(limit_seconds, window_seconds)
    )


def takeable(subscription: Subscription, stalled: Collection[Unfinished]) -> Mapping[SegmentSlice, str]:
    """Return those of ``stalled`` that another consumer can have, and their present holders (rule 5)."""
    stuck = {each.consumer for each in stalled}
    others = any(
        consumer.disconnected_at_ms is None and consumer.stalled_at_ms is None and name not in stuck
        for name, consumer in subscription.consumers.items()
    )
    return {each.segment_slice: each.consumer for each in stalled} if others else {}
