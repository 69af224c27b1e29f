"""Decides what differs for subscriptions of an external topic, whose records are stored elsewhere.

1. Its consumers read the source themselves, and declare that when they register. One that does not
   would wait for chunks that never arrive; one that declares it for a stored topic would skip
   records.
2. A subscription starts at the earliest record: only the source knows where an active segment ends.
3. With offset positions, an active segment may be acknowledged to any offset, a sealed one to its
   end.
4. With opaque positions, position 1 means "read to its end". It may come before the seal is
   imported: a reader sees the final end first.
5. A seek goes to the beginning or to a known position, never to the latest, and discards the
   checkpoints of its segments.
"""

from headgate.protocol.replies import ExternalGrant
from headgate.protocol.request_fields import Start
from headgate.protocol.requests import RegisterConsumer
from shard.state.subscription import Subscription
from shard.state.topic import TopicView


def registration_error(topic: TopicView, request: RegisterConsumer, *, creates: bool) -> str | None:
    """Return why ``request`` must be rejected (rules 1 and 2); None if it need not be."""
    if topic.external is None:
        if request.external:
            return f"topic {topic.name!r} is stored by headgate: read it with Consumer, not with ExternalConsumer"
        return None
    if not request.external:
        return f"topic {topic.name!r} is external: read its source with ExternalConsumer, or register with external set"
    return start_error(topic, request.start) if creates else None


def start_error(topic: TopicView, start: Start) -> str | None:
    """Return why a new subscription cannot begin at ``start`` (rule 2); None if it can."""
    if topic.external is None or start == "earliest":
        return None
    return f"topic {topic.name!r} is external: start at 'earliest', because only its source knows its current end"


def acknowledgeable_end(topic: TopicView, segment: int) -> int | None:
    """Return the highest end offset that may be acknowledged in ``segment`` (rules 3, 4); None: no limit."""
    if topic.external is None:
        return topic.tails[segment].next_offset
    return topic.external.max_end_offset(topic.layout.segments[segment])


def seekable_ends(subscription: Subscription, topic: TopicView) -> dict[int, int]:
    """Return segment → the highest offset that a seek may name (rule 5)."""
    external = topic.external is not None
    return {
        segment: max(tail.next_offset, subscription.position(segment)) if external else tail.next_offset
        for segment, tail in topic.tails.items()
    }


def remaining_at_source(topic: TopicView, segment: int, position: int) -> str:
    """Describe a segment of an external topic that is not acknowledged to its end. Only its source counts records."""
    assert topic.external is not None, "headgate counts the records that it stores"
    if topic.external.positions == "opaque":
        return "not read to its end"
    end_offset = topic.layout.segments[segment].end_offset
    known_end = "" if end_offset is None else f" of {end_offset}"
    return f"acknowledged to {position}{known_end} (only its source counts records)"


def external_grant(subscription: Subscription, topic: TopicView, segment: int) -> ExternalGrant | None:
    label = topic.layout.segments[segment].label
    if topic.external is None or label is None:
        return None
    return ExternalGrant(
        label=label, positions=topic.external.positions, checkpoint=subscription.progress.checkpoint(segment)
    )
