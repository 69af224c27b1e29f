"""Decides whether the positions that a CHECKPOINT consumer stores itself exist in the topic. Pure.

1. Positions are of one topic. One that was created again under the name has another id.
2. A position is at most the end of its segment, and the topic has had the segment. Ends never fall, and ids are
   never reused, so another position is of another history (shard.requests.history finds most of them first).
3. A pruned segment was read to its end. If the position is before it, the records in between are gone, and a
   consumer that continues would skip them in silence. The ends of the latest pruned segments are known; an older
   position counts as one before the end. A consumer may ask to pass over such segments.
4. So is a segment that was created after those of the positions and pruned since, unless it was empty, or the
   subscription has another consumer, which may have read it, or this one, which was granted what was not read.
5. Only its source knows where a segment of an external topic ends.

A refusal needs a barrier, because a deposed leader does not know the newest ends. Kafka answers
OFFSET_OUT_OF_RANGE, and finds other histories by a leader epoch in each position (KIP-320).
"""

from collections.abc import Mapping
from typing import Final

from headgate.model.layout import Layout
from headgate.model.text import listed
from headgate.protocol.request_fields import Behind
from headgate.protocol.requests import RegisterConsumer
from shard.state.topic import TopicView

_CAUSE: Final = "the ledger was restored from an older backup, or the topic was created again"


def own_positions_error(
    topic: TopicView, pruned_ends: Mapping[int, int], request: RegisterConsumer, *, alone: bool = True
) -> str | None:
    """Return why a consumer cannot start at the positions in ``request``; None if it can. ``alone``: by rule 4."""
    if request.positions and request.positions_topic_id not in (None, topic.topic_id):
        return (
            f"these positions are of topic {topic.name!r} with id {request.positions_topic_id}, which was deleted: the "
            f"present topic has id {topic.topic_id}, and other records; start without positions"
        )
    if topic.external is not None:
        return None
    for segment, position in sorted(request.positions):
        reason = _position_error(topic, pruned_ends, segment, position, request.behind)
        if reason is not None:
            return reason
    if not request.positions or not alone or request.behind == "continue":
        return None
    newer = range(max(request.positions)[0] + 1, topic.layout.next_segment_id)
    unread = next((each for each in newer if each not in topic.tails and pruned_ends.get(each) != 0), None)
    if unread is None:
        return None
    return f"segment {unread} of topic {topic.name!r} was created and pruned since: its records {_gone(topic.layout)}"


def _position_error(
    topic: TopicView, pruned_ends: Mapping[int, int], segment: int, position: int, behind: Behind
) -> str | None:
    tail, where = topic.tails.get(segment), f"segment {segment} of topic {topic.name!r}"
    if segment >= topic.layout.next_segment_id:
        return (
            f"topic {topic.name!r} never had segment {segment}, of position {position}: {_CAUSE}; "
            "start without this position"
        )
    if tail is not None and position > tail.next_offset:
        return f"{where} ends at {tail.next_offset}, before position {position}: {_CAUSE}; start without this position"
    if tail is not None or position == (end := pruned_ends.get(segment)):
        return None
    if behind == "continue" and (end is None or position < end):
        return None
    lost = f"{position} to {end - 1}" if end is not None and position < end else f"from {position} on"
    return f"{where} was pruned before it was read: its records {lost} {_gone(topic.layout)}"


def _gone(layout: Layout) -> str:
    first = [str(segment) for segment, known in sorted(layout.segments.items()) if not known.parents]
    return (
        f"are gone, and the first kept ones begin at offset 0 of segment {listed(first)}; "
        'continue there with behind="continue", and raise retention.checkpoint_retention_seconds'
    )
