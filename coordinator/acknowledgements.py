"""Decide whether a consumer's acknowledgements count.

Values in, an entry or a reason out. Whether the batch itself is new, doubled or out of order is judged elsewhere, like
any batch; here it is only about who may acknowledge what. First match wins:

1. CHECKPOINT keeps its own positions: nothing to acknowledge.
2. A consumer that is not registered, or not in this incarnation, is refused.
3. A segment that it does not hold at that very generation is refused: somebody else may be reading it. A holder that
   was told to finish still holds it.
4. An end beyond the last record is refused: it would call drained what has not been written.
5. QUEUE acknowledges ranges, and a range holds at least one record. STREAM is cumulative: the first offset means
   nothing, and an end behind the position changes nothing.

One bad acknowledgement refuses the whole batch that is passed in; the leader passes them one by one.
"""

from __future__ import annotations

from coordinator.subscription import Subscription
from coordinator.topic_view import TopicView
from headgate import entries as e
from headgate import messages as m


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
        reason = _reason_against(subscription, topic, batch.consumer, acknowledgement)
        if reason is not None:
            return reason
        first = acknowledgement.first_offset if subscription.type == "QUEUE" else 0
        ranges.append(e.AcknowledgedRange(acknowledgement.segment, first, acknowledgement.end_offset))
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


def _reason_against(
    subscription: Subscription,
    topic: TopicView,
    consumer: str,
    acknowledgement: m.Acknowledgement,
) -> str | None:
    segment, generation = acknowledgement.segment, acknowledgement.generation
    holding = subscription.holdings.get(segment)
    if holding is None or (holding.consumer, holding.generation) != (consumer, generation):
        holder = "nobody" if holding is None else f"{holding.consumer!r} at generation {holding.generation}"
        return f"segment {segment} is held by {holder}, not by {consumer!r} at generation {generation}"
    next_offset = topic.tails[segment].next_offset
    if acknowledgement.end_offset > next_offset:
        return f"segment {segment} ends at {next_offset}; offset {acknowledgement.end_offset} is beyond it"
    if subscription.type == "QUEUE" and acknowledgement.first_offset >= acknowledgement.end_offset:
        return f"range {acknowledgement.first_offset} to {acknowledgement.end_offset} of segment {segment} is empty"
    return None
