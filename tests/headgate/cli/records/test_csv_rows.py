"""Rows of CSV: what csv.writer writes comes back, what is no record is named, and a run continues after a row."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.records.csv_rows import RowParser
from headgate.cli.records.ndjson import KeyedRecord, Line, LineFormat, LineSplitter, Quotes
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.cli_client import FakeCluster

FIELDS = st.text(st.sampled_from('a",\r\n é;\x00'), max_size=5)
HEADER = ["k", 'a "b"', "c\nd"]


def split(text: bytes, cut: int) -> list[Line]:
    splitter = LineSplitter(quotes=Quotes())
    return [line for block in (text[:cut], text[cut:]) for line in splitter.feed(block)] + list(splitter.end())


@given(
    st.lists(st.tuples(FIELDS.map("x".__add__), FIELDS, FIELDS), min_size=1, max_size=5),
    st.integers(0, 80),
    # With line feeds alone, csv.writer of Python 3.11 does not quote a carriage return.
    st.sampled_from([("\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
    st.booleans(),
    st.booleans(),
)
def test_rows_of_the_csv_module_come_back(rows, cut, style, last_end, has_header):
    file, (end, quoting) = io.StringIO(), style
    writer = csv.writer(file, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]  # one of its constants
    writer.writerows([HEADER, *rows] if has_header else rows)
    text = (file.getvalue() if last_end else file.getvalue().removesuffix(end)).encode()
    parser = RowParser(LineFormat(key_field="1"), has_header=has_header)
    lines = split(text, cut)
    found = [each for each in map(parser.parse, lines) if isinstance(each, KeyedRecord)]

    assert [row[0].encode() for row in rows] == [each.key for each in found]
    assert [dict(zip(HEADER, row, strict=True)) if has_header else list(row) for row in rows] == [
        json.loads(each.value) for each in found
    ]
    # A run can continue after each row.
    assert lines[-1].number + lines[-1].more_lines == text.count(b"\n") + (not text.endswith(b"\n"))
    for at, each in enumerate(lines, 1):
        assert [line.text for line in lines[at:]] == [line.text for line in split(text[each.end_offset :], cut)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (b"a", "has 1 columns, and the header has 2: column 2 is missing"),
        (b"a,1,2", "has 3 columns, and the header has 2: column 3 is extra"),
        (b",1", "has an empty text in column 'id'; a key must not be empty"),
        (b'"a"b,1', "is not CSV"),
        (b"a\rb,1", "is not CSV"),
        (b'a,"1\n', "is not CSV: unexpected end of data"),
        (b"a,\xff", "is not UTF-8 at its byte 3"),
        (b"a,now", "has no timestamp in column 'at': 'now' is not a time"),
        (b"a,nan", "has no timestamp in column 'at': 'nan' is not a time"),
        (b"a,1769882400000", "has no timestamp in column 'at': '1769882400000' is not between 1990 and 2100 in s"),
    ],
)
def test_what_is_no_record_is_named_or_counted(row, problem, invoke, orders, tmp_path):
    """The quoted line break before it counts as a line."""
    path = tmp_path / "orders.csv"
    path.write_bytes(b'\xef\xbb\xbfid,at\r\n"x\ny",2026-01-31T18:00:00Z\n\nb,1769882400\n' + row)
    words = ("produce", "orders", "--csv", "--key-field", "id", "--timestamp-field", "at", "--timestamp-unit", "s")

    refused = invoke(*words, str(path))
    assert f"headgate: {path}:6 {problem}" in refused.stderr
    assert [b"x\ny", b"b"] == [key for _, key, _ in orders.sent]
    assert [1_769_882_400_000] * 2 == orders.timestamps
    skipped = invoke(*words, "--skip-bad-lines", str(path))
    assert skipped.stderr.endswith("skipped 1 invalid line, 1 blank line, 1 byte order mark removed\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a,b\n1,2\n", "has no column 'id'; its columns are 'a', 'b', or 1 to 2; correct this line"),
        (b"id,id\n1,2\n", "is a header with several columns 'id'"),
        (b"\nid\n1\n", "is blank, but must be the header"),
    ],
)
def test_a_header_that_names_no_columns_ends_the_run(text, problem, invoke, orders, tmp_path):
    (tmp_path / "orders.csv").write_bytes(text)
    result = invoke("produce", "orders", "--csv", "--key-field", "id", "--skip-bad-lines", str(tmp_path / "orders.csv"))

    assert (1, []) == (result.exit_code, orders.sent)
    assert f"orders.csv:1 {problem}" in result.stderr


def test_a_named_producer_continues_after_a_quoted_line_break(invoke: Invoke, orders: FakeCluster, tmp_path: Path):
    path, words = tmp_path / "orders.csv", ("produce", "orders", "--csv", "--key-field", "id", "--name", "one")
    path.write_bytes(b'id,text\na,"1\n2"\n')
    assert 0 == invoke(*words, str(path)).exit_code
    orders.source_position = orders.positions[-1]
    path.write_bytes(path.read_bytes() + b'b,"3\n4"\nc\n')

    resumed = invoke(*words, str(path))

    assert "continuing after 3 lines already stored" in resumed.stderr
    assert f"{path}:6 has 1 columns" in resumed.stderr
    assert [b'{"id":"a","text":"1\\n2"}', b'{"id":"b","text":"3\\n4"}'] == [value for _, _, value in orders.sent]


def test_quotes_inside_a_field_without_quotes_are_data() -> None:
    lines = split(b'5" pipe,a""\n"a"b"",c\n\nx,"""\n"""\n', 3)
    parser = RowParser(LineFormat(key=b"k"), has_header=False)

    assert [1, 2, 3, 4] == [each.number for each in lines]
    assert parser.parse(lines[2]) is None
    first = parser.parse(lines[0])
    assert isinstance(first, KeyedRecord)
    assert ['5" pipe', 'a""'] == json.loads(first.value)


@pytest.mark.parametrize(
    "words", [("--csv", "--key", "k", "--raw"), ("--csv", "--key-separator", ","), ("--no-header", "--key", "k")]
)
def test_contradicting_options_are_wrong_usage(words: tuple[str, ...], invoke: Invoke, orders: FakeCluster) -> None:
    assert (2, []) == (invoke("produce", "orders", *words).exit_code, orders.sent)
