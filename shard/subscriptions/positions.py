"""Decides where a subscription may be: after a seek, by positions that its consumers store, and at an external source.

An external topic, whose records are stored elsewhere, differs:

1. Its consumers read the source themselves, and declare that when they register. One that does not would wait for
   chunks that never arrive; one that declares it for a stored topic would skip records.
2. A subscription starts at the earliest record: only the source knows where an active segment ends.
3. A seek goes to the beginning or to a known position, never to the latest, and discards the
   checkpoints of its segments.
"""

from collections.abc import Mapping
from typing import Final, Literal

from headgate.model.layout import Layout
from headgate.model.text import listed
from headgate.protocol.replies import ExternalGrant
from headgate.protocol.request_fields import Behind, Start
from headgate.protocol.requests import RegisterConsumer
from shard.state.subscription import Subscription
from shard.state.topic import TopicView

SeekTarget = Literal["earliest", "latest"] | Mapping[int, int]
"""A named position, or segment → offset."""


def seek_positions(
    seek_target: SeekTarget, *, layout: Layout, ends: Mapping[int, int], positions: Mapping[int, int], gated: bool
) -> dict[int, int] | str:
    """Decide the position of each segment after a seek: what is below it counts as acknowledged.

    1. ``earliest`` is the first record of each segment. ``latest`` is the current end of each, sealed ones included,
       so no older record is delivered.
    2. Explicit positions name segments of the layout and offsets from 0 to the segment's end. Anything else is
       rejected, not clamped, and the reason lists the choices.
    3. In strict order, the descendants of a named segment that is not at its end restart at 0, at any depth, unless
       they are named too.
    4. In strict order, no record is skipped implicitly: a position above 0 after an ancestor that is not at its end
       is rejected, with the positions to add.
    5. All other segments keep their positions.

    Pulsar's scalable topics keep drained facts across a seek, so rewound records of a sealed segment wait for a change
    of leader. Kafka resets only a group without members. Here the entry revokes the facts, and consumers keep running.

    Return segment → new position for each moved or named segment, or why the seek is rejected.

    ``ends``: segment → the offset after its last record. ``positions``: segment → current position, default 0.
    ``gated``: children wait for their ancestors.
    """
    if seek_target == "earliest":
        return dict.fromkeys(sorted(layout.segments), 0)
    if seek_target == "latest":
        return {segment: ends[segment] for segment in sorted(layout.segments)}
    assert not isinstance(seek_target, str), f"unknown seek target {seek_target!r}"
    if not seek_target:
        return "no position is given: name at least one segment with its offset"
    for segment, offset in sorted(seek_target.items()):
        if segment not in layout.segments:
            return f"there is no segment {segment}; the segments are {listed(sorted(layout.segments))}"
        if offset > ends[segment]:
            return f"segment {segment} ends at {ends[segment]}; {offset} is beyond it: choose 0 to {ends[segment]}"
    moved = {segment: seek_target[segment] for segment in sorted(seek_target)}
    if not gated:
        return moved
    behind_named = layout.descendants({segment for segment, offset in seek_target.items() if offset < ends[segment]})
    moved.update(dict.fromkeys(behind_named - seek_target.keys(), 0))
    if above_start := [segment for segment, offset in sorted(seek_target.items()) if offset > 0]:
        after = {**positions, **moved}
        behind_unread = layout.descendants(
            {segment for segment in layout.segments if after.get(segment, 0) < ends[segment]}
        )
        for segment in above_start:
            if segment in behind_unread:
                return _skipped_records_error(segment, seek_target[segment], layout, ends, after)
    return dict(sorted(moved.items()))


def _skipped_records_error(
    segment: int, offset: int, layout: Layout, ends: Mapping[int, int], positions: Mapping[int, int]
) -> str:
    """Return why ``segment`` cannot be at ``offset``: it would skip records of its ancestors (rule 4)."""
    unread = {a: ends[a] - positions.get(a, 0) for a in sorted(layout.ancestors(segment))}
    unread = {a: count for a, count in unread.items() if count > 0}
    unread_ancestors = listed([f"{a} ({positions.get(a, 0)} of {ends[a]})" for a in unread])
    choices = listed([f"{a}={ends[a]}" for a in unread], separator=" ")
    return (
        f"segment {segment} at {offset} comes after unread records of segment {unread_ancestors}: "
        f"choose {segment}=0, or add {choices} to skip {sum(unread.values())} records"
    )


_CAUSE: Final = "the ledger was restored from an older backup, or the topic was created again"


def own_positions_error(
    topic: TopicView, pruned_ends: Mapping[int, int], request: RegisterConsumer, *, alone: bool = True
) -> str | None:
    """Decide whether the positions that a CHECKPOINT consumer stores itself exist in the topic.

    1. Positions are of one topic. One that was created again under the name has another id.
    2. A position is at most the end of its segment, and the topic has had the segment. Ends never fall, and ids are
       never reused, so another position is of another history (shard.requests.verdicts finds most of them first).
    3. A pruned segment was read to its end. If the position is before it, the records in between are gone, and a
       consumer that continues would skip them in silence. The ends of the latest pruned segments are known; an older
       position counts as one before the end. A consumer may ask to pass over such segments.
    4. So is a segment that was created after those of the positions and pruned since, unless it was empty, or the
       subscription has another consumer, which may have read it, or this one, which was granted what was not read.
    5. Only its source knows where a segment of an external topic ends.

    A refusal needs a barrier, because a deposed leader does not know the newest ends. Kafka answers
    OFFSET_OUT_OF_RANGE, and finds other histories by a leader epoch in each position (KIP-320).

    Return why a consumer cannot start at the positions in ``request``; None if it can. ``alone``: by rule 4.
    """
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


def seekable_ends(subscription: Subscription, topic: TopicView) -> dict[int, int]:
    """Return segment → the highest offset that a seek may name (rule 3)."""
    ends = {segment: tail.next_offset for segment, tail in topic.tails.items()}
    positions = {} if topic.external is None else subscription.progress.positions
    return ends | {segment: known for segment, known in positions.items() if known > ends.get(segment, known)}


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
