"""Where a query is in a topic: the offset of Spark's checkpoints, with what it belongs to. Pure.

It has the contents of the position token of a CHECKPOINT consumer. It is JSON, which people can read in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.errors import OtherHistoryError, PositionOutOfRangeError
from headgate.model.position_token import PositionToken
from headgate.views.topics import SegmentInfo, TopicInfo


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: int
    ledger_id: str
    positions: dict[int, int]
    """Segment → offset of the next record. A segment that is not named begins at 0."""
    unfinished: list[int]
    """Segments that may have records from their position on. The others are sealed, and were read to their end."""
    history: list[tuple[int, int]]
    """(chunk, term id): chunks of the ledger that the position was seen in."""
    first_chunk: int = 1
    """No record from the positions on is in an earlier chunk."""

    @classmethod
    def of_token(cls, token: PositionToken) -> StreamPosition:
        return cls(
            topic=token.topic,
            topic_id=token.topic_id,
            ledger_id=token.ledger_id,
            positions={int(segment): int(offset) for segment, offset in token.positions.items()},
            unfinished=[int(segment) for segment in token.held],
            history=token.history,
        )

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> StreamPosition:
        return msgspec.convert(value, cls, str_keys=True, strict=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types. Equal positions give equal texts."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found

    def require_present(self, topic: TopicInfo, ledger_id: str) -> None:
        """Raise OtherHistoryError or PositionOutOfRangeError unless it is a position in ``topic`` of this ledger."""
        remedy = "start a query with a new checkpoint"
        if self.ledger_id != ledger_id:
            raise OtherHistoryError(
                "out_of_range",
                f"this position in topic {self.topic!r} is of the ledger with the id {self.ledger_id}, and the cluster "
                f"has the ledger with the id {ledger_id}: {remedy}",
            )
        if self.topic != topic.topic:
            text = f"this position is of topic {self.topic!r}, not of {topic.topic!r}: {remedy}"
            raise PositionOutOfRangeError("out_of_range", text)
        if self.topic_id != topic.topic_id:
            raise PositionOutOfRangeError(
                "out_of_range",
                f"topic {topic.topic!r} was deleted and created again: this position is of the topic with the id "
                f"{self.topic_id}, and the present one has the id {topic.topic_id}, and other records: {remedy}",
            )
        for segment in topic.segments:
            if self.positions.get(segment.segment, 0) > segment.next_offset:
                raise OtherHistoryError(
                    "out_of_range",
                    f"segment {segment.segment} of topic {topic.topic!r} ends at {segment.next_offset}, before "
                    f"position {self.positions[segment.segment]}: an older ledger was put back; {remedy}",
                )

    def unseen_pruned(self, segments: Sequence[SegmentInfo]) -> list[int]:
        """Return the segments that were pruned, as far as ``segments`` tell, and that were not read to their end.

        Ids of segments follow each other, so one between the newest known before and the newest present has existed.
        """
        present = {each.segment for each in segments}
        created = range(max(self.positions, default=-1) + 1, max(present, default=-1) + 1)
        return sorted({*self.unfinished, *created} - present)

    def lost(self, pruned_ends: Mapping[int, int], segments: Sequence[SegmentInfo]) -> str | None:
        """Return which records were deleted unread; None: none were. ``pruned_ends``: pruned segment → its end."""
        for segment in self.unseen_pruned(segments):
            first, end = self.positions.get(segment, 0), pruned_ends.get(segment)
            if end is None or first < end:
                gone = f"from {first} on" if end is None else f"{first} to {end - 1}"
                return (
                    f"segment {segment} of topic {self.topic!r} was pruned before the query read it: its records "
                    f"{gone} are gone; set the option subscription, which keeps what is unread, and the option "
                    "failOnDataLoss to false to continue with the first records that are kept"
                )
        return None
