"""Exported lines keep every byte, and lines of others are refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.records.exported import MAX_LINE_BYTES, exported_line, parse_exported
from headgate.cli.records.ndjson import BadLineError, KeyedRecord, Line
from headgate.model.headers import MAX_HEADERS, Headers
from headgate.protocol.messages import MAX_RECORD_BYTES


@given(
    st.binary(min_size=1, max_size=20),
    st.one_of(st.binary(max_size=50), st.text().map(str.encode)),
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.text(min_size=1), st.binary()), max_size=3).map(tuple),
)
def test_a_record_survives_its_export(key: bytes, value: bytes, timestamp_ms: int, headers: Headers) -> None:
    line = exported_line(key, value, timestamp_ms, headers)
    found = parse_exported(Line(1, len(line), line.removesuffix(b"\n")))

    assert line.count(b"\n") == 1
    assert isinstance(found, KeyedRecord)
    assert (key, value, timestamp_ms, headers) == (found.key, found.value, found.timestamp_ms, found.headers)


def test_the_largest_record_has_a_line_that_can_be_read() -> None:
    headers = (("\x01", b"\x01"),) * MAX_HEADERS
    line = exported_line(b"\x01", b"\x01" * (MAX_RECORD_BYTES - 1 - 2 * MAX_HEADERS), 2**63 - 1, headers)

    assert len(line) <= MAX_LINE_BYTES
    assert isinstance(parse_exported(Line(1, len(line), line)), KeyedRecord)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"junk", "is not a line of 'headgate topic export-records': JSON is malformed"),
        (b'{"key": "a", "value": {"n": 1}, "timestamp": 5}', "Expected `str`, got `object`"),
        (b'{"key": "a", "value": "b"}', "missing required field `timestamp`"),
        (b'{"key": "a", "value": "b", "timestamp": -1}', "Expected `int` >= 0"),
        (b'{"key": "a", "value": "?", "timestamp": 1, "value_encoding": "base64"}', "is not a line of"),
        (b'{"key": "a", "value": "b", "timestamp": 1, "value_encoding": "gzip"}', "Invalid enum value 'gzip'"),
        (None, f"is longer than {MAX_LINE_BYTES} bytes"),
        (b'{"key": "a", "value": "%s", "timestamp": 1}' % (b"v" * MAX_RECORD_BYTES), "the maximum record size"),
        (
            b'{"key": "a", "value": "b", "timestamp": 1, "headers": [{"name": "", "value": ""}]}',
            "has a header without a name",
        ),
    ],
    ids=[
        "no JSON",
        "a line of read",
        "no timestamp",
        "before 1970",
        "no base64",
        "encoding",
        "overlong",
        "large",
        "header",
    ],
)
def test_another_line_is_refused(text: bytes | None, problem: str) -> None:
    with pytest.raises(BadLineError) as found:
        parse_exported(Line(3, 100, text))

    assert problem in str(found.value)
