"""Read a data file of an external table, with pyarrow. Runs on Spark's workers.

Workers need pyarrow, obstore, and its credentials for a bucket, but not headgate: this module is sent with the query.

1. Every file has its own schema. Whole numbers of any width are read as 64 bits, and a position as text. CSV and
   the values of partitions have only text, so their numbers are parsed.
2. An instant is a TIMESTAMP, a date, milliseconds since 1970, or a text by ISO 8601. One without a time zone is in UTC.
3. Sizes and instants may be null, or missing in older files. Nothing else may.
4. Memory is bounded: a part has up to `ROWS_PER_PART` rows of the mapped columns. JSON and CSV files are read whole.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, RawIOBase, TextIOWrapper
from typing import Any, Final

import obstore
import obstore.exceptions
import obstore.store
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

ROWS_PER_PART: Final = 1_000_000
_COMPRESSION: Final = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_JSON_BLOCK_BYTES: Final = 64 * 1024 * 1024
"""The longest line."""
_NULL_LINE: Final = re.compile(rb"^(\xef\xbb\xbf)?[ \t]*null[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table at one version. Equal ones have the same rows."""

    path: str
    """Path of a local file, or the URL of an object."""
    size_bytes: int
    version: str = ""
    """Differs when the content does: of the file itself, or of the table that names it and never changes it."""
    constants: tuple[tuple[str, str | None], ...] = ()
    """Column → its value in all rows: a partition."""
    field_ids: tuple[tuple[str, int], ...] = ()
    """Column → its id in the file, for tables whose columns can be renamed."""
    piece: tuple[int, int] = (0, 1)
    """Which one of how many pieces of the file, by row groups."""
    deleted: bytes = b""
    """Numbers of rows that are deleted, counted from 0, as 64-bit integers."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is read of each file."""

    format: str
    """parquet, csv or json."""
    facts: str
    """What the rows are: ``entries`` or ``ranges`` of offsets, or opaque ``positions``."""
    mapped: tuple[tuple[str, str], ...]
    """Name in `ROWS` → column of the table. Of `ranges`, ``end`` is mapped, and of the others it is not."""


ROWS: Final = pa.schema(
    dict.fromkeys(("name", "label", "order"), pa.string())
    | dict.fromkeys(("first", "end", "size_bytes", "at_ms"), pa.int64())
)
"""A row: the subscription's id (``name``), segment (``label``), the range of offsets, which has one offset for an
entry, or an opaque position as `sortable` (``order``)."""
OPTIONAL: Final = ("size_bytes", "at_ms")
GONE: Final = "is listed and does not exist: restore it, or the table to a version that has all of its files"
"""The fault of a file whose table was compacted, or vacuumed, since."""
_WHOLE: Final = "must be a whole number: cast it to BIGINT where the table is written"


class BadFileError(Exception):
    """A file cannot be counted. The text names the column, and what to do."""


def read_rows(file: DataFile, columns: Columns) -> Iterator[pa.Table]:
    """Yield the rows (`ROWS`) of ``file`` in parts; raises BadFileError."""
    names = dict(columns.mapped)
    constants = dict(file.constants)
    deleted = pa.array(memoryview(file.deleted).cast("q")) if file.deleted else None
    try:
        wanted = {column: name for name, column in names.items() if column not in constants}
        for begin, stored in _stored(file, columns.format, wanted):
            table = stored
            if deleted is not None:
                numbers = pa.array(range(begin, begin + len(table)))
                table = table.filter(pc.invert(pc.is_in(numbers, value_set=deleted)))
            for column, value in constants.items():
                table = table.append_column(column, pa.array([value] * len(table), pa.string()))
            texts = set(names.values()) if columns.format == "csv" else constants.keys()
            yield _normalized(table, names, begin, texts)
    except (FileNotFoundError, obstore.exceptions.NotFoundError):
        raise BadFileError(GONE) from None
    except (pa.ArrowException, obstore.exceptions.BaseError, OSError, UnicodeDecodeError) as error:
        # A store may quote a URL with a signature in it.
        raise BadFileError(re.sub(r"[?]\S+", "", (str(error).splitlines() or [type(error).__name__])[0])) from None


