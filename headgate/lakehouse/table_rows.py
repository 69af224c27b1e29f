"""The columns of a table, made of records as Arrow data, and of JSON fields by a schema that the user gives.

1. A value whose fields all have a column, with values of the column's type, is only in the columns. Null and a missing
   field are the same.
2. A value with further fields is in the columns, and whole in the column ``value``.
3. Any other value does not fit. It is only in the column ``value``, and counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Meta

from headgate.errors import ConfigError, HeadgateError
from headgate.model.text import UNREADABLE_JSON

TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "long": Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    "double": float,
    "boolean": bool,
    "timestamp": Annotated[datetime, Meta(tz=True)],
}
"""Type of a column → what its values are decoded as."""
MAX_FIELDS: Final = 1000
_INSTANT: Final = pa.timestamp("us", tz="UTC")
COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    "timestamp": _INSTANT,
    "segment": pa.int64(),
    "offset": pa.int64(),
}
DAY: Final = "day"
"""The column of tables that are partitioned by day: the date of the timestamp in UTC."""
ARROW_TYPES: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": _INSTANT,
}


class Fields(NamedTuple):
    columns: dict[str, list[Any]]
    """Name of each field → its values; None without one."""
    left_over: list[bytes | None]
    """The values that are not only in the columns."""
    unfit: list[int]
    """The rows whose values do not fit."""


class FieldReader:
    def __init__(self, types: Mapping[str, str]) -> None:
        """``types``: field → its type. Raises ConfigError: one of `TYPES` it is not, or there are too many fields."""
        if len(types) > MAX_FIELDS:
            raise ConfigError(f"the schema has {len(types)} fields, of at most {MAX_FIELDS}")
        for name, kind in types.items():
            if not name or {*name} & {*'"\\', *map(chr, range(32))}:  # Iceberg or msgspec refuses them.
                raise ConfigError(
                    f"the schema has field {name!r}: leave out empty names, and those with quotes or control characters"
                )
            if kind not in TYPES:
                raise ConfigError(f"the schema has field {name!r} of type {kind!r}: use one of {', '.join(TYPES)}")
        self._names = {name: f"f{at}" for at, name in enumerate(types)}
        fields = [
            (self._names[name], TYPES[kind] | None, msgspec.field(name=name, default=None))
            for name, kind in types.items()
        ]
        checked = {"__post_init__": _require_utc} if "timestamp" in types.values() else {}
        exact = msgspec.defstruct("Exact", fields, forbid_unknown_fields=True, gc=False, namespace=checked)
        self._exact = msgspec.json.Decoder(exact)
        self._partial = msgspec.json.Decoder(msgspec.defstruct("Partial", fields, gc=False, namespace=checked))
        self._missing = exact()

    def read(self, values: Iterable[bytes]) -> Fields:
        rows, left_over, unfit = [], [], []
        for at, value in enumerate(values):
            row, rest = _decoded(self._exact, value), None
            if row is None:
                row, rest = _decoded(self._partial, value), value
            if row is None:
                row = self._missing
                unfit.append(at)
            rows.append(row)
            left_over.append(rest)
        columns = {name: [getattr(row, field) for row in rows] for name, field in self._names.items()}
        return Fields(columns, left_over, unfit)


def _require_utc(row: msgspec.Struct) -> None:
    """Raise ValueError for an instant that is not in the years 1 to 9999 in UTC: it would make its file unreadable."""
    for field in row.__struct_fields__:
        value = getattr(row, field)
        if isinstance(value, datetime) and value.year in (MINYEAR, MAXYEAR):
            try:
                value.astimezone(UTC)
            except OverflowError as error:
                raise ValueError(str(error)) from None


def _decoded(decoder: msgspec.json.Decoder[Any], value: bytes) -> Any:
    """Return the fields of ``value``; None if it has others than ``decoder`` expects."""
    try:
        return decoder.decode(value)
    except UNREADABLE_JSON:
        return None


class TableRows:
    """Makes rows with columns for JSON fields, or without, and with a day, or without."""

    def __init__(self, types: Mapping[str, str] | None, *, by_day: bool) -> None:
        """``types``: JSON field → type of its column. Raises ConfigError: a table cannot have them."""
        fields = types or {}
        taken = {*COLUMNS, DAY}
        for name in fields:
            if name.lower() in taken:  # Spark, DuckDB and Delta do not tell capital letters from small ones.
                raise ConfigError(f"the schema has field {name!r}, which is a column already (in any case of letters)")
            taken.add(name.lower())
        self.by_day = by_day
        self._reader = None if types is None else FieldReader(types)
        columns = COLUMNS | {name: ARROW_TYPES[kind] for name, kind in fields.items()}
        self.schema = pa.schema(columns | ({DAY: pa.date32()} if by_day else {}))
        self.unfit = 0
        """Records whose value did not fit the schema so far."""
        self.first_unfit: str | None = None
        self.without_timestamp = 0
        """Records behind the year 9999 so far. Their column ``timestamp`` is null."""

    def table(self, batches: Sequence[Any]) -> pa.Table:
        """Return the records of ``batches`` (headgate.reading.stored_rows.SCHEMA) as rows of the table."""
        found = pa.Table.from_batches([pa.record_batch(batch) for batch in batches])
        self.without_timestamp += found["timestamp"].null_count
        columns = {name: found[name] for name in COLUMNS}
        columns["timestamp"] = columns["timestamp"].cast(_INSTANT)
        if self.by_day:
            columns[DAY] = columns["timestamp"].cast(pa.date32())
        if self._reader is not None:
            fields = self._reader.read(found["value"].to_pylist())
            columns |= fields.columns | {"value": fields.left_over}
            self.unfit += len(fields.unfit)
            if fields.unfit and self.first_unfit is None:
                segment, offset = (found[name][fields.unfit[0]] for name in ("segment", "offset"))
                self.first_unfit = f"segment {segment}, offset {offset}"
        typed = ((field.name, columns[field.name], field.type) for field in self.schema)
        return pa.table({name: pa.array(v, kind) if isinstance(v, list) else v.cast(kind) for name, v, kind in typed})

    def lacks_columns(self, existing: pa.Schema, table: str) -> bool:
        """Return whether a table lacks some of the columns. Raises HeadgateError: it has others, or of another type."""
        # Tables do not tell small texts and bytes from large ones.
        wanted, has = (
            {x.name: str(x.type).replace("large_", "") for x in schema} for schema in (self.schema, existing)
        )
        if (DAY in has) != self.by_day:
            does, remedy = ("a", "add") if DAY in has else ("no", "leave out")
            raise HeadgateError(
                f"{table} has {does} column {DAY!r}: {remedy} --partition-by day, or export to another table"
            )
        for name, kind in has.items():
            if kind != wanted.get(name):
                does = f"of type {wanted[name]}" if name in wanted else "missing"
                raise HeadgateError(
                    f"{table} has column {name!r} of type {kind}, which is {does} in the schema: give one with it to "
                    "--schema, or export to another table"
                )
        return wanted.keys() != has.keys()
