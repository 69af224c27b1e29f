"""Where a query is in a topic: the offset of Spark's checkpoints. It is JSON, which people can read there. Pure."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from headgate.model.position_token import PositionToken
from headgate.reading.topic_position import Snapshot, TopicPosition


class StreamPosition(TopicPosition, frozen=True, kw_only=True):
    first_chunk: int = 1
    """No record after the position is in an earlier chunk."""

    @classmethod
    def at(cls, now: Snapshot, reached: Mapping[int, int], first_chunk: int = 1) -> Self:
        """Return ``reached``, segment → next offset of every segment, as a position of the moment."""
        first_chunk = now.chunk + 1 if reached == now.ends else first_chunk
        return cls(**msgspec.structs.asdict(now.position(reached)), first_chunk=first_chunk)

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
