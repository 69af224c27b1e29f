"""Reduce the data files of external tables to facts, in tasks of Spark that read them with pyarrow.

The facts of a file are those of its parts: a few rows for each segment. They name no topic and no number of a segment,
so they hold for as long as the file does not change. Like drain.external.file_reader, this module is sent with the
query. An invalid file is a row with its fault, and hides no facts of others.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from drain.external import file_reader
from drain.external.file_reader import OPTIONAL, ROWS, BadFileError, Columns, DataFile, read_rows

FILES_PER_TASK: Final = 16
TASKS: Final = 16
"""A query has as many tasks at least, if it has so many files."""
_SIZES: Final = "sized=count:size_bytes size_bytes=sum:size_bytes"
_TEXTS: Final = ("fault", "name", "label", "low", "high", "low_position", "high_position")
_NUMBERS: Final = ("file", "part", "rows", "sized", "size_bytes", "first", "end", "at_ms")
FACTS: Final = pa.schema(
    dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.int64()) | {"missing": pa.list_(pa.string())}
)
"""Facts of a part of a file, by subscription (``name``) and segment (``label``), and those of entries by slot of the
timestamp index too: the number of rows, and of those with a size; the range of offsets; the lowest and highest order
and position; the instant of the row at the end, or the lowest one of opaque positions.

Each file has a row without a label, with its fault, or with the mapped columns that have no value in it.
"""


def read_facts(number: int, file: DataFile, columns: Columns) -> Iterator[pa.Table]:
    """Yield the facts (`FACTS`) of ``file``, whose number is ``number``."""
    facts_of = {"entries": _entries, "ranges": _ranges, "positions": _positions}[columns.facts]
    optional = {name: column for name, column in columns.mapped if name in OPTIONAL}
    row: dict[str, Any] = {"file": number}
    try:
        for part, rows in enumerate(read_rows(file, columns)):
            optional = {name: column for name, column in optional.items() if rows[name].null_count == len(rows)}
            if len(rows):
                yield _as_facts(facts_of(rows), file=number, part=part)
        row["missing"] = list(optional.values())
    except BadFileError as error:
        row["fault"] = str(error)
    yield pa.Table.from_pylist([row], FACTS)


def _as_facts(found: pa.Table, **numbers: int) -> pa.Table:
    columns = {name: pa.repeat(number, len(found)) for name, number in numbers.items()}
    columns |= {name: found[name] for name in found.column_names}
    given = (columns.get(each.name, pa.nulls(len(found), each.type)).cast(each.type) for each in FACTS)
    return pa.table(list(given), schema=FACTS)


def grouped(rows: pa.Table, keys: str, wanted: str, *, ordered: bool = False) -> pa.Table:
    """Group by ``keys``, and aggregate what is ``wanted``: words like ``new_name=function:column``."""
    words = [re.split("[=:]", word) for word in wanted.split()]
    keep_nulls = pc.ScalarAggregateOptions(skip_nulls=False)
    calls = [(column, function, keep_nulls if function == "last" else None) for _, function, column in words]
    found = rows.group_by(keys.split(), use_threads=not ordered).aggregate(calls)
    return found.rename_columns([*keys.split(), *(name for name, _, _ in words)])


def _entries(rows: pa.Table) -> pa.Table:
    """Return the facts of entries. One that occurs twice weighs twice in the mean size, and in nothing else."""
    slots = rows.append_column("slot", slots_of(rows["first"])).sort_by("first")
    return grouped(slots, "label slot", f"rows=count:first {_SIZES} end=max:end at_ms=last:at_ms", ordered=True)


def slots_of(offsets: Any) -> Any:
    """Return drain.backlog.timestamp_index.index_slot of each of ``offsets``."""
    bit = pc.bit_wise_and(offsets, pc.negate(offsets))
    return pc.bit_wise_and(offsets, pc.bit_wise_or(bit, pc.shift_left(bit, 1)))


def _ranges(rows: pa.Table) -> pa.Table:
    """Return the ranges of each subscription in each segment, most of those that overlap or touch as one."""
    once = grouped(rows, "name label first", "end=max:end")
    once = once.sort_by([(name, "ascending") for name in ("name", "label", "first")])
    before, after = once.slice(0, len(once) - 1), once.slice(1)
    same = pc.and_(pc.equal(before["name"], after["name"]), pc.equal(before["label"], after["label"]))
    continues = pc.and_(same, pc.less_equal(after["first"], before["end"]))
    starts = pa.chunked_array([pa.array([1]), *pc.invert(continues).cast(pa.int64()).chunks])
    numbered = once.append_column("number", pc.cumulative_sum(starts))
    return grouped(numbered, "name label number", "first=min:first end=max:end")


def _positions(rows: pa.Table) -> pa.Table:
    wanted = "low_position=min:position high_position=max:position size_bytes=max:size_bytes at_ms=min:at_ms"
    once = grouped(rows, "label order", wanted)
    for row in once.filter(pc.not_equal(once["low_position"], once["high_position"])).slice(0, 1).to_pylist():
        raise BadFileError(two_positions(row["low_position"], row["high_position"]))
    positions = "low_position=min:low_position high_position=max:high_position"
    return grouped(once, "label", f"rows=count:order {_SIZES} at_ms=min:at_ms low=min:order high=max:order {positions}")


def two_positions(first: str, second: str) -> str:
    return f"positions {first!r} and {second!r} have one version: map a column that orders the positions of a segment"


# Queries


def facts_frame(session: SparkSession, files: Sequence[DataFile], columns: Columns, first: int) -> DataFrame:
    """Return the facts of ``files``, which are numbered from ``first`` on."""
    return _in_tasks(session, files, lambda at, file: read_facts(first + at, file, columns), FACTS)


def rows_frame(session: SparkSession, files: Sequence[DataFile], columns: Columns) -> DataFrame:
    """Return the rows of ``files``, which have no fault."""
    return _in_tasks(session, files, lambda _, file: read_rows(file, columns), ROWS)


Read = Callable[[int, DataFile], Iterable[pa.Table]]


def _in_tasks(session: SparkSession, files: Sequence[DataFile], read: Read, schema: pa.Schema) -> DataFrame:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for found in read(at, files[at]):
                    yield from found.combine_chunks().to_batches(max_chunksize=65_536)

    for module in (__name__, file_reader.__name__):
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
    tasks = max(1, min(len(files), max(TASKS, len(files) // FILES_PER_TASK)))
    return session.range(0, len(files), 1, tasks).mapInArrow(task, from_arrow_schema(schema))
