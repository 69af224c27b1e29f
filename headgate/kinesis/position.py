"""Where a shard is read from, as a checkpoint says it. Pure.

A checkpoint is ``SEQUENCE``: everything up to that record is handled; or ``SEQUENCE:NUMBER``: of that record, which the
Kinesis Producer Library packed, everything up to that place. KCL keeps the same two numbers.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Self

import msgspec

from headgate.errors import HeadgateError
from headgate.kinesis.aggregation import Packed

_CHECKPOINT: Final = re.compile(r"([0-9]+)(?::([0-9]+))?")


class Position(msgspec.Struct, frozen=True):
    sequence: str
    number: int | None = None
    """The last place in the record ``sequence`` that is handled; None: all."""

    @classmethod
    def read(cls, checkpoint: str) -> Self:
        """Return what a checkpoint says. Raises HeadgateError: it is none of this module's."""
        found = _CHECKPOINT.fullmatch(checkpoint)
        if found is None:
            raise HeadgateError(
                f"checkpoint {checkpoint!r} is no sequence number: another program wrote it; use another subscription"
            )
        return cls(found[1], None if found[2] is None else int(found[2]))

    @property
    def checkpoint(self) -> str:
        return self.sequence if self.number is None else f"{self.sequence}:{self.number}"

    def unhandled(self, sequence: str, packed: Sequence[Packed]) -> Sequence[Packed]:
        """Return what this position leaves of the records that were packed into ``sequence``."""
        if sequence != self.sequence:
            return packed
        return [] if self.number is None else [each for each in packed if each.number > self.number]


def iterator_arguments(position: Position | None, start: datetime | None, *, again: bool = False) -> dict[str, Any]:
    """Return the arguments of GetShardIterator. Without a position: from ``start`` on, or from the oldest record.

    ``again``: the record of the position is read, too.
    """
    if position is not None:
        kind = "AFTER_SEQUENCE_NUMBER" if position.number is None and not again else "AT_SEQUENCE_NUMBER"
        return {"ShardIteratorType": kind, "StartingSequenceNumber": position.sequence}
    if start is not None:
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": start}
    return {"ShardIteratorType": "TRIM_HORIZON"}
