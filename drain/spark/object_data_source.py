"""Read chunks from an object store on Spark's own workers, without any jar: a data source that yields Arrow batches.

PySpark's JVM reads folders only; its file systems for S3, GCS and Azure are jars that pip does not bring. Here each
task gets some objects of the ledger, fetches them through obstore, and hands the wanted columns over as Arrow. So the
job runs on a cluster and on Spark Connect as it does locally, and no byte of the ledger passes through the driver.
Workers need pyarrow and obstore, and their environment the store's credentials; headgate itself need not be installed
there: this module travels with the query (`register`), so it must import nothing else of headgate's.

The rules:

1. The header of each object is compared with its place before a row of it counts: what is not that chunk fails the run.
2. Every error names its object, as one line: `ObjectError`.
3. What a worker holds is bounded: MAX_CONCURRENT_FETCHES objects of up to MAX_WHOLE_READ_BYTES; of larger ones only
the ranges of the
   wanted columns.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import obstore
import obstore.exceptions
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

NAME: Final = "headgate_objects"
OBJECTS_PER_TASK: Final = 64
"""Small objects cost a round trip each, which overlap within a task; a task itself costs some 10 ms."""
MAX_CONCURRENT_FETCHES: Final = 16
MAX_WHOLE_READ_BYTES: Final = 4 * 1024 * 1024
"""Up to here one request for all of an object is quicker than one for its footer and one a column."""
ROWS_PER_BATCH: Final = 65_536
_METADATA_KEY: Final = b"headgate"
_FORMAT: Final = 2
_CHUNK_PATH: Final = re.compile(r"shard=(\d+)/(\d+)\.parquet$")


class ObjectError(Exception):
    """An object cannot be read, or is not the chunk that its name says."""


def register(session: SparkSession) -> None:
    """Make the data source known to ``session``; cheap, and harmless to repeat."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    session.dataSource.register(ObjectSource)


def object_frame(session: SparkSession, ledger_url: str, paths: Sequence[str], schema: StructType) -> DataFrame:
    """Return the rows that state a fact of the objects at ``paths`` (relative to ``ledger_url``), as ``schema``.

    ``shard`` is taken from the path; a column that an object lacks is null in all of its rows.
    """
    reader = session.read.format(NAME).schema(schema)
    return reader.option("ledger", ledger_url).option("paths", json.dumps(list(paths))).load()


class ObjectSource(DataSource):
    """What Spark asks for a reader."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format`."""
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of this query's objects."""
        return ObjectReader(self.options["ledger"], json.loads(self.options["paths"]), to_arrow_schema(schema))


class ObjectPartition(InputPartition):
    """The objects of one task."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(tuple(paths))


class ObjectReader(DataSourceReader):
    """Deals the objects out to tasks, and reads those of one task."""

    def __init__(self, ledger_url: str, paths: Sequence[str], schema: pa.Schema) -> None:
        self._ledger_url = ledger_url
        self._paths = paths
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return neighbouring objects together, and never fewer tasks than there is work for."""
        return [
            ObjectPartition(self._paths[first : first + OBJECTS_PER_TASK])
            for first in range(0, len(self._paths), OBJECTS_PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's objects, many small objects to a batch."""
        store = obstore.store.from_url(
            self._ledger_url,
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        )
        gathered: list[pa.Table] = []
        rows = 0
        for table in _prefetch(store, partition.value, self._schema):
            gathered.append(table)
            rows += len(table)
            if rows >= ROWS_PER_BATCH:
                yield from _batches(gathered)
                gathered, rows = [], 0
        yield from _batches(gathered)


class RangedObject(io.RawIOBase):
    """One object as a file whose ranges are fetched as they are read."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to ``offset`` from the beginning, from here, or from the end."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or all that are left."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        data = bytes(obstore.get_range(self._store, self._path, start=self._at, end=end))
        self._at = end
        return data


def _batches(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    if tables:
        yield from pa.concat_tables(tables).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)


def _prefetch(store: Any, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the tables in order, while the next ones are being fetched."""
    pending: deque[Future[pa.Table]] = deque()
    with ThreadPoolExecutor(MAX_CONCURRENT_FETCHES, thread_name_prefix="objects") as threads:
        try:
            for path in paths:
                pending.append(threads.submit(_table, store, path, schema))
                if len(pending) == MAX_CONCURRENT_FETCHES:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _table(store: Any, path: str, schema: pa.Schema) -> pa.Table:
    try:
        found = obstore.get(store, path)
        size = found.meta["size"]
        source: Any = (
            pa.BufferReader(found.bytes()) if size <= MAX_WHOLE_READ_BYTES else RangedObject(store, path, size)
        )
        file = pq.ParquetFile(source, pre_buffer=True)
        shard = _checked_shard(file.metadata.metadata, path)
        table = file.read(columns=[name for name in schema.names if name in file.schema_arrow.names], use_threads=False)
    except (obstore.exceptions.BaseError, pa.ArrowException, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        # A store may put a signature into the address that it quotes.
        reason = re.sub(r"[?]\S+", "", lines[0])
        raise ObjectError(f"{path}: {reason}") from None
    table = table.filter(table.column("fact").is_valid())
    given = {name: table.column(name) for name in table.column_names} | {"shard": pa.repeat(shard, len(table))}
    columns = [
        given[field.name].cast(field.type) if field.name in given else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _checked_shard(metadata: dict[bytes, bytes] | None, path: str) -> int:
    match = _CHUNK_PATH.search(path)
    assert match is not None, f"{path} is not the name of a chunk"
    shard, number = int(match[1]), int(match[2])
    try:
        header = json.loads((metadata or {})[_METADATA_KEY])
        found = (header["format"], header["shard"], header["number"])
    except (KeyError, TypeError, ValueError):
        raise ObjectError(f"{path} is a Parquet object that headgate did not write") from None
    if found[0] != _FORMAT:
        raise ObjectError(
            f"{path} has format {found[0]}, this version of headgate reads format {_FORMAT}; "
            "run the version that wrote it"
        )
    if found[1:] != (shard, number):
        raise ObjectError(f"{path} states that it is chunk {found[2]} of shard {found[1]}")
    return shard
