"""What the positions of a consumer belong to: the history of its shard, and a text that names it. Pure."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import Final
from zlib import crc32

import msgspec

from headgate.errors import ConfigError
from headgate.model.identifiers import Offset, SegmentId

_PREFIX: Final = "positions-1."
_CHECKSUM_BYTES: Final = 4


class PositionToken(msgspec.Struct, frozen=True, array_like=True):
    """The positions of a CHECKPOINT consumer as printable text, with what they belong to.

    A position is an offset, and offsets are used again: in a topic that was deleted and created again, and in a ledger
    that was put back to an older state. So the text names the topic's id and points of the ledger's history
    (`KnownHistory`), and the leader compares them. The ledger's id is only named in errors: a ledger that
    was moved has another id and the same history, in which the positions hold.

    Programs store the text unchanged. A checksum finds a part of one.
    """

    topic: str
    topic_id: int
    ledger_id: str
    positions: dict[SegmentId, Offset]
    """Segment → next offset to read, of every segment that was granted."""
    held: list[SegmentId]
    """Those of them that no other consumer has taken over: reading them to the end was left to this consumer."""
    history: list[tuple[int, int]]
    """(chunk, term id): the chunks that the consumer knew."""

    def encode(self) -> str:
        data = msgspec.msgpack.encode(self)
        return _PREFIX + urlsafe_b64encode(crc32(data).to_bytes(_CHECKSUM_BYTES) + data).decode().rstrip("=")


def decode_positions(text: str) -> PositionToken:
    """Return what ``text`` contains; raises ConfigError unless `PositionToken.encode` wrote it."""
    problem = "positions: not a text that Consumer.positions returned"
    if not str(text).startswith(_PREFIX):
        raise ConfigError(f"{problem}: it begins with {_PREFIX!r}")
    encoded = text.removeprefix(_PREFIX)
    try:
        sealed = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        checksum, data = sealed[:_CHECKSUM_BYTES], sealed[_CHECKSUM_BYTES:]
        if crc32(data).to_bytes(_CHECKSUM_BYTES) != checksum:
            raise ConfigError(f"{problem}, or not all of it: the checksum differs")
        return msgspec.msgpack.decode(data, type=PositionToken)
    except (Base64Error, ValueError, msgspec.DecodeError) as error:
        raise ConfigError(f"{problem}, or not all of it: {error}") from None


Point = tuple[int, int]
"""(chunk, id of the term that wrote it)."""


class KnownHistory:
    """What one consumer knows of the history of its shard: chunks, and the ids of the terms that wrote them.

    A ledger that is put back to an older state under a running consumer has another history. Its chunks, offsets,
    grants and leader epochs repeat the numbers of lost ones, so the numbers prove nothing. A point (chunk, term id)
    does: two histories that have it in common are equal up to that chunk.

    1. Every chunk that is delivered from is a point, and so is the head that a reply of a leader states.
    2. Points are kept until a leader confirms them: its reply to a request that carried them proves that they are of
       its history. The newest point alone is not enough. After the ledger was put back, a reader may reach a chunk of
       the present history before the consumer asks.
    3. A chunk names the term of the chunk before. So a point includes the one before it, and a reader that reads chunk
       after chunk adds one point, however many terms it reads.
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._newest: dict[int, int] = {}
        """Term id → its newest chunk that is known."""
        for chunk, term_id in points:
            self.add(chunk, term_id)

    @property
    def points(self) -> list[Point]:
        """What a leader has to confirm, rising."""
        return sorted((chunk, term_id) for term_id, chunk in self._newest.items())

    @property
    def newest(self) -> int:
        """The newest chunk that is known; 0: none is."""
        return max(self._newest.values(), default=0)

    def add(self, chunk: int, term_id: int, previous_term_id: int | None = None) -> None:
        """Add a point. ``previous_term_id``: the term of the chunk before, if it is known."""
        if chunk > self._newest.get(term_id, 0):
            self._newest[term_id] = chunk
        if previous_term_id not in (None, term_id) and self._newest.get(previous_term_id, chunk) < chunk:
            del self._newest[previous_term_id]

    def confirmed(self, points: Iterable[Point], chunk: int, term_id: int) -> None:
        """Record that the leader whose term ``term_id`` has reached ``chunk`` confirms ``points``."""
        for known, of_term in points:
            if self._newest.get(of_term) == known:
                del self._newest[of_term]
        self.add(chunk, term_id)
