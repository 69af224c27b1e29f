"""The lines of `headgate topic export-records`: one record each, byte for byte. Pure.

A line is a JSON object with key, value, timestamp and, if the record has any, headers. Key and value are strings,
or base64 if they are not UTF-8; then ``key_encoding`` or ``value_encoding`` says so. A header has a name and such a
value. Unlike in the lines of `headgate read`, a value that is JSON is a string too: a JSON document that is parsed and
written again may have other bytes.
"""

import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headgate.cli.records.ndjson import BadLineError, KeyedRecord, Line, json_text
from headgate.model.headers import Headers, header_bytes, wrong_headers
from headgate.protocol.messages import MAX_RECORD_BYTES

MAX_LINE_BYTES: Final = 6 * MAX_RECORD_BYTES + 5000
"""A control character takes six bytes in JSON. A header takes at most 50 besides its name and value."""

_Encoding = Literal["base64"] | None


class JsonHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    value: str
    value_encoding: _Encoding = None


def json_headers(headers: Headers) -> list[JsonHeader]:
    texts = [(name, *_text(value)) for name, value in headers]
    return [JsonHeader(name=name, value=text, value_encoding=encoding) for name, text, encoding in texts]


class _Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    key: str
    value: str
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    key_encoding: _Encoding = None
    value_encoding: _Encoding = None
    headers: list[JsonHeader] = []


def exported_line(key: bytes, value: bytes, timestamp_ms: int, headers: Headers) -> bytes:
    r"""Return a record as one line, ``\n`` included."""
    key_text, key_encoding = _text(key)
    value_text, value_encoding = _text(value)
    exported = _Exported(
        key=key_text,
        value=value_text,
        timestamp=timestamp_ms,
        key_encoding=key_encoding,
        value_encoding=value_encoding,
        headers=json_headers(headers),
    )
    return _ENCODER.encode(exported) + b"\n"


def parse_exported(line: Line) -> KeyedRecord | None:
    if line.text is None:
        raise BadLineError(f"is longer than {MAX_LINE_BYTES} bytes, the longest line of an export")
    text = json_text(line, line.text)
    if not text.strip():
        return None
    try:
        found = _DECODER.decode(text)
        key, value = _data(found.key, found.key_encoding), _data(found.value, found.value_encoding)
        headers = tuple((each.name, _data(each.value, each.value_encoding)) for each in found.headers)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
        raise BadLineError(f"is not a line of 'headgate topic export-records': {error}") from None
    if (wrong := wrong_headers(headers, reserved=True)) is not None:
        raise BadLineError(f"has {wrong}")
    if len(key) + len(value) + header_bytes(headers) > MAX_RECORD_BYTES:
        raise BadLineError(f"has a record above {MAX_RECORD_BYTES} bytes, the maximum record size")
    if not key:
        raise BadLineError("has an empty key")
    has_mark = len(text) < len(line.text)
    return KeyedRecord(
        line.number, line.end_offset, key, value, found.timestamp, line.digest, has_mark=has_mark, headers=headers
    )


def _text(data: bytes) -> tuple[str, _Encoding]:
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def put_text(line: dict[str, Any], name: str, data: bytes) -> None:
    """Put ``data`` into a line of JSON, as a string or in base64."""
    line[name], encoding = _text(data)
    if encoding is not None:
        line[f"{name}_encoding"] = encoding


def _data(text: str, encoding: _Encoding) -> bytes:
    return text.encode() if encoding is None else base64.b64decode(text, validate=True)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Exported)
