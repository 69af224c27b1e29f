"""How far `headgate topic copy` has copied its source: what a named producer stores with each record. Pure.

The leader keeps it for the target's id, so it names only the source: see headgate.reading.topic_position.
"""

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from headgate.errors import HeadgateError
from headgate.model.text import UNREADABLE_JSON
from headgate.reading.topic_position import Snapshot, TopicPosition

MAX_POSITION_BYTES: Final = 1024
_KIND: Final = "copy"


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


_ENCODER = msgspec.msgpack.Encoder()
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
