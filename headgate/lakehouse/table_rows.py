"""The columns of a table, made of records as Arrow data."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headgate.errors import ConfigError, HeadgateError
from headgate.lakehouse.json_fields import FieldReader

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
