"""Convert lines to keyed records, for `headgate produce`. Pure.

Rules:

1. A line is what precedes a line feed, or the end of the source. Its bytes are stored unchanged: a carriage return
   before the line feed, leading and trailing spaces and blank lines are data.
2. A record's value is the line, byte for byte. It is not encoded again. With a key separator, the value is what
   follows the first separator, and the key is what precedes it.
3. A record's key is the text of one field: the characters of a string, or a number, true or false as written in the
   line. ``a.b`` is field ``b`` inside field ``a``, unless a field ``a.b`` exists. An empty key is invalid.
4. A line that is not JSON, or does not have the field, is invalid, with a readable reason. Raw lines and those with a
   key separator need not be JSON.
5. Where lines are JSON, a blank line is no record, and a byte order mark before the first line is no part of it. Both
   are counted and reported.
6. A timestamp is a number or text that `headgate.model.time_text` reads. The value keeps it as it was written.
7. A line above the size limit is never kept in memory as a whole.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import msgspec

from headgate.model.text import UNREADABLE_JSON, listed
from headgate.model.time_text import TimeUnit, time_ms
from headgate.protocol.request_fields import MAX_RECORD_BYTES

_MARKS: Final = re.compile(rb'[",]')
_QUOTE, _COMMA = b'",'


class Quotes:
    """Tells whether a row continues after a line feed: whether what was fed so far ends inside quotes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.is_open = False
        self._is_quoted_field = False
        self._last = _COMMA

    def feed(self, data: bytes) -> None:
        for mark in _MARKS.finditer(data) if self.is_open or b'"' in data else ():
            at = mark.start()
            previous = data[at - 1] if at else self._last
            if self.is_open:
                self.is_open = data[at] != _QUOTE
            elif data[at] == _COMMA:
                self._is_quoted_field = False
            else:
                begins, again = previous == _COMMA, previous == _QUOTE and self._is_quoted_field
                self.is_open = self._is_quoted_field = begins or again
        if data:
            self._last = data[-1]


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING = msgspec.json.Decoder(msgspec.Raw)
_STRING = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a source. ``text`` is None for a line above the size limit."""

    number: int
    end_offset: int
    """Offset of the first byte after the line and its line end."""
    text: bytes | None
    digest: bytes = b""
    """The digest of everything up to ``end_offset``, for a named producer."""
    more_lines: int = 0
    """Lines after the first: a quoted field of CSV may contain line feeds."""


class BadLineError(Exception):
    """A line is invalid. The text says why; ``ends``: the run ends even if invalid lines are skipped."""

    ends = False


@dataclass(frozen=True, slots=True)
class Header:
    """The names of the columns of a source of CSV, which are no record."""

    has_mark: bool = False


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    line: Line
    key: bytes
    value: bytes
    timestamp_ms: int | None = None
    """Milliseconds since 1970; None: when it is sent."""
    has_mark: bool = False
    """Whether a byte order mark before the line was left out."""


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How to find the parts of a record in its line. Exactly one of the first three is given."""

    key: bytes | None = None
    key_field: str | None = None
    key_separator: bytes | None = None
    is_json: bool = True
    """Whether a line must be JSON. With ``key_separator`` it need not."""
    timestamp_field: str | None = None
    timestamp_unit: TimeUnit = "ms"
    """Unit of numbers without one."""


@dataclass(eq=False, repr=False, kw_only=True)
class LineSplitter:
    """Splits a stream of bytes into lines, in order; buffers at most one line and one block."""

    offset: int = 0
    """How many bytes have preceded, in so many lines as ``number`` says."""
    number: int = 0
    max_line_bytes: int = MAX_RECORD_BYTES
    hasher: blake2b | None = None
    """The hash of what precedes, if lines need a digest."""
    quotes: Quotes | None = None
    """If given, a line feed inside them does not end a line."""
    _more_lines: int = 0
    _partial_line: bytearray = field(default_factory=bytearray)
    _is_too_long: bool = False

    def feed(self, block: bytes) -> Iterator[Line]:
        parts = block.split(b"\n")
        for part in parts[:-1]:
            self._buffer(part)
            self.offset += len(part) + 1
            if self.hasher is not None:
                self.hasher.update(part + b"\n")
            if self.quotes is not None and self.quotes.is_open:
                self._buffer(b"\n")
                self._more_lines += 1
            else:
                yield from self._complete()
        self._buffer(parts[-1])
        self.offset += len(parts[-1])
        if self.hasher is not None:
            self.hasher.update(parts[-1])

    def end(self) -> Iterator[Line]:
        if self._partial_line or self._is_too_long:
            yield from self._complete()

    def _buffer(self, part: bytes) -> None:
        if self.quotes is not None:
            self.quotes.feed(part)
        if self._is_too_long or len(self._partial_line) + len(part) > self.max_line_bytes:
            self._is_too_long = True
            self._partial_line.clear()
        else:
            self._partial_line += part

    def _complete(self) -> Iterator[Line]:
        number, more_lines = self.number + 1, self._more_lines
        self.number, self._more_lines = number + more_lines, 0
        if self.quotes is not None:
            self.quotes.reset()
        text = bytes(self._partial_line)
        overlong, self._is_too_long = self._is_too_long, False
        self._partial_line.clear()
        digest = b"" if self.hasher is None else self.hasher.copy().digest()
        yield Line(number, self.offset, None if overlong else text, digest, more_lines)


