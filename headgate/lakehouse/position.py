"""How far a table has the records of a topic: what each commit of `headgate export` adds to the table. Pure.

1. A position names the ledger, and the topic by shard and id: a topic that was created again has other records.
2. It names a chunk behind its records, and the term that wrote it. A ledger that was put back to an older state has
   another history, in which the offsets are of other records.
3. It lists segments as headgate.reading.continued_read says.
"""

from typing import Self

import msgspec

from headgate.errors import HeadgateError
from headgate.reading.continued_read import CannotContinueError, continued
from headgate.views.topics import TopicInfo

PROPERTY = "headgate.position"
"""Where a table keeps it, except Delta."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The topic whose records a table has."""

    topic: str
    topic_id: int
    shard: int
    ledger_id: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} (id {self.topic_id} of shard {self.shard}, ledger {self.ledger_id})"


class TablePosition(msgspec.Struct, frozen=True, kw_only=True):
    origin: Origin
    chunk: int
    """All records before the position are in the chunks up to this one."""
    term_id: int
    """The term that wrote it."""
    newest: int
    """The newest segment at that time."""
    offsets: dict[int, int]
    """Segments that are not read to their final end → the offset to continue at."""

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str | bytes, table: str) -> Self:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise HeadgateError(f"{table} has a position that this version does not read: {error}") from None


def starts_of(
    position: TablePosition | None, origin: Origin, topic: TopicInfo, table: str, *, skip_pruned: bool
) -> dict[int, int]:
    """Return segment → first offset to export. Raises HeadgateError if the position is of something else."""
    if position is None:
        return continued(topic, -1, {})
    if position.origin != origin:
        raise HeadgateError(f"{table} has records of {position.origin}, not of {origin}: export to another table")
    try:
        return continued(topic, position.newest, position.offsets, skip_pruned=skip_pruned)
    except CannotContinueError as error:
        raise HeadgateError(
            f"{table} cannot continue: {error}; --skip-pruned continues behind pruned records, and --subscription "
            "keeps those that are not exported"
        ) from None
