"""How far a program that keeps its own position has read a topic: a copy, an export, or a query of Spark. Pure.

1. A position names the ledger, and the topic by name and id: a topic that was created again has other records. The
   shard follows from the name.
2. It names a chunk, and the term that wrote it. A ledger that was put back to an older state has another history, in
   which the offsets are of other records.
3. It lists the segments that were not read to their final end, with the offset to continue at, and the newest
   segment. Other segments up to the newest one are complete: they were sealed, or have been pruned since. So the size
   of a position depends on the active segments, and not on the age of the topic.
4. A segment that was pruned before it was read to its end is an error: its last records may be gone. So is one that was
   created and pruned since. Neither is if the leader remembers that the segment ended there.
5. An offset behind the present end is an error: the ledger was restored from an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.errors import HeadgateError, OtherHistoryError, PositionOutOfRangeError
from headgate.model.text import UNREADABLE_JSON

if TYPE_CHECKING:
    from headgate.views.topics import TopicInfo

MAX_POSITION_BYTES: Final = 1024
_KIND: Final = "copy"
_ENCODER = msgspec.msgpack.Encoder()


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: int
    ledger_id: str
    newest: int = -1
    """The newest segment at that time; -1: nothing was read."""
    offsets: dict[int, int] = {}
    """Segments that are not read to their final end → the offset to continue at."""
    chunk: int = 0
    """A chunk that existed then; 0: none is known."""
    term_id: int = 0


def beginning(topic: TopicInfo, ledger_id: str) -> TopicPosition:
    return TopicPosition(topic=topic.topic, topic_id=topic.topic_id, ledger_id=ledger_id)


class Snapshot(NamedTuple):
    """A topic at one moment. Its ends are a consistent cut of the ledger."""

    topic: TopicInfo
    ledger_id: str
    chunk: int
    """A chunk that existed after that moment. A ledger that has it has all records that the ends count."""
    term_id: int
    counted: int = 0
    """The ends count all records of the chunks up to this one."""

    @property
    def ends(self) -> dict[int, int]:
        return {each.segment: each.next_offset for each in self.topic.segments}

    def position(self, reached: Mapping[int, int]) -> TopicPosition:
        """Return ``reached``, segment → next offset of every segment, as a position of the moment."""
        return TopicPosition(
            topic=self.topic.topic,
            topic_id=self.topic.topic_id,
            ledger_id=self.ledger_id,
            newest=max(self.ends, default=-1),
            offsets=unfinished(self.topic, reached),
            chunk=self.chunk,
            term_id=self.term_id,
        )


def require_same_topic(position: TopicPosition, now: Snapshot) -> None:
    """Raise OtherHistoryError or PositionOutOfRangeError by rule 1."""
    if position.ledger_id != now.ledger_id:
        raise OtherHistoryError(
            "other_history",
            f"the position in topic {position.topic!r} is of the ledger with the id {position.ledger_id}, and the "
            f"cluster has the ledger with the id {now.ledger_id}",
        )
    require_topic(now.topic, position.topic, position.topic_id)


def require_topic(topic: TopicInfo, name: str, topic_id: int) -> None:
    """Raise PositionOutOfRangeError unless a position in the topic ``name`` with ``topic_id`` is one in ``topic``."""
    if name != topic.topic:
        raise PositionOutOfRangeError("out_of_range", f"the position is of topic {name!r}, not of {topic.topic!r}")
    if topic_id != topic.topic_id:
        raise PositionOutOfRangeError(
            "out_of_range",
            f"topic {name!r} was deleted and created again: the position is of the topic with the id {topic_id}, and "
            f"the present one has the id {topic.topic_id}, and other records",
        )


def require_same_history(position: TopicPosition, term_id: int | None) -> None:
    """Raise OtherHistoryError by rule 2. ``term_id``: the term that wrote the position's chunk; None: none did."""
    if term_id != position.term_id:
        raise OtherHistoryError(
            "other_history",
            f"the ledger does not have chunk {position.chunk} as it was at the position in topic {position.topic!r}: "
            "an older ledger was put back",
        )


