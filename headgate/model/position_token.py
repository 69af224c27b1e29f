"""The positions of a CHECKPOINT consumer as printable text, with what they belong to. Pure.

A position is an offset, and offsets are used again: in a topic that was deleted and created again, and in a ledger
that was put back to an older state. So the text names the topic's id and points of the ledger's history
(headgate.reading.known_history), and the leader compares them. The ledger's id is only named in errors: a ledger that
was moved has another id and the same history, in which the positions hold.

Programs store the text unchanged. A checksum finds a part of one.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Final
from zlib import crc32

import msgspec

from headgate.errors import ConfigError
from headgate.model.identifiers import Offset, SegmentId

_PREFIX: Final = "positions-1."
_CHECKSUM_BYTES: Final = 4


class PositionToken(msgspec.Struct, frozen=True, array_like=True):
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
