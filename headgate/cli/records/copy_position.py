"""How far `headgate topic copy` has copied its source: what a named producer stores with each record. Pure.

Rules:

1. A position names the ledger, and source and target by shard and id of their topics: a topic that was created
   again has other records, and an id is used once per shard.
2. It lists the segments that are not copied to their final end, with the offset to continue at, and the newest one.
3. A segment that was pruned before it was copied to its end is an error (headgate.reading.continued_read).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.reading.continued_read import CannotContinueError, continued, unfinished

if TYPE_CHECKING:
    from headgate.protocol.messages import TopicInfo

MAX_POSITION_BYTES: Final = 1024


class CopyPositionError(ValueError):
    """The copy cannot continue, or could not be resumed later. The text says why."""


class _Position(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    ledger_id: bytes
    topics: tuple[int, int, int, int]
    """Shard and id of the source, then of the target."""
    newest: int
    """The highest segment when the position was stored."""
    segments: list[int]
    """Unfinished segments; each as the difference to the one before."""
    offsets: list[int]
    """Where each of them continues."""


_KIND: Final = "copy"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Position)


class CopyProgress:
    """The positions of one run."""

    def __init__(
        self,
        ledger_id: str,
        topic: TopicInfo,
        target: TopicInfo,
        stored: bytes | None,
        starts: Mapping[int, int] | None = None,
    ) -> None:
        """Continue at the position that is ``stored`` by the producer, or begin; raises CopyPositionError.

        ``starts``: of each segment, what is before is not copied. With it, rule 3 does not apply.
        """
        self._ledger_id = bytes.fromhex(ledger_id)
        self._topics = topic.shard, topic.topic_id, target.shard, target.topic_id
        ends = {each.segment: each.next_offset for each in topic.segments}
        self.starts = _starts(topic, self._position_in(topic, target, stored), starts)
        """Segment → the first offset to copy; complete segments are left out."""
        self.records = sum(ends[segment] - offset for segment, offset in self.starts.items())
        self._newest = max(ends, default=-1)
        self._final = {each.segment: each.next_offset for each in topic.segments if each.state == "sealed"}
        self._unfinished = unfinished(topic, self.starts)
        largest = self._encoded({segment: ends[segment] for segment in self._unfinished})
        if len(largest) > MAX_POSITION_BYTES:
            raise CopyPositionError(
                f"topic {topic.topic!r} has {len(self._unfinished)} segments to copy, and their positions take "
                f"{len(largest)} bytes, of at most {MAX_POSITION_BYTES}: copy it with a program that reads "
                "headgate.dataset() and sends with a Producer"
            )

    def after(self, segment: int, offset: int) -> bytes:
        """Return the position after the record at ``offset`` of ``segment``; records of a segment come in order."""
        if offset + 1 == self._final.get(segment):
            del self._unfinished[segment]
        else:
            self._unfinished[segment] = offset + 1
        return self._encoded(self._unfinished)

    def _encoded(self, offsets_left: Mapping[int, int]) -> bytes:
        differences = [later - earlier for earlier, later in pairwise([0, *offsets_left])]
        offsets = list(offsets_left.values())
        return _ENCODER.encode(_Position(_KIND, self._ledger_id, self._topics, self._newest, differences, offsets))

    def _position_in(self, topic: TopicInfo, target: TopicInfo, stored: bytes | None) -> _Position | None:
        """Return the position in ``stored``; None to begin. Raises CopyPositionError if it is of something else."""
        if stored is None:
            return None
        position = _decoded(stored)
        if position is None:
            raise CopyPositionError("its producer has read another source before, which is no topic")
        if (position.ledger_id, position.topics) == (self._ledger_id, self._topics):
            return position
        source_shard, source_id, target_shard, target_id = position.topics
        raise CopyPositionError(
            f"its position in ledger {position.ledger_id.hex()} is of a copy from topic id {source_id} of shard "
            f"{source_shard} to topic id {target_id} of shard {target_shard}; in this ledger {self._ledger_id.hex()}, "
            f"{topic.topic!r} has id {topic.topic_id} of shard {topic.shard}, and {target.topic!r} id "
            f"{target.topic_id} of shard {target.shard}: it is another topic, or was created again; choose another "
            "--name"
        )


def unfinished_segments(stored: bytes) -> int | None:
    """Return how many segments a copy had not completed; None if ``stored`` is not the position of a copy."""
    position = _decoded(stored)
    return None if position is None else len(position.segments)


def _starts(topic: TopicInfo, position: _Position | None, least: Mapping[int, int] | None) -> dict[int, int]:
    """Return the first offset to copy of each segment that is not complete, by segment."""
    newest, known = -1, {}
    if position is not None:
        newest, known = position.newest, dict(zip(accumulate(position.segments), position.offsets, strict=True))
    try:
        starts = continued(topic, newest, known, skip_pruned=least is not None)
    except CannotContinueError as error:
        raise CopyPositionError(f"{error}; copy to a new topic with another --name") from None
    return {segment: max(offset, (least or {}).get(segment, 0)) for segment, offset in starts.items()}


def _decoded(stored: bytes) -> _Position | None:
    try:
        position = _DECODER.decode(stored)
    except msgspec.DecodeError:
        return None
    return position if position.kind == _KIND and len(position.segments) == len(position.offsets) else None
