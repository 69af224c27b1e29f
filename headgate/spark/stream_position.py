"""Where a query is in a topic: the offset of Spark's checkpoints, with what it belongs to. Pure.

It is JSON, which people can read in a checkpoint. It lists segments as headgate.reading.continued_read says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from headgate.errors import OtherHistoryError, PositionOutOfRangeError
from headgate.model.position_token import PositionToken
from headgate.views.topics import TopicInfo

REMEDY = "start a query with a new checkpoint"


class StreamPosition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: int
    ledger_id: str
    newest: int
    """The newest segment at that time."""
    offsets: dict[int, int]
    """Segments that are not read to their final end → the offset to continue at."""
    chunk: int
    """A chunk that existed then; 0: none is known."""
    term_id: int
    """The term that wrote it."""
    first_chunk: int = 1
    """No record after the position is in an earlier chunk."""

    @classmethod
    def of_token(cls, token: PositionToken) -> Self:
        chunk, term_id = max(token.history, default=(0, 0))
        return cls(
            topic=token.topic,
            topic_id=token.topic_id,
            ledger_id=token.ledger_id,
            newest=max(token.positions, default=-1),
            offsets={segment: token.positions[segment] for segment in token.held},
            chunk=chunk,
            term_id=term_id,
        )

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        return msgspec.convert(value, cls, str_keys=True, strict=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types. Equal positions give equal texts."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found

    def require_topic(self, topic: TopicInfo, ledger_id: str) -> None:
        """Raise OtherHistoryError or PositionOutOfRangeError unless it is a position in ``topic`` of this ledger."""
        if self.ledger_id != ledger_id:
            raise OtherHistoryError(
                "other_history",
                f"this position in topic {self.topic!r} is of the ledger with the id {self.ledger_id}, and the cluster "
                f"has the ledger with the id {ledger_id}: {REMEDY}",
            )
        if self.topic != topic.topic:
            text = f"this position is of topic {self.topic!r}, not of {topic.topic!r}: {REMEDY}"
            raise PositionOutOfRangeError("out_of_range", text)
        if self.topic_id != topic.topic_id:
            raise PositionOutOfRangeError(
                "out_of_range",
                f"topic {topic.topic!r} was deleted and created again: this position is of the topic with the id "
                f"{self.topic_id}, and the present one has the id {topic.topic_id}, and other records: {REMEDY}",
            )
