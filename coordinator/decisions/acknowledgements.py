"""Decide whether a consumer's acknowledgements count.

Values in, an entry or a reason out. Whether the batch itself is new, doubled or out of order is judged elsewhere, like
any batch; here it is only about who may acknowledge what. First match wins:

1. CHECKPOINT keeps its own positions: nothing to acknowledge.
2. A consumer that is not registered, or not in this incarnation, is rejected.
3. A segment that it does not hold at that very generation is rejected: somebody else may be reading it. A holder that
   was told to finish still holds it. Of a share it speaks for that share's buckets alone.
4. An end beyond the last record is rejected: it would call drained what has not been written. Where an external
   topic's segments end says coordinator.decisions.external_topics.
5. QUEUE acknowledges ranges, and a range holds at least one record. STREAM is cumulative: the first offset means
   nothing, and an end behind the position changes nothing.

One bad acknowledgement refuses the whole batch that is passed in; the leader passes them one by one.
"""

from __future__ import annotations

from coordinator.decisions.external_topics import acknowledgeable_end
from coordinator.state.subscription import Subscription
from coordinator.state.topic_view import TopicView
from headgate.model import entries as e
from headgate.model.bucket_ranges import bucket_bounds, segment_of
from headgate.protocol import messages as m


def judge(subscription: Subscription, topic: TopicView, batch: m.AcknowledgeBatch) -> e.RecordsAcknowledged | str:
    """Return the entry for ``batch``, or the reason why it does not count."""
    if subscription.type == "CHECKPOINT":
        return f"subscription {subscription.name!r} is of type CHECKPOINT: its consumers keep their own positions"
    known = subscription.consumers.get(batch.consumer)
    if known is None:
        return f"consumer {batch.consumer!r} is not registered"
    if known.incarnation != batch.incarnation:
        return f"consumer {batch.consumer!r} is incarnation {known.incarnation} now; this is {batch.incarnation}"
    ranges: list[e.AcknowledgedRange] = []
    for acknowledgement in batch.acknowledgements:
        segment_slice = subscription.held_at(acknowledgement.segment, acknowledgement.generation)
        if segment_slice is None or subscription.holdings[segment_slice].consumer != batch.consumer:
            return _not_held_error(subscription, batch.consumer, acknowledgement)
        reason = _range_error(subscription, topic, acknowledgement)
        if reason is not None:
            return reason
        first = acknowledgement.first_offset if subscription.type == "QUEUE" else 0
        ranges.append(
            e.AcknowledgedRange(
                acknowledgement.segment, first, acknowledgement.end_offset, *bucket_bounds(segment_slice)
            ),
        )
    return e.RecordsAcknowledged(
        topic_id=subscription.topic_id,
        subscription_id=subscription.subscription_id,
        seek_generation=subscription.seek_generation,
        ranges=ranges,
        count=len(batch.acknowledgements),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
    )


def _not_held_error(subscription: Subscription, consumer: str, acknowledgement: m.Acknowledgement) -> str:
    segment, generation = acknowledgement.segment, acknowledgement.generation
    holders = [
        f"{holding.consumer!r} at generation {holding.generation}"
        for segment_slice, holding in sorted(subscription.holdings.items())
        if segment_of(segment_slice) == segment
    ]
    return (
        f"segment {segment} is held by {', '.join(holders) or 'nobody'}, not by {consumer!r} at generation {generation}"
    )


def _range_error(
    subscription: Subscription,
    topic: TopicView,
    acknowledgement: m.Acknowledgement,
) -> str | None:
    segment = acknowledgement.segment
    end = acknowledgeable_end(topic, segment)
    if end is not None and acknowledgement.end_offset > end:
        return f"segment {segment} ends at {end}; offset {acknowledgement.end_offset} is beyond it"
    if subscription.type == "QUEUE" and acknowledgement.first_offset >= acknowledgement.end_offset:
        return f"range {acknowledgement.first_offset} to {acknowledgement.end_offset} of segment {segment} is empty"
    return None
