"""What one command writes and another reads is the same, byte for byte: each pair of them, for all records."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.records.consume import record_line
from headgate.cli.records.ndjson import KeyedRecord, Line, LineFormat, LineSplitter, keyed_record
from headgate.cli.records.record_format import record_formatter
from headgate.model.identifiers import Offset, SegmentId
from headgate.reading.stored_rows import LedgerRecord

Parse = Callable[[Line], object]

KEYS = st.binary(min_size=1, max_size=8)
SPECIAL = [
    b"",
    b" ",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbf{}",
    b"\x00",
    b'"a"',
    b"a,b",
    b'{"a": 1.0}\r',
]
VALUES = st.binary(max_size=8) | st.sampled_from(SPECIAL)
RECORDS = st.lists(st.tuples(KEYS, VALUES), max_size=6)


def written(records: list[tuple[bytes, bytes]], write: Callable[[LedgerRecord], bytes]) -> bytes:
    return b"".join(
        write(LedgerRecord(SegmentId(0), Offset(number), 7, key, value)) for number, (key, value) in enumerate(records)
    )


def read(text: bytes, parse: Parse, *, cut: int, last_end: bool = True) -> list[tuple[bytes, bytes]]:
    """Read ``text`` in two blocks; without ``last_end``, its last line lacks the line feed."""
    text = text if last_end else text.removesuffix(b"\n")
    splitter = LineSplitter()
    lines = [line for block in (text[:cut], text[cut:]) for line in splitter.feed(block)] + list(splitter.end())
    found = [parse(line) for line in lines]
    assert all(isinstance(each, KeyedRecord) for each in found), found
    return [(each.key, each.value) for each in found if isinstance(each, KeyedRecord)]


def with_form(form: LineFormat) -> Parse:
    return lambda line: keyed_record(line, form)


@given(RECORDS, st.sampled_from([("\\t", b"\t"), ("=", b"="), (" | ", b" | ")]), st.integers(0, 40))
def test_keys_and_values_are_produced_unchanged(
    records: list[tuple[bytes, bytes]], separator: tuple[str, bytes], cut: int
) -> None:
    """`read --format '%k\\t%v\\n'` and `produce --key-separator '\\t'`: any key without the separator."""
    shown, text = separator
    # The first separator ends the key: a key must not end with a part of it either.
    kept = [(key, value) for key, value in records if b"\n" not in key + value and (key + text).find(text) == len(key)]
    form = LineFormat(key_separator=text)

    assert kept == read(written(kept, record_formatter(f"%k{shown}%v\\n")), with_form(form), cut=cut)


@given(RECORDS, st.integers(0, 80), st.booleans())
def test_lines_of_json_are_stored_and_read_as_they_were_written(
    records: list[tuple[bytes, bytes]], cut: int, last_end: bool
) -> None:
    """What `consume` and `read` print is produced with `--key-field`; then `read --raw` prints the same lines."""
    texts = [record_line(LedgerRecord(SegmentId(0), Offset(0), 7, key, value)) for key, value in records]
    form = LineFormat(key_field="key")
    stored = read(b"".join(texts), with_form(form), cut=cut, last_end=last_end)

    assert texts == [written([each], record_formatter("%v\\n")) for each in stored]
