"""Decide what is different for the subscriptions of an external topic, whose records headgate does not store.

The rules:

1. Its consumers read its source themselves and say so when they register. One that does not would wait for chunks that
   never come; and one that does so for a topic stored here would skip what is stored.
2. A subscription begins at the earliest record: where an active segment ends now is known at the source alone.
3. Where offsets count, an active segment may be acknowledged as far as its consumer says; a sealed one to its end.
4. Where positions are opaque, 1 means "read to its end", and may be said before the seal has been imported: a reader at
   the source learns of it first, and an end is final there.
5. A seek goes back: to the beginning, or to what is known. Its segments lose their checkpoints. Where an active segment
   ends is not known, so nobody can seek to the latest record.
"""

from __future__ import annotations

from coordinator.state.subscription import Subscription
from coordinator.state.topic_view import TopicView
from headgate.protocol import messages as m


def registration_error(topic: TopicView, request: m.RegisterConsumer, *, creates: bool) -> str | None:
    """Return why ``request`` cannot be taken (rules 1 and 2), if it cannot."""
    if topic.external is None:
        if request.external:
            return f"topic {topic.name!r} is stored by headgate: read it with Consumer, not with ExternalConsumer"
        return None
    if not request.external:
        return (
            f"topic {topic.name!r} is external, its records stand at their source: "
            "read them with ExternalConsumer, or register with external"
        )
    if creates and request.start != "earliest":
        return f"topic {topic.name!r} is external: begin at 'earliest', only its source knows where it ends now"
    return None


def acknowledgeable_end(topic: TopicView, segment: int) -> int | None:
    """Return the highest end offset that may be acknowledged in ``segment`` (rules 3 and 4); None: any."""
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


def remaining_description(topic: TopicView, segment: int, position: int) -> str | None:
    """Return in words what is left in a segment that cannot be counted here; None where it can."""
    if topic.external is None:
        return None
    if topic.external.positions == "opaque":
        return "read to its end" if position else "not read to its end"
    if topic.layout.segments[segment].end_offset is None:
        return f"acknowledged to {position}, and its source alone knows how much is left"
    return None


def external_grant(subscription: Subscription, topic: TopicView, segment: int) -> m.ExternalGrant | None:
    """Return what a grant of ``segment`` says beside, if its topic is external."""
    label = topic.layout.segments[segment].label
    if topic.external is None or label is None:
        return None
    return m.ExternalGrant(
        label=label,
        positions=topic.external.positions,
        checkpoint=subscription.checkpoints.get(segment),
    )
