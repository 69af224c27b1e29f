"""The lines of `headgate topic export`: one record each, byte for byte. Pure.

A line is a JSON object with key, value and timestamp. Key and value are strings, or base64 if they are not UTF-8; then
``key_encoding`` or ``value_encoding`` says so. Unlike in the lines of `headgate read`, a value that is JSON is a string
too: a JSON document that is parsed and written again may have other bytes.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headgate.cli.records.ndjson import BadLine, BlankLine, KeyedRecord, Line, json_text
from headgate.protocol.messages import MAX_RECORD_BYTES

MAX_LINE_BYTES: Final = 6 * MAX_RECORD_BYTES + 1000
"""A control character takes six bytes in JSON."""

_Encoding = Literal["base64"] | None


class _Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    key: str
    value: str
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    key_encoding: _Encoding = None
    value_encoding: _Encoding = None


def exported_line(key: bytes, value: bytes, timestamp_ms: int) -> bytes:
    r"""Return a record as one line, ``\n`` included."""
    key_text, key_encoding = _text(key)
    value_text, value_encoding = _text(value)
    exported = _Exported(
        key=key_text,
        value=value_text,
        timestamp=timestamp_ms,
        key_encoding=key_encoding,
        value_encoding=value_encoding,
    )
    return _ENCODER.encode(exported) + b"\n"


def parse_exported(line: Line) -> KeyedRecord | BadLine | BlankLine:
    if line.text is None:
        return BadLine(line.number, f"is longer than {MAX_LINE_BYTES} bytes, the longest line of an export")
    text = json_text(line, line.text)
    if not text.strip():
        return BlankLine(line.number)
    try:
        found = _DECODER.decode(text)
        key, value = _data(found.key, found.key_encoding), _data(found.value, found.value_encoding)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
        return BadLine(line.number, f"is not a line of 'headgate topic export': {error}")
    if len(key) + len(value) > MAX_RECORD_BYTES:
        return BadLine(line.number, f"has a key and a value above {MAX_RECORD_BYTES} bytes, the maximum record size")
    if not key:
        return BadLine(line.number, "has an empty key")
    return KeyedRecord(
        line.number, line.end_offset, key, value, found.timestamp, line.digest, has_mark=len(text) < len(line.text)
    )


def _text(data: bytes) -> tuple[str, _Encoding]:
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _data(text: str, encoding: _Encoding) -> bytes:
    return text.encode() if encoding is None else base64.b64decode(text, validate=True)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Exported)
