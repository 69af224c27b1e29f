"""Convert newline-delimited JSON to keyed records, for `headgate produce`. Pure.

Rules:

1. A record's value is the line, byte for byte, without its line end. It is not encoded again.
2. A record's key is the text of one field: the characters of a string, or a number, true or false as written in the
   line. ``a.b`` is field ``b`` inside field ``a``, unless a field ``a.b`` exists.
3. A line that is not JSON, or does not have the field, is a `BadLine` with a readable reason.
4. Blank lines are skipped. The last line may lack a line end. A byte order mark before the first line is removed.
5. A line above the size limit is never kept in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from headgate.protocol.messages import MAX_RECORD_BYTES

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_STRING = msgspec.json.Decoder(str)
_MAX_FIELDS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a source. ``text`` is None for a line above the size limit."""

    number: int
    end_offset: int
    """Offset of the first byte after the line and its line end."""
    text: bytes | None


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line."""

    number: int
    problem: str


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A valid line."""

    number: int
    end_offset: int
    key: bytes
    value: bytes


class LineSplitter:
    """Splits a stream of bytes into lines, in order; buffers at most one line and one block."""

    def __init__(self, *, offset: int = 0, number: int = 0, max_line_bytes: int = MAX_RECORD_BYTES) -> None:
        """Start at byte ``offset``, after line ``number``."""
        self._offset = offset
        self._number = number
        self._max_line_bytes = max_line_bytes
        self._partial_line = bytearray()
        self._is_too_long = False

    def feed(self, block: bytes) -> Iterator[Line]:
        """Yield the lines that ``block`` completes."""
        parts = block.split(b"\n")
        for part in parts[:-1]:
            self._buffer(part)
            self._offset += len(part) + 1
            yield from self._complete()
        self._buffer(parts[-1])
        self._offset += len(parts[-1])

    def end(self) -> Iterator[Line]:
        """Yield the last line if it has no line end."""
        if self._partial_line or self._is_too_long:
            yield from self._complete()

    def _buffer(self, part: bytes) -> None:
        if self._is_too_long or len(self._partial_line) + len(part) > self._max_line_bytes + 1:
            self._is_too_long = True
            self._partial_line.clear()
        else:
            self._partial_line += part

    def _complete(self) -> Iterator[Line]:
        self._number += 1
        text = bytes(self._partial_line).removesuffix(b"\r")
        if self._number == 1:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        overlong, self._is_too_long = self._is_too_long, False
        self._partial_line.clear()
        if overlong:
            yield Line(self._number, self._offset, None)
        elif text.strip():
            yield Line(self._number, self._offset, text)


def keyed_record(line: Line, key_field: str | None, key: bytes | None) -> KeyedRecord | BadLine:
    """Return the record in ``line``; its key is the field ``key_field``, or else ``key``."""
    assert (key_field is None) != (key is None), "exactly one of them"
    if line.text is None:
        return BadLine(line.number, f"is longer than {MAX_RECORD_BYTES} bytes, the maximum record size")
    try:
        if key_field is None:
            _ANYTHING.decode(line.text)
            found = key
        else:
            found = _key_text(_OBJECT.decode(line.text), key_field)
    except msgspec.ValidationError:
        return BadLine(line.number, f"is not a JSON object, so it has no field {key_field!r}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return BadLine(line.number, f"is not JSON: {_reason(error)}")
    except _MissingKeyError as error:
        return BadLine(line.number, str(error))
    assert found is not None, "set above"
    if len(found) + len(line.text) > MAX_RECORD_BYTES:
        return BadLine(line.number, f"and its key exceed {MAX_RECORD_BYTES} bytes, the maximum record size")
    return KeyedRecord(line.number, line.end_offset, found, line.text)


class _MissingKeyError(Exception):
    """The object has no usable key. The text gives the reason."""


def _key_text(fields: dict[str, msgspec.Raw], name: str) -> bytes:
    raw: msgspec.Raw | None = fields.get(name)
    if raw is None and "." in name:
        first, _, rest = name.partition(".")
        inner = fields.get(first)
        if inner is not None and bytes(inner)[:1] == b"{":
            return _key_text(_OBJECT.decode(inner), rest)
    if raw is None:
        raise _MissingKeyError(f"has no field {name!r}; its fields are {_format_names(fields)}")
    text = bytes(raw)
    kind = {b"{": "an object", b"[": "a list", b"n": "null"}.get(text[:1])
    if kind is not None:
        raise _MissingKeyError(f"has {kind} in field {name!r}; a key must be a string, a number, true or false")
    return _STRING.decode(text).encode() if text[:1] == b'"' else text


def _format_names(fields: dict[str, msgspec.Raw]) -> str:
    names = list(fields)
    shown = ", ".join(repr(name) for name in names[:_MAX_FIELDS_SHOWN])
    return (shown or "none") + (", …" if len(names) > _MAX_FIELDS_SHOWN else "")


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return text[:1].lower() + text[1:]


# The position of a named producer in its file


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a named producer has read its file. The ledger stores it with the records, in a few dozen bytes.

    ``digest`` identifies the last line before ``end_offset``, so that another file under the same name is detected.
    """

    end_offset: int
    number: int
    digest: bytes


_POSITION = msgspec.msgpack.Decoder(SourcePosition)


def encode_position(record: KeyedRecord) -> bytes:
    """Return the position after ``record``."""
    return msgspec.msgpack.encode(SourcePosition(record.end_offset, record.number, line_digest(record.value)))


def decode_position(data: bytes) -> SourcePosition | None:
    """Return the position in ``data``, or None if another program wrote it."""
    try:
        return _POSITION.decode(data)
    except msgspec.DecodeError:
        return None


def line_digest(text: bytes) -> bytes:
    """Return a short digest of one line without its line end."""
    return blake2b(text, digest_size=8).digest()


def ends_with_line(tail: bytes, position: SourcePosition) -> bool:
    """Whether ``tail``, the bytes of a file up to ``position.end_offset``, ends with the line of ``position``."""
    last = tail.removesuffix(b"\n").rpartition(b"\n")[2].removesuffix(b"\r")
    return line_digest(last) == position.digest or line_digest(last.removeprefix(_BYTE_ORDER_MARK)) == position.digest
