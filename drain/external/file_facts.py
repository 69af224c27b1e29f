"""Reduce the data files of external tables to facts, in tasks of Spark that read them with pyarrow.

The facts of a file are those of its parts: a few rows for each segment. They name no topic and no number of a segment,
so they hold for as long as the file does not change. Like drain.external.file_reader, this module is sent with the
query. An invalid file is a row with its fault, and hides no facts of others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from drain.backlog import aggregates
from drain.backlog.aggregates import grouped, joined, slots_of
from drain.external import file_reader
from drain.external.file_reader import OPTIONAL, ROWS, BadFileError, Columns, DataFile, read_rows
from drain.spark.object_reader import read_in_tasks

FILES_PER_TASK: Final = 16
TASKS: Final = 16
"""A query has as many tasks at least, if it has so many files."""
_SIZES: Final = "sized=count:size_bytes size_bytes=sum:size_bytes"
_TEXTS: Final = ("fault", "name", "label", "low", "high")
_NUMBERS: Final = ("file", "part", "rows", "sized", "size_bytes", "first", "end", "at_ms")
FACTS: Final = pa.schema(
    dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.int64()) | {"missing": pa.list_(pa.string())}
)
"""Facts of a part of a file, by subscription (``name``) and segment (``label``), and those of entries by slot of the
timestamp index too: the number of rows, and of those with a size; the range of offsets; the lowest and highest order;
the instant of the row at the end, or the lowest one of opaque positions.

Each file has a row without a label, with its fault, or with the mapped columns that have no value in it.
"""


def read_facts(number: int, file: DataFile, columns: Columns) -> Iterator[pa.Table]:
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


def _entries(rows: pa.Table) -> pa.Table:
    """Return the facts of entries. One that occurs twice weighs twice in the mean size, and in nothing else."""
    slots = rows.append_column("slot", slots_of(rows["first"])).sort_by("first")
    return grouped(slots, "label slot", f"rows=count:first {_SIZES} end=max:end at_ms=last:at_ms", ordered=True)


def _ranges(rows: pa.Table) -> pa.Table:
    """Return the ranges of each subscription in each segment, most of those that overlap or touch as one."""
    return joined(grouped(rows, "name label first", "end=max:end"), "name label", "first", "end")


def _positions(rows: pa.Table) -> pa.Table:
    once = grouped(rows, "label order", "size_bytes=max:size_bytes at_ms=min:at_ms")
    return grouped(once, "label", f"rows=count:order {_SIZES} at_ms=min:at_ms low=min:order high=max:order")


def facts_frame(session: SparkSession, files: Sequence[DataFile], columns: Columns, first: int) -> DataFrame:
    return _in_tasks(session, files, lambda at, file: read_facts(first + at, file, columns), FACTS)


def rows_frame(session: SparkSession, files: Sequence[DataFile], columns: Columns) -> DataFrame:
    """Return the rows of ``files``, which have no fault."""
    return _in_tasks(session, files, lambda _, file: read_rows(file, columns), ROWS)


Read = Callable[[int, DataFile], Iterable[pa.Table]]


def _in_tasks(session: SparkSession, files: Sequence[DataFile], read: Read, schema: pa.Schema) -> DataFrame:
    def task(part: Sequence[tuple[int, DataFile]]) -> Iterator[pa.RecordBatch]:
        for at, file in part:
            for found in read(at, file):
                yield from found.combine_chunks().to_batches(max_chunksize=65_536)

    tasks = min(len(files), max(TASKS, len(files) // FILES_PER_TASK))
    sent = (__name__, file_reader.__name__, aggregates.__name__)
    return read_in_tasks(session, [*enumerate(files)], tasks, task, schema, sent)
