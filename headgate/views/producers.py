"""Named producers, as replies and `Admin` show them. Times are milliseconds since 1970 by the clock of the leader."""

import msgspec


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a named producer has read its source into one topic."""

    topic: str
    topic_id: int
    """Never used again: a topic that is deleted and created again has no positions."""
    position: bytes
    """As the program has stored it."""


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A named producer on one shard. It has an identity of its own on each shard that it was opened on."""

    producer: str
    shard: int
    producer_id: int
    """Unique on its shard. A name that is deleted and opened again gets another id."""
    producer_epoch: int
    """Rises with each opening; the earlier holder of the name is fenced."""
    next_sequence: int
    """Number of its next batch since it was opened last."""
    last_used_at_ms: int
    """When it was opened or stored a batch last."""
    positions: tuple[TopicPosition, ...] = ()
    """How far it has read its source, for each topic in which it has stored a position."""