def _stored(file: DataFile, form: str, columns: Mapping[str, str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield parts of the file, and the numbers of their first rows; columns have their names in the table."""
    if file.size_bytes == 0 and form != "parquet":
        return
    with _opened(file.path) as source:
        if form == "parquet":
            parquet = pq.ParquetFile(source)
            found = _parquet_names(parquet.schema_arrow, dict(file.field_ids), columns)
            _require(columns, found.values(), parquet.schema_arrow.names)
            groups = parquet.num_row_groups
            first, end = (groups * at // file.piece[1] for at in (file.piece[0], file.piece[0] + 1))
            begin = sum(parquet.metadata.row_group(group).num_rows for group in range(first))
            parts = parquet.iter_batches(ROWS_PER_PART, range(first, end), list(found), use_threads=False)
            for batch in parts:
                yield begin, pa.table({found[name]: batch[name] for name in batch.schema.names})
                begin += len(batch)
            return
        suffix = file.path.rpartition(".")[2].lower()
        stream = pa.CompressedInputStream(source, _COMPRESSION[suffix]) if suffix in _COMPRESSION else source
        data = stream.read()
    table = _json(data, columns) if form == "json" else _csv(data, columns)
    for first in range(0, max(1, len(table)), ROWS_PER_PART):
        yield first, table.slice(first, ROWS_PER_PART)


def _opened(path: str) -> pa.NativeFile:
    if "://" not in path:
        return pa.OSFile(path)
    scheme, _, rest = path.partition("://")
    host, _, key = rest.partition("/")
    store = obstore.store.from_url(f"{scheme}://{host}")
    return pa.PythonFile(_ObjectFile(obstore.open_reader(store, key)), "r")


class _ObjectFile(RawIOBase):
    """A reader of obstore with the attributes that pyarrow asks for."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(size) if size >= 0 else self._reader.readall())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


def _parquet_names(schema: pa.Schema, ids: Mapping[str, int], columns: Iterable[str]) -> dict[str, str]:
    """Return names in the file → ``columns``. Files that were imported into a table have no ids."""
    by_id = {int((each.metadata or {}).get(b"PARQUET:field_id", -1)): each.name for each in schema}
    has_ids = bool(by_id.keys() - {-1})
    own = {(by_id.get(ids[column], "") if column in ids and has_ids else column): column for column in columns}
    return {name: column for name, column in own.items() if name in schema.names}


def _require(columns: Mapping[str, str], found: Iterable[str], others: Sequence[str]) -> None:
    lacking = sorted(column for column in columns.keys() - set(found) if columns[column] not in OPTIONAL)
    if lacking:
        has = f"; it has {', '.join(others) or 'none'}"
        raise BadFileError(f"has no column {', '.join(map(repr, lacking))}{has}: correct the mapping, or the file")
    if twice := [column for column in columns if others.count(column) > 1]:
        raise BadFileError(f"has column {twice[0]!r} twice: rename one")


def _csv(data: bytes, columns: Mapping[str, str]) -> pa.Table:
    _require_closed_quotes(data)
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    header = pa.csv.open_csv(BytesIO(data), parse_options=parse).schema.names
    kinds = {column: pa.string() for column in columns if column in header}
    _require(columns, kinds, header)
    options = pa.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds), strings_can_be_null=True)
    return pa.csv.read_csv(BytesIO(data), parse_options=parse, convert_options=options)


def _require_closed_quotes(data: bytes) -> None:
    """Refuse an open quote: pyarrow would take what follows it for one value, with all the rows in it."""
    if b'"' in data:
        csv.field_size_limit(sys.maxsize)
        rows = csv.reader(TextIOWrapper(BytesIO(data), "latin-1", newline=""), strict=True)
        try:
            deque(rows, maxlen=0)
        except csv.Error as error:
            raise BadFileError(f"line {rows.line_num}: a quote is not closed, or not doubled ({error})") from None


def _json(data: bytes, columns: Mapping[str, str]) -> pa.Table:
    """Return ``columns`` as texts or whole numbers. The types of others may differ between lines."""
    if _NULL_LINE.search(data):  # It would end the process, by a fault of pyarrow (seen with 26).
        raise BadFileError("a line is null, and no object: remove it")
    kinds = dict.fromkeys(columns, pa.string())
    while True:
        wanted = pa.json.ParseOptions(explicit_schema=pa.schema(kinds), unexpected_field_behavior="ignore")
        try:
            table = pa.json.read_json(BytesIO(data), pa.json.ReadOptions(block_size=_JSON_BLOCK_BYTES), wanted)
        except pa.ArrowInvalid as error:
            other = re.search(r"Column\(/(.+)\) changed from string to number", str(error))
            if other is None or kinds.get(other[1]) != pa.string():
                raise
            kinds[other[1]] = pa.int64()
        else:
            # A field that no line has is null in all of them.
            found = [name for name in table.column_names if table[name].null_count < len(table)]
            _require(columns, found, found)
            return table.select(found)


