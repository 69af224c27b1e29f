"""Read chunks from an object store on Spark's workers, without a jar: a data source of Arrow batches.

Each task fetches some objects through obstore, so no byte of the ledger passes through the driver.
Workers need pyarrow, obstore and the store's credentials in their environment, but not headgate:
this module and headgate.ledger.checksum are sent with the query (`register`), and import no other
headgate module.

1. Each object is fetched whole: its checksum is verified, and its header compared with its path,
   before its rows count.
2. Every error is one line that names its object: `ObjectError`.
3. Memory on a worker is bounded: max_concurrent_fetches objects of up to small_object_bytes, and
   one larger object.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
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

from headgate.ledger.checksum import ChecksumError, verify_parquet

NAME: Final = "headgate_objects"
_METADATA_KEY: Final = b"headgate"
_FORMAT: Final = 5
_MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024
"""As in headgate.storage.size_limits, which workers do not have."""
_CHUNK_PATH: Final = re.compile(r"shard=(\d+)/(\d+)\.parquet$")


@dataclass(frozen=True)
class ReadLimits:
    """Sizes of tasks, fetches and batches."""

    objects_per_task: int = 64
    """Small objects cost a round trip each, which overlap within a task. A task itself costs some
    10 ms."""
    max_concurrent_fetches: int = 16
    small_object_bytes: int = 4 * 1024 * 1024
    """Larger objects are fetched one at a time."""
    rows_per_batch: int = 65_536


DEFAULT_LIMITS: Final = ReadLimits()


class ObjectError(Exception):
    """An object cannot be read, or does not match its path."""


def register(session: SparkSession) -> None:
    """Register the data source with ``session``; cheap and idempotent."""
    for module in (__name__, verify_parquet.__module__):
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
    session.dataSource.register(ObjectSource)


def object_frame(session: SparkSession, ledger_url: str, paths: Sequence[str], schema: StructType) -> DataFrame:
    """Return the fact rows of the objects at ``paths`` (relative to ``ledger_url``), as ``schema``.

    ``shard`` is taken from the path. A missing column of an object is null in all of its rows.
    """
    reader = session.read.format(NAME).schema(schema)
    return reader.option("ledger", ledger_url).option("paths", json.dumps(list(paths))).load()


class ObjectSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return ObjectReader(self.options["ledger"], json.loads(self.options["paths"]), to_arrow_schema(schema))


class ObjectReader(DataSourceReader):
    """Distributes the objects over tasks, and reads those of one task."""

    def __init__(
        self, ledger_url: str, paths: Sequence[str], schema: pa.Schema, limits: ReadLimits = DEFAULT_LIMITS
    ) -> None:
        self._ledger_url = ledger_url
        self._paths = paths
        self._schema = schema
        self._limits = limits

    def partitions(self) -> Sequence[InputPartition]:
        """Return adjacent objects together, one partition per task."""
        return [
            InputPartition(self._paths[first : first + self._limits.objects_per_task])
            for first in range(0, len(self._paths), self._limits.objects_per_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task's objects, with many small objects in a batch."""
        store = obstore.store.from_url(
            self._ledger_url,
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
        )
        gathered: list[pa.Table] = []
        rows = 0
        for table in _prefetch(store, partition.value, self._schema, self._limits):
            gathered.append(table)
            rows += len(table)
            if rows >= self._limits.rows_per_batch:
                yield from _batches(gathered, self._limits.rows_per_batch)
                gathered, rows = [], 0
        yield from _batches(gathered, self._limits.rows_per_batch)


def _batches(tables: Sequence[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
    if tables:
        yield from pa.concat_tables(tables).combine_chunks().to_batches(max_chunksize=rows)


def _prefetch(store: Any, paths: Sequence[str], schema: pa.Schema, limits: ReadLimits) -> Iterator[pa.Table]:
    """Yield the tables in order, while the next ones are fetched."""
    pending: deque[Future[pa.Table]] = deque()
    one_large = Lock()
    with ThreadPoolExecutor(limits.max_concurrent_fetches, thread_name_prefix="objects") as threads:
        try:
            for path in paths:
                pending.append(threads.submit(_table, store, path, schema, limits.small_object_bytes, one_large))
                if len(pending) == limits.max_concurrent_fetches:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _table(store: Any, path: str, schema: pa.Schema, small_object_bytes: int, one_large: Lock) -> pa.Table:
    try:
        found = obstore.get(store, path)
        if found.meta["size"] > _MAX_CHUNK_BYTES:
            raise ObjectError(f"{path} has {found.meta['size']} bytes, and a chunk has at most {_MAX_CHUNK_BYTES}")
        large = found.meta["size"] > small_object_bytes
        with one_large if large else nullcontext():
            if large:
                found = obstore.get(store, path)  # The first response would be idle while others are read.
            shard, table = decode_object(bytes(found.bytes()), path, schema)
    except (obstore.exceptions.BaseError, OSError) as error:
        raise _object_error(path, error) from None
    table = table.filter(table.column("fact").is_valid())
    table = table.append_column("shard", pa.repeat(shard, len(table)))
    return pa.concat_tables([schema.empty_table(), table], promote_options="permissive").cast(schema)


def _object_error(path: str, error: Exception) -> ObjectError:
    lines = str(error).splitlines() or [type(error).__name__]
    # A store may quote a URL with a signature in it.
    reason = re.sub(r"[?]\S+", "", lines[0])
    return ObjectError(f"{path}: {reason}")


def decode_object(data: bytes, path: str, schema: pa.Schema) -> tuple[int, pa.Table]:
    """Return the shard of an object, and those columns of ``schema`` that it has; raises ObjectError."""
    try:
        verify_parquet(data)
    except ChecksumError as error:
        raise ObjectError(f"{path} is damaged: {error}") from None
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        shard = _checked_shard(file.metadata.metadata, path)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        return shard, file.read(columns=names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _object_error(path, error) from None


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
