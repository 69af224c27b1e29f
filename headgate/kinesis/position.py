"""What a record of a shard contains, and what a checkpoint says of it. Pure.

The Kinesis Producer Library packs several records of a program into one. Format:
github.com/awslabs/amazon-kinesis-producer, aggregation-format.md: four magic bytes, a protobuf message, and its MD5.
What does not match, as any other record, is one record (KCL does the same). A packed record whose hash is outside its
shard is dropped: the library's message was on its way during a resharding, and the library sends that record again, to
the right shard (KCL, ``AggregatorUtil``).

A checkpoint is ``SEQUENCE``: everything up to that record is handled; or ``SEQUENCE:NUMBER``: of that record, which was
packed, everything up to that place. KCL keeps the same two numbers.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec

from headgate.errors import HeadgateError

ValueT = TypeVar("ValueT", int, bytes)
MAGIC: Final = b"\xf3\x89\x9a\xc2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
_KEYS, _HASHES, _RECORDS = 1, 2, 3
_KEY_INDEX, _HASH_INDEX, _DATA = 1, 2, 3
"""Fields of the message, and of its records."""
_MORE: Final = 128
"""This bit of a byte says that the number continues."""
_CHECKPOINT: Final = re.compile(r"([0-9]+)(?::([0-9]+))?")


class Packed(NamedTuple):
    """One record of a program, which may have been packed."""

    number: int
    """Its place in the message, from 0. KCL calls it sub-sequence number."""
    key: str
    data: bytes


def unpack(key: str, data: bytes, hashes: tuple[int, int]) -> list[Packed]:
    """Return the program's records in the record ``data`` with partition key ``key``.

    ``hashes``: first and last hash of the shard, inclusive.
    """
    message, digest = data[len(MAGIC) : -16], data[-16:]
    if not data.startswith(MAGIC) or hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return [Packed(0, key, data)]
    keys: list[str] = []
    explicit_hashes: list[str] = []
    packed: list[tuple[str, str | None, bytes]] = []
    try:
        for field, value in _fields(message):
            if field == _KEYS:
                keys.append(_as(bytes, value).decode())
            elif field == _HASHES:
                explicit_hashes.append(_as(bytes, value).decode())
            elif field == _RECORDS:
                parts = dict(_fields(_as(bytes, value)))
                explicit = explicit_hashes[_as(int, parts[_HASH_INDEX])] if _HASH_INDEX in parts else None
                packed.append((keys[_as(int, parts[_KEY_INDEX])], explicit, _as(bytes, parts[_DATA])))
    except (LookupError, ValueError):  # The digest was right by chance.
        return [Packed(0, key, data)]
    first, last = hashes
    return [
        Packed(number, name, content)
        for number, (name, explicit, content) in enumerate(packed)
        if first <= (int(explicit) if explicit else hash_of(name)) <= last
    ]


def hash_of(key: str) -> int:
    """Return the hash of a partition key: its MD5 as a number of 128 bits."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest())


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message. Raises IndexError or ValueError: it is none."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field ends behind the message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & ~_MORE) << shift
        at += 1
        if message[at - 1] < _MORE:
            return value, at
        shift += 7


def _as(kind: type[ValueT], value: int | bytes) -> ValueT:
    if not isinstance(value, kind):
        raise ValueError(f"not of type {kind.__name__}")  # noqa: TRY004 - the message is wrong, not the program
    return value


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