def continued(
    topic: TopicInfo,
    newest: int,
    unfinished: Mapping[int, int],
    *,
    skip_pruned: bool = False,
    pruned_ends: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Return segment → first unread offset, by segment, without complete segments.

    ``skip_pruned``: rule 4 does not apply. ``pruned_ends``: where pruned segments ended. Raises
    PositionOutOfRangeError.
    """
    ends = {each.segment: each.next_offset for each in topic.segments}
    starts = {}
    for segment, offset in unread(topic, newest, unfinished).items():
        if segment not in ends and (skip_pruned or pruned_ends.get(segment) == offset):
            continue
        where = f"segment {segment} of topic {topic.topic!r}"
        if segment not in ends:
            raise PositionOutOfRangeError(
                "out_of_range",
                f"{where} was read up to offset {offset}, and pruned since: records after it may be gone",
            )
        if offset > ends[segment]:
            raise PositionOutOfRangeError(
                "out_of_range",
                f"{where} ends at {ends[segment]}, and its first {offset} records were read: was the ledger restored "
                "from an older copy?",
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


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A `TopicPosition` in few bytes."""

    kind: str
    topic: str
    topic_id: int
    ledger_id: bytes
    chunk: int
    term_id: int
    newest: int
    segments: list[int]
    """Each as the difference to the one before."""
    offsets: list[int]


_DECODER = msgspec.msgpack.Decoder(_Stored)


def encode_copy(position: TopicPosition) -> bytes:
    differences = [later - earlier for earlier, later in pairwise([0, *position.offsets])]
    ledger_id, offsets = bytes.fromhex(position.ledger_id), list(position.offsets.values())
    term = position.chunk, position.term_id
    return _ENCODER.encode(
        _Stored(_KIND, position.topic, position.topic_id, ledger_id, *term, position.newest, differences, offsets)
    )


def decode_copy(stored: bytes) -> TopicPosition | None:
    try:
        found = _DECODER.decode(stored)
    except UNREADABLE_JSON:
        return None
    if found.kind != _KIND or len(found.segments) != len(found.offsets):
        return None
    return TopicPosition(
        topic=found.topic,
        topic_id=found.topic_id,
        ledger_id=found.ledger_id.hex(),
        newest=found.newest,
        offsets=dict(zip(accumulate(found.segments), found.offsets, strict=True)),
        chunk=found.chunk,
        term_id=found.term_id,
    )


class CopyProgress:
    """How far `headgate topic copy` has copied its source: what a named producer stores with each record.

    The leader keeps it for the target's id, so it names only the source.
    """

    def __init__(self, now: Snapshot, starts: Mapping[int, int]) -> None:
        """Copy what is stored now, from ``starts`` on. Raises HeadgateError if the copy could not be resumed later."""
        self.starts = starts
        """Segment → the first offset to copy; complete segments are left out."""
        self.records = sum(now.ends[segment] - offset for segment, offset in starts.items())
        self._final = {each.segment: each.next_offset for each in now.topic.segments if each.state == "sealed"}
        self._position = now.position(starts)
        self._offsets = self._position.offsets
        size = len(
            encode_copy(replace(self._position, offsets={segment: now.ends[segment] for segment in self._offsets}))
        )
        if size > MAX_POSITION_BYTES:
            raise HeadgateError(
                f"topic {now.topic.topic!r} has {len(self._offsets)} segments to copy, and their positions take "
                f"{size} bytes, of at most {MAX_POSITION_BYTES}: copy it with a program that reads "
                "headgate.dataset() and sends with a Producer"
            )

    def after(self, segment: int, offset: int) -> bytes:
        """Return the position after the record at ``offset`` of ``segment``; records of a segment come in order."""
        if offset + 1 == self._final.get(segment):
            del self._offsets[segment]
        else:
            self._offsets[segment] = offset + 1
        return encode_copy(self._position)
