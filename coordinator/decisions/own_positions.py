"""Decides whether the positions that a CHECKPOINT consumer stores itself exist in the topic. Pure.

1. A position is at most the end of its segment. It came from a durable record, and ends never fall.
   So a higher one is from another history: the ledger was restored from an older backup, or the topic
   was created again. A consumer that waited there would skip every record up to the position.
2. A segment that the topic never had is from another history too. A pruned one is ignored: ids are
   never reused.
3. Only its source knows where a segment of an external topic ends.

A refusal needs a barrier, because a deposed leader does not know the newest ends. A position that new
records have passed since the restore looks like any other. Kafka answers OFFSET_OUT_OF_RANGE; it finds
the last case as well, by a leader epoch in each position (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.state.topic_view import TopicView

_CAUSE: Final = "the ledger was restored from an older backup, or the topic was created again"


def own_positions_error(topic: TopicView, positions: Iterable[tuple[int, int]]) -> str | None:
    """Return why a consumer cannot start at ``positions``, (segment, next offset) pairs; None if it can."""
    if topic.external is not None:
        return None
    for segment, position in sorted(positions):
        if segment >= topic.layout.next_segment_id:
            return (
                f"topic {topic.name!r} never had segment {segment}, of position {position}: {_CAUSE}; "
                "start without this position"
            )
        tail = topic.tails.get(segment)
        if tail is not None and position > tail.next_offset:
            return (
                f"segment {segment} of topic {topic.name!r} ends at {tail.next_offset}, before position {position}: "
                f"{_CAUSE}; start at {tail.next_offset} or below"
            )
    return None
