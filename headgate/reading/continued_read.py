"""Where a reader that remembers its own position continues in the present segments of a topic. Pure.

1. It remembers the segments that it has not read to their final end, with the offset to continue at, and the newest
   segment. Other segments up to the newest one are complete: they were sealed, or have been pruned since. So the size
   of a position depends on the active segments, and not on the age of the topic.
2. A segment that was pruned before it was read to its end is an error: its last records may be gone. So is one that was
   created and pruned since. Neither is if the leader remembers that the segment ended there.
3. An offset behind the present end is an error: the ledger was restored from an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.views.topics import TopicInfo


class CannotContinueError(HeadgateError):
    """Records before the position, or after it, are not those that the reader knew. The text says which."""


def continued(
    topic: TopicInfo,
    newest: int,
    unfinished: Mapping[int, int],
    *,
    skip_pruned: bool = False,
    pruned_ends: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Return segment → first unread offset, by segment, without complete segments.

    ``skip_pruned``: rule 2 does not apply. ``pruned_ends``: where pruned segments ended. Raises CannotContinueError.
    """
    ends = {each.segment: each.next_offset for each in topic.segments}
    starts = {}
    for segment, offset in unread(topic, newest, unfinished).items():
        if segment not in ends and (skip_pruned or pruned_ends.get(segment) == offset):
            continue
        where = f"segment {segment} of topic {topic.topic!r}"
        if segment not in ends:
            raise CannotContinueError(
                f"{where} was read up to offset {offset}, and pruned since: records after it may be gone"
            )
        if offset > ends[segment]:
            raise CannotContinueError(
                f"{where} ends at {ends[segment]}, and its first {offset} records were read: was the ledger restored "
                "from an older copy?"
            )
        starts[segment] = offset
    return dict(sorted(starts.items()))


def unread(topic: TopicInfo, newest: int, unfinished: Mapping[int, int]) -> dict[int, int]:
    """Return segment → first unread offset of all that may have unread records, whether they exist or were pruned.

    Ids follow each other. What a reader without a position never knew is not unread.
    """
    present = [each.segment for each in topic.segments]
    created = present if newest < 0 else range(newest + 1, max(present, default=-1) + 1)
    return {**unfinished, **dict.fromkeys(created, 0)}


def unfinished(topic: TopicInfo, reached: Mapping[int, int]) -> dict[int, int]:
    """Return those of ``reached``, segment → next offset, that are not at the final end of their segment."""
    final = {each.segment: each.next_offset for each in topic.segments if each.state == "sealed"}
    return {segment: offset for segment, offset in reached.items() if offset != final.get(segment)}
