"""Newline-delimited JSON: lines, keys, values and positions."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.records import ndjson
from headgate.cli.records.consume import record_line
from headgate.cli.records.record_format import record_formatter
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.reading.stored_rows import LedgerRecord


def split(*blocks: bytes, **options: Any) -> list[ndjson.Line]:
    splitter = ndjson.LineSplitter(**options)
    return [line for block in blocks for line in splitter.feed(block)] + list(splitter.end())


def record(text: bytes, field: str | None = "id", key: bytes | None = None) -> ndjson.KeyedRecord | None:
    """Return the result for line 3 with ``text``."""
    return ndjson.keyed_record(ndjson.Line(3, 100, text), ndjson.LineFormat(key=key, key_field=field))


def problem(text: bytes, field: str | None = "id", key: bytes | None = None) -> str:
    with pytest.raises(ndjson.BadLineError) as found:
        record(text, field, key)
    return str(found.value)


@pytest.mark.parametrize("text", [b"", b" \t", b"\r"])
def test_a_blank_line_is_no_json_record_and_is_one_of_raw_lines(text: bytes):
    assert record(text) is None
    assert ndjson.keyed_record(ndjson.Line(3, 100, text), ndjson.LineFormat(key=b"k")) is None
    assert ndjson.keyed_record(
        ndjson.Line(3, 100, text), ndjson.LineFormat(key=b"k", is_json=False)
    ) == ndjson.KeyedRecord(ndjson.Line(3, 100, text), b"k", text)


def test_a_byte_order_mark_is_no_part_of_the_first_line_of_json():
    text = b'\xef\xbb\xbf{"id": 1}'
    line = ndjson.Line(1, 9, text)
    assert ndjson.KeyedRecord(line, b"1", text[3:], has_mark=True) == ndjson.keyed_record(
        line, ndjson.LineFormat(key_field="id")
    )
    with pytest.raises(ndjson.BadLineError):
        ndjson.keyed_record(ndjson.Line(2, 9, text), ndjson.LineFormat(key_field="id"))
    assert ndjson.KeyedRecord(line, b"k", text) == ndjson.keyed_record(line, ndjson.LineFormat(key=b"k", is_json=False))


def test_a_line_of_the_maximum_size_is_kept_and_a_longer_one_is_not():
    found = split(b"x" * 4 + b"\n" + b"x" * 6 + b"\nab\n", max_line_bytes=4)

    assert [(line.number, line.text) for line in found] == [(1, b"xxxx"), (2, None), (3, b"ab")]
    assert found[-1].end_offset == 15


def test_a_long_line_does_not_fill_memory():
    splitter = ndjson.LineSplitter(max_line_bytes=10)
    for _ in range(100):
        assert list(splitter.feed(b"x" * 4)) == []

    assert len(splitter._partial_line) == 0
    assert [line.text for line in splitter.end()] == [None]


def test_a_dotted_name_is_a_field_with_that_name_or_a_nested_field():
    inside = b'{"a": {"b": {"c": 1}}}'
    assert record(inside, "a.b.c") == ndjson.KeyedRecord(ndjson.Line(3, 100, inside), b"1", inside)

    both = b'{"a": {"b": 1}, "a.b": 2}'
    assert record(both, "a.b") == ndjson.KeyedRecord(ndjson.Line(3, 100, both), b"2", both)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"id": ', "is not JSON"),
        (b"hello", "is not JSON"),
        (b'{"id": 1} x', "is not JSON"),
        (b'{"id": "\xff"}', "is not JSON"),
        (b"[1]", "not a JSON object, so it has no field 'id'"),
        (b'{"other": 1, "more": 2}', "has no field 'id'; its fields are 'other', 'more'"),
        (b"{}", "its fields are none"),
        (b'{"id": null}', "has null in field 'id'"),
        (b'{"id": {"a": 1}}', "has an object in field 'id'"),
        (b'{"id": [1]}', "has a list in field 'id'"),
    ],
)
def test_an_invalid_line_has_a_reason(text: bytes, message: str):
    assert message in problem(text)


def test_with_a_fixed_key_a_line_must_still_be_json():
    assert "is not JSON" in problem(b"hello", None, b"k")


def test_a_line_above_the_record_size_is_invalid():
    fits = json.dumps("x" * (MAX_RECORD_BYTES - 3)).encode()

    assert isinstance(record(fits, None, b"k"), ndjson.KeyedRecord)
    assert "exceed 1048576 bytes" in problem(fits, None, b"kk")
    with pytest.raises(ndjson.BadLineError, match="longer than 1048576 bytes"):
        ndjson.keyed_record(ndjson.Line(3, 9, None), ndjson.LineFormat(key=b"k"))


def test_a_position_of_another_program_is_none():
    assert ndjson.decode_position(b"\x01") is None


@given(st.lists(st.binary(max_size=12), min_size=1), st.integers(1, 12))
def test_the_digest_of_a_line_is_that_of_all_bytes_up_to_its_end(parts: list[bytes], max_line_bytes: int):
    """Whatever the blocks are, and also after a line that is too long to be kept."""
    whole = b"".join(parts)
    for line in split(*parts, max_line_bytes=max_line_bytes, hasher=ndjson.new_hasher()):
        expected = ndjson.new_hasher()
        expected.update(whole[: line.end_offset])
        assert expected.digest() == line.digest


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [(b"a:b:c", b"a", b"b:c"), (b"k:v\r", b"k", b"v\r"), (b"k:", b"k", b""), (b"\xff:\x00", b"\xff", b"\x00")],
)
def test_a_key_separator_divides_any_line_once(text: bytes, key: bytes, value: bytes):
    found = ndjson.keyed_record(ndjson.Line(3, 100, text), ndjson.LineFormat(key_separator=b":"))

    assert ndjson.KeyedRecord(ndjson.Line(3, 100, text), key, value) == found


def test_a_line_without_its_key_separator_is_invalid():
    with pytest.raises(ndjson.BadLineError, match="has no key separator"):
        ndjson.keyed_record(ndjson.Line(3, 100, b"a b"), ndjson.LineFormat(key_separator=b"\t"))


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        (b'{"at":1769882400000}', 1_769_882_400_000),
        (b'{"at":1769882400000.75}', 1_769_882_400_000),
        (b'{"at":"1769882400s"}', 1_769_882_400_000),
    ],
)
def test_a_timestamp_is_milliseconds_or_a_time(text: bytes, timestamp_ms: int):
    found = ndjson.keyed_record(ndjson.Line(3, 100, text), ndjson.LineFormat(key=b"k", timestamp_field="at"))

    assert ndjson.KeyedRecord(ndjson.Line(3, 100, text), b"k", text, timestamp_ms) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"at":-1}', "has no timestamp in field 'at': '-1' is not between 1990 and 2100 in ms"),
        (b'{"at":{}}', "has no timestamp in field 'at': '{}' is not a time"),
        (b'{"at":"noon"}', "has no timestamp in field 'at': 'noon' is not a time"),
        (b'{"n":1}', "has no field 'at'; its fields are 'n'"),
        (b"[1]", "is not a JSON object, so it has no field 'at'"),
    ],
)
def test_an_unusable_timestamp_has_a_reason(text: bytes, problem: str):
    with pytest.raises(ndjson.BadLineError) as found:
        ndjson.keyed_record(ndjson.Line(3, 100, text), ndjson.LineFormat(key=b"k", timestamp_field="at"))

    assert str(found.value).startswith(problem)


@pytest.mark.parametrize(
    ("text", "form"),
    [(b'{"id": ""}', ndjson.LineFormat(key_field="id")), (b":v", ndjson.LineFormat(key_separator=b":"))],
    ids=["field", "separator"],
)
def test_an_empty_key_is_invalid(text: bytes, form: ndjson.LineFormat):
    with pytest.raises(ndjson.BadLineError):
        ndjson.keyed_record(ndjson.Line(3, 100, text), form)


# What one command writes and another reads is the same, byte for byte: each pair of them, for all records.

Parse = Callable[[ndjson.Line], object]

KEYS = st.binary(min_size=1, max_size=8)
SPECIAL = [b"", b" ", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}", b"\x00", b'"a"', b"a,", b'{"a":1.0}\r']
VALUES = st.binary(max_size=8) | st.sampled_from(SPECIAL)
RECORDS = st.lists(st.tuples(KEYS, VALUES), max_size=6)


def written(records: list[tuple[bytes, bytes]], write: Callable[[LedgerRecord], bytes]) -> bytes:
    return b"".join(
        write(LedgerRecord(SegmentId(0), Offset(number), 7, key, value)) for number, (key, value) in enumerate(records)
    )


def read(text: bytes, parse: Parse, *, cut: int, last_end: bool = True) -> list[tuple[bytes, bytes]]:
    """Read ``text`` in two blocks; without ``last_end``, its last line lacks the line feed."""
    text = text if last_end else text.removesuffix(b"\n")
    splitter = ndjson.LineSplitter()
    lines = [line for block in (text[:cut], text[cut:]) for line in splitter.feed(block)] + list(splitter.end())
    found = [parse(line) for line in lines]
    assert all(isinstance(each, ndjson.KeyedRecord) for each in found), found
    return [(each.key, each.value) for each in found if isinstance(each, ndjson.KeyedRecord)]


def with_form(form: ndjson.LineFormat) -> Parse:
    return lambda line: ndjson.keyed_record(line, form)


@given(RECORDS, st.sampled_from([("\\t", b"\t"), ("=", b"="), (" | ", b" | ")]), st.integers(0, 40))
def test_keys_and_values_are_produced_unchanged(
    records: list[tuple[bytes, bytes]], separator: tuple[str, bytes], cut: int
) -> None:
    """`read --format '%k\\t%v\\n'` and `produce --key-separator '\\t'`: any key without the separator."""
    shown, text = separator
    # The first separator ends the key: a key must not end with a part of it either.
    kept = [(key, value) for key, value in records if b"\n" not in key + value and (key + text).find(text) == len(key)]
    form = ndjson.LineFormat(key_separator=text)

    assert kept == read(written(kept, record_formatter(f"%k{shown}%v\\n")), with_form(form), cut=cut)


@given(RECORDS, st.integers(0, 80), st.booleans())
def test_lines_of_json_are_stored_and_read_as_they_were_written(
    records: list[tuple[bytes, bytes]], cut: int, last_end: bool
) -> None:
    """What `consume` and `read` print is produced with `--key-field`; then `read --raw` prints the same lines."""
    texts = [record_line(LedgerRecord(SegmentId(0), Offset(0), 7, key, value)) for key, value in records]
    form = ndjson.LineFormat(key_field="key")
    stored = read(b"".join(texts), with_form(form), cut=cut, last_end=last_end)

    assert texts == [written([each], record_formatter("%v\\n")) for each in stored]