def json_text(line: Line, text: bytes) -> bytes:
    """Return the text of a line that is JSON: without a byte order mark before the first line."""
    return text.removeprefix(_BYTE_ORDER_MARK) if line.number == 1 else text


def keyed_record(line: Line, form: LineFormat) -> KeyedRecord | None:
    """Return the record in ``line``; None: it is blank. Raises BadLineError."""
    if line.text is None:
        raise BadLineError(f"is longer than {MAX_RECORD_BYTES} bytes, the maximum record size")
    if form.key_separator is not None:
        return _separated(line, line.text, form.key_separator)
    text = json_text(line, line.text) if form.is_json else line.text
    if form.is_json and not text.strip():
        return None
    key, timestamp_ms = form.key, None
    try:
        if form.key_field is not None or form.timestamp_field is not None:
            fields = _OBJECT.decode(text)
            key = _key_text(fields, form.key_field) if form.key_field is not None else key
            timestamp_ms = None if form.timestamp_field is None else _timestamp(fields, form)
        elif form.is_json:
            _ANYTHING.decode(text)
    except msgspec.ValidationError:
        raise BadLineError(
            f"is not a JSON object, so it has no field {(form.key_field or form.timestamp_field)!r}"
        ) from None
    except UNREADABLE_JSON as error:
        raise BadLineError(f"is not JSON: {_reason(error)}") from None
    assert key is not None, "one of the three is given"
    if len(key) + len(text) > MAX_RECORD_BYTES:
        raise BadLineError(f"and its key exceed {MAX_RECORD_BYTES} bytes, the maximum record size")
    return KeyedRecord(line, key, text, timestamp_ms, len(text) < len(line.text))


def _separated(line: Line, text: bytes, separator: bytes) -> KeyedRecord:
    key, found, value = text.partition(separator)
    if not found:
        raise BadLineError(f"has no key separator {separator.decode(errors='replace')!r}")
    if not key:
        raise BadLineError(f"has no key before its separator {separator.decode(errors='replace')!r}")
    return KeyedRecord(line, key, value)


def _field(fields: dict[str, msgspec.Raw], name: str) -> bytes:
    raw: msgspec.Raw | None = fields.get(name)
    if raw is None and "." in name:
        first, _, rest = name.partition(".")
        inner = fields.get(first)
        if inner is not None and bytes(inner)[:1] == b"{":
            return _field(_OBJECT.decode(inner), rest)
    if raw is None:
        known = listed([repr(each) for each in fields]) or "none"
        raise BadLineError(f"has no field {name!r}; its fields are {known}")
    return bytes(raw)


def _timestamp(fields: dict[str, msgspec.Raw], form: LineFormat) -> int:
    assert form.timestamp_field is not None, "a timestamp is read from a field"
    name, text = form.timestamp_field, _field(fields, form.timestamp_field)
    return timestamp_ms(_STRING.decode(text) if text[:1] == b'"' else text.decode(), f"field {name!r}", form)


def timestamp_ms(text: str, where: str, form: LineFormat) -> int:
    try:
        return time_ms(text, form.timestamp_unit)
    except ValueError as error:
        raise BadLineError(f"has no timestamp in {where}: {error}, or see --timestamp-unit") from None


def _key_text(fields: dict[str, msgspec.Raw], name: str) -> bytes:
    text = _field(fields, name)
    kind = {b"{": "an object", b"[": "a list", b"n": "null"}.get(text[:1])
    if kind is not None:
        raise BadLineError(f"has {kind} in field {name!r}; a key must be a string, a number, true or false")
    if text == b'""':
        raise BadLineError(f"has an empty text in field {name!r}; a key must not be empty")
    return _STRING.decode(text).encode() if text[:1] == b'"' else text


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return text[:1].lower() + text[1:]


# The position of a named producer in its file


class SourcePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a named producer has read its file. The ledger stores it with the records, in a few dozen bytes.

    ``digest``, of everything before ``end_offset``, names the input: any other file has other bytes there.
    """

    end_offset: int
    number: int
    digest: bytes


_POSITION = msgspec.msgpack.Decoder(SourcePosition)


def encode_position(line: Line) -> bytes:
    return msgspec.msgpack.encode(SourcePosition(line.end_offset, line.number + line.more_lines, line.digest))


def decode_position(data: bytes) -> SourcePosition | None:
    """Return the position in ``data``, or None if another program wrote it."""
    try:
        return _POSITION.decode(data)
    except msgspec.DecodeError:
        return None


def new_hasher() -> blake2b:
    """Return what computes the digest of a position from the bytes before it."""
    return blake2b(digest_size=16)