def _normalized(table: pa.Table, names: Mapping[str, str], begin: int, texts: Container[str]) -> pa.Table:
    """Return ``table`` as ROWS; raises BadFileError.

    ``begin``: number of its first row in the file. ``texts``: columns whose numbers are texts.
    """
    found: dict[str, Any] = {}
    for name, column in names.items():
        if column not in table.column_names:
            continue
        values = table[column]
        if isinstance(values, pa.ChunkedArray) and pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        try:
            found[name] = _converted(values, column, name, text=column in texts)
        except pa.ArrowException as error:
            raise BadFileError(f"column {column!r}: {error}") from None
        if name not in OPTIONAL:
            _refuse(pc.is_null(found[name]), f"column {column!r} is null", begin)
    if "end" not in names and "first" in found:
        found["end"] = pc.add(found["first"], 1)
    if "end" in names and "first" not in names:
        found["first"] = pa.repeat(pa.scalar(0, pa.int64()), len(table))
    rows = pa.table({each.name: found.get(each.name, pa.nulls(len(table), each.type)) for each in ROWS}, schema=ROWS)
    _refuse(pc.less(rows["first"], 0), "an offset is negative", begin)
    _refuse(pc.less(rows["size_bytes"], 0), "a size is negative", begin)
    _refuse(pc.less(rows["end"], rows["first"]), "a range ends before it begins", begin)
    return rows


def _refuse(faulty: Any, fault: str, begin: int) -> None:
    count = pc.sum(faulty).as_py()
    if count:
        first = begin + pc.index(faulty, True).as_py() + 1
        raise BadFileError(f"{fault} in {count} row(s), first in row {first}: correct or remove them")


def _converted(values: Any, column: str, name: str, *, text: bool) -> Any:
    kind = values.type
    is_number = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0) or pa.types.is_null(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if name == "at_ms":
        return _at_ms(values, column, is_number=is_number, is_text=is_text)
    if name == "label":
        return values.cast(pa.string())
    if name == "order":
        if not is_number and not is_text:
            raise BadFileError(f"column {column!r} is of type {kind}; a position is a text or a whole number")
        return _sortable(values.cast(pa.string()), column)
    if not is_number and not (text and is_text):
        raise BadFileError(f"column {column!r} is of type {kind}, and {_WHOLE}")
    numbers = values.cast(pa.int64())
    return numbers.cast(pa.string()) if name == "name" else numbers


def _at_ms(values: Any, column: str, *, is_number: bool, is_text: bool) -> Any:
    if is_text:
        for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return _at_ms(values.cast(kind), column, is_number=kind == pa.int64(), is_text=False)
            except pa.ArrowInvalid as error:
                reason = error
        raise BadFileError(f"column {column!r} has a text that is no instant: {reason}")
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("ms", getattr(values.type, "tz", None)), safe=False)
    elif not is_number:
        raise BadFileError(f"column {column!r} is of type {values.type}, and must be a TIMESTAMP, or milliseconds")
    return values.cast(pa.int64())


def _sortable(numbers: Any, column: str) -> Any:
    """Return texts of whole numbers as texts that sort like them: their length precedes them."""
    if pc.any(pc.invert(pc.ascii_is_decimal(numbers))).as_py():
        raise BadFileError(f"column {column!r} has a position that is not a whole number from 0 on")
    bare = pc.ascii_ltrim(numbers, "0")
    bare = pc.if_else(pc.equal(bare, ""), "0", bare)
    return pc.binary_join_element_wise(pc.utf8_lpad(pc.utf8_length(bare).cast(pa.string()), 5, "0"), bare, "")


def sortable(number: str) -> str:
    """Return what the order of ``number`` is in `ROWS`; ``number``: decimal digits."""
    bare = number.lstrip("0") or "0"
    return f"{len(bare):05}{bare}"
