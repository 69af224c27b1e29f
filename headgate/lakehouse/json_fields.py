"""JSON fields of records as columns, by a schema that the user gives. Pure.

1. A value whose fields all have a column, with values of the column's type, is only in the columns. Null and a missing
   field are the same.
2. A value with further fields is in the columns, and whole in the column ``value``.
3. Any other value does not fit. It is only in the column ``value``, and counted.
"""

from collections.abc import Iterable, Mapping
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from headgate.errors import ConfigError
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
