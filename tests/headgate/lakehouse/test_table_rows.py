"""Which columns a record gets, and what is said of records that do not fit."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from headgate.errors import ConfigError
from headgate.lakehouse.table_rows import FieldReader, TableRows
from headgate.ledger.parquet_columns import END_OF_TIME_MS
from headgate.reading.stored_rows import SCHEMA

TYPES = {"s": "string", "n": "long", "x": "double", "b": "boolean", "at": "timestamp"}


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b'{"s":"a","n":-9223372036854775808,"x":1,"b":true}', {"s": "a", "n": -(2**63), "x": 1.0, "b": True}),
        (b'{"at":"2026-01-31T19:00:00+01:00"}', {"at": datetime(2026, 1, 31, 18, tzinfo=UTC)}),
        (b' { "s" : null, "n":null}\n', {}),
        (b"{}", {}),
    ],
)
def test_a_value_whose_fields_have_columns_is_only_there(value: bytes, fields: dict[str, Any]) -> None:
    found = FieldReader(TYPES).read([value])

    assert ([None], []) == (found.left_over, found.unfit)
    assert dict.fromkeys(TYPES) | fields == {name: values[0] for name, values in found.columns.items()}


@pytest.mark.parametrize("value", [b'{"s":"a","new":1}', b'{"s":"a","new":{"deep":[]}}'])
def test_further_fields_keep_the_whole_value(value: bytes) -> None:
    found = FieldReader(TYPES).read([value])

    assert ([value], []) == (found.left_over, found.unfit)
    assert ["a"] == found.columns["s"]


@pytest.mark.parametrize(
    "value",
    [
        b'{"s":1}',
        b'{"n":9223372036854775808}',
        b'{"n":1.5}',
        b'{"x":1e999}',
        b'{"at":"2026-01-31T19:00:00"}',
        b'{"at":"9999-12-31T23:59:59-23:59"}',
        b'{"at":"0001-01-01T00:00:00+23:59"}',
        b'{"s":"\\ud800"}',
        b'{"s":"\xff"}',
        b'{"new":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[1]",
        b"{",
        b"",
    ],
    ids=lambda value: value[:20].decode(errors="replace"),
)
def test_a_value_that_does_not_fit_is_kept_and_counted(value: bytes) -> None:
    found = FieldReader(TYPES).read([b"{}", value])

    assert ([None, value], [1]) == (found.left_over, found.unfit)
    assert all(values == [None, None] for values in found.columns.values())


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"n": "int"}, "field 'n' of type 'int': use one of string, long, double, boolean, timestamp"),
        ({"offset": "long"}, "field 'offset', which is a column already"),
        ({"Day": "string"}, "field 'Day', which is a column already"),
        ({"Id": "string", "id": "string"}, "field 'id', which is a column already"),
        ({"": "string"}, "leave out empty names"),
        ({"a\nb": "string"}, "and those with quotes"),
        ({f"f{at}": "long" for at in range(1001)}, "has 1001 fields, of at most 1000"),
    ],
)
def test_a_schema_that_no_table_can_have_is_refused(types: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TableRows(types, by_day=False)


def test_rows_have_the_columns_of_the_table_and_those_that_do_not_fit_are_named() -> None:
    at_ms = [1_769_882_400_000, END_OF_TIME_MS - 1, None, None]
    values = [b'{"s":"a"}', b"no JSON", b'{"s":2}', b'{"s":"b"}']
    columns = [[b"k"] * 4, values, [None] * 4, at_ms, [3] * 4, [7, 8, 9, 10]]
    schema = pa.schema(SCHEMA)
    batch = pa.record_batch([pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema)

    layout = TableRows({"s": "string"}, by_day=True)
    rows = layout.table([batch])

    assert ["key", "value", "headers", "timestamp", "segment", "offset", "s", "day"] == rows.column_names
    assert ["a", None, None, "b"] == rows["s"].to_pylist()
    assert [None, b"no JSON", b'{"s":2}', None] == rows["value"].to_pylist()
    assert [date(2026, 1, 31), date(9999, 12, 31), None, None] == rows["day"].to_pylist()
    assert [1_769_882_400_000_000, (END_OF_TIME_MS - 1) * 1000, None, None] == rows["timestamp"].cast(
        "int64"
    ).to_pylist()
    assert (2, "segment 3, offset 8", 2) == (layout.unfit, layout.first_unfit, layout.without_timestamp)
