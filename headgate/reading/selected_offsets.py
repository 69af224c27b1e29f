"""Which offsets of which segments a reader of a topic wants. Pure.

A segment loses its records as a whole, when it is pruned. So the offsets of an existing one begin at 0.
"""

from collections.abc import Mapping

from headgate.errors import PositionOutOfRangeError
from headgate.model.text import listed
from headgate.views.topics import TopicInfo

OffsetBounds = tuple[int, int]
"""The first offset, and the one before which to stop."""


def select_offsets(
    topic: TopicInfo, offsets: Mapping[int, tuple[int, int | None]] | None = None
) -> dict[int, OffsetBounds]:
    """Return segment → wanted offsets, in the order of the segments.

    Args:
        topic: a current description from the leader.
        offsets: segment → the first offset, and the one before which to stop, or None for the present end. None: all.

    Raises:
        PositionOutOfRangeError: a segment or an offset does not exist. The text names what does.
    """
    ends = {each.segment: each.next_offset for each in topic.segments}
    selected: dict[int, OffsetBounds] = {}
    for segment, (first, stop) in sorted((dict.fromkeys(ends, (0, None)) if offsets is None else offsets).items()):
        if segment not in ends:
            known = listed([f"{each} (0 to {end})" for each, end in sorted(ends.items())]) or "none"
            raise _out_of_range(f"{_absence(topic, segment)}; its segments, and their offsets, are {known}")
        end = ends[segment] if stop is None else stop
        if not 0 <= first <= end <= ends[segment]:
            found = f"segment {segment} of topic {topic.topic!r} ends at offset {ends[segment]}"
            raise _out_of_range(f"{found}: choose 0 to {ends[segment]}")
        selected[segment] = first, end
    return selected


def _absence(topic: TopicInfo, segment: int) -> str:
    newest = max((each.segment for each in topic.segments), default=-1)
    if segment < newest:
        return f"segment {segment} of topic {topic.topic!r} was pruned, and its records were deleted"
    return f"topic {topic.topic!r} has no segment {segment}"


def _out_of_range(text: str) -> PositionOutOfRangeError:
    return PositionOutOfRangeError("out_of_range", text)
