"""Read objects of a ledger on Spark's workers, without a jar.

Each task fetches some objects through obstore, so no byte of the ledger passes through the driver.
This module and headgate.ledger.checksum are sent with the query, and their functions need no other headgate module. So
workers need pyarrow, obstore and the store's credentials in their environment, but not headgate.

1. Each object is fetched whole. Before its rows count, its checksum is verified: that of a chunk is in it, beside a
   header that is compared with its path, and that of a compacted object is given.
   A chunk whose only facts are packed records is read without Parquet, for a tenth of the work (docs/ledger.md).
2. Every error is one line that names its object: `ObjectError`.
3. Memory on a worker is bounded: max_concurrent_fetches objects of up to small_object_bytes, one larger object, and
   a batch.
"""

import gc
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from io import FileIO
from itertools import chain, groupby
from typing import Any, Final, TypeVar

import numpy as np
import obstore
import obstore.exceptions
import obstore.store
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from headgate.ledger.checksum import (
    SEAL_BYTES,
    ChecksumError,
    check,
    parquet_footer_start,
    parquet_metadata,
    verify_parquet,
)

ItemT = TypeVar("ItemT")
_METADATA_KEY: Final = b"headgate"
_PACKED: Final = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")
"""The columns of packed records (headgate.ledger.chunk)."""
_FORMAT: Final = 5
_MAX_CHUNK_BYTES: Final = 512 * 1024 * 1024
"""As in headgate.storage.object_store, which workers do not have."""
_COMPACTED_PATH: Final = re.compile(r"/topic_id=(\d+)/segment=(\d+)/")


def read_in_tasks(
    session: SparkSession,
    items: Sequence[ItemT],
    tasks: int,
    read: Callable[[Sequence[ItemT]], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    sent: Iterable[str],
) -> DataFrame:
    """Return what ``read`` returns for the items of each task, as ``schema``. Adjacent items are in one task.

    Python's garbage collector does not look at what a task holds, which has no cycles, nor at modules after each task:
    that would take as long as reading. ``sent``: names of the modules of whose functions ``read`` consists. A data
    source of Python would start three processes for each query.
    """
    # For a function of more than 1 MB, pyspark leaves a file behind. Names of chunks become a sixteenth.
    packed = zlib.compress(cloudpickle.dumps(list(items)), 1)  # type: ignore[no-untyped-call]

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc.disable()
        try:
            found = cloudpickle.loads(zlib.decompress(packed))
            for batch in batches:
                yield from read([found[index] for index in batch.column(0).to_pylist()])
        finally:
            gc.enable()
            if not gc.get_freeze_count():
                gc.freeze()

    for module in sent:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
    return session.range(0, len(items), 1, max(1, tasks)).mapInArrow(task, from_arrow_schema(schema))


@dataclass(frozen=True)
class ReadLimits:
    """Sizes of tasks, fetches and batches."""

    objects_per_task: int = 128
    """So many small ones: a task costs as much as reading 500 of them. More of them are divided among the cores."""
    max_concurrent_fetches: int = 16
    small_object_bytes: int = 4 * 1024 * 1024
    """Larger objects are fetched one at a time."""
    rows_per_batch: int = 65_536
    bytes_per_batch: int = 16 * 1024 * 1024

    def tasks(self, objects: int, cores: int) -> int:
        return min(cores, -(-objects // self.objects_per_task))


DEFAULT_LIMITS: Final = ReadLimits()


class ObjectError(Exception):
    """An object cannot be read, or does not match its path."""


def read_objects(
    ledger_url: str, objects: Sequence[tuple[str, int | None]], schema: pa.Schema, limits: ReadLimits = DEFAULT_LIMITS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's objects, with many small objects in a batch; raises ObjectError."""
    store = obstore.store.from_url(ledger_url, retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)})
    gathered: list[_ReadObject] = []
    rows = size_bytes = 0
    for found in _read(store, objects, schema, limits):
        gathered.append(found)
        rows += len(found.content[0] if found.is_packed else found.content)
        size_bytes += found.size_bytes
        if rows >= limits.rows_per_batch or size_bytes >= limits.bytes_per_batch:
            yield from _batches(gathered, schema, limits.rows_per_batch)
            gathered, rows, size_bytes = [], 0, 0
    yield from _batches(gathered, schema, limits.rows_per_batch)


def _batches(objects: Sequence["_ReadObject"], schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    if objects:
        yield from rows_of(objects, schema).combine_chunks().to_batches(max_chunksize=rows)


def _read(
    store: Any, objects: Sequence[tuple[str, int | None]], schema: pa.Schema, limits: ReadLimits
) -> Iterator["_ReadObject"]:
    """Yield the objects in order.

    Some small ones are fetched together, and decoded when all are there: threads that fetch and decode at the same time
    wait for each other, and need half as much processor time again. A folder answers sooner than a thread starts.
    """
    together = limits.max_concurrent_fetches
    folder = str(store.prefix or "/") if isinstance(store, obstore.store.LocalStore) else None
    with ThreadPoolExecutor(together, thread_name_prefix="objects") as threads:
        fetch_all = map if folder else threads.map
        for at in range(0, len(objects), together):
            some = objects[at : at + together]
            fetched = list(fetch_all(lambda each: _fetch(store, folder, each[0], limits.small_object_bytes), some))
            for (path, expected), data in zip(some, fetched, strict=True):
                yield decode_object(data or _fetch(store, folder, path, _MAX_CHUNK_BYTES), path, expected, schema)


def _fetch(store: Any, folder: str | None, path: str, most_bytes: int) -> bytes:
    """Return the content of an object, or nothing if it has more than ``most_bytes``. Raises ObjectError."""
    try:
        if folder:
            # obstore would wake up a thread for each part of the answer, which is ten times the work.
            with FileIO(f"{folder}/{path}") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                data = file.readall() if size_bytes <= most_bytes else b""
        else:
            found = obstore.get(store, path)
            size_bytes = found.meta["size"]
            data = bytes(found.bytes()) if size_bytes <= most_bytes else b""
    except (obstore.exceptions.BaseError, OSError) as error:
        raise object_error(path, error) from None
    if size_bytes > _MAX_CHUNK_BYTES:
        raise ObjectError(f"{path} has {size_bytes} bytes, and a chunk has at most {_MAX_CHUNK_BYTES}")
    return data


def object_error(path: str, error: Exception) -> ObjectError:
    lines = str(error).splitlines() or [type(error).__name__]
    # A store may quote a URL with a signature in it.
    reason = re.sub(r"[?]\S+", "", lines[0])
    return ObjectError(f"{path}: {reason}")


@dataclass(slots=True)
class _ReadObject:
    path: str
    content: pa.Table | Sequence[list[Any]]
    """The columns that it has; of a chunk whose only facts are its records, these as they are packed: `_PACKED`."""
    constants: dict[str, int]
    """The columns that have one value in all of its rows."""
    own: dict[str, Any]
    """The row that a chunk adds; empty: none."""
    size_bytes: int
    """The size of all columns, before compression. (Arrow's size of a table takes as long as reading a small one.)"""

    @property
    def is_packed(self) -> bool:
        return isinstance(self.content, list)


def decode_object(data: bytes, path: str, expected: int | None, schema: pa.Schema) -> _ReadObject:
    try:
        if expected is None:
            verify_parquet(data)
        else:
            check(data, expected)
    except ChecksumError as error:
        raise ObjectError(f"{path} is damaged: {error}") from None
    constants, own = {} if expected is None else _of_path(path), {}
    if expected is None:
        header = _header(data, path)
        constants = {"shard": header["shard"], "stored_at_ms": header["at_ms"]}
        own = {"fact": "chunk", "end_offset": header["number"], "timestamp_ms": header["at_ms"]}
        if packed := _packed(data, header, path):
            return _ReadObject(path, packed, constants, own, len(data))
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        stored = file.schema_arrow.names
        table = file.read(columns=[name for name in schema.names if name in stored], use_threads=False)
        size_bytes = sum(file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise object_error(path, error) from None
    return _ReadObject(path, table, constants, own, size_bytes)


def _packed(data: bytes, header: Mapping[str, Any], path: str) -> list[list[Any]] | None:
    """Return the packed records of a chunk, if they are all its facts and this worker can read them."""
    if header.get("facts") != 0 or (header["records"] and not header["packed_bytes"]):
        return None
    try:
        from msgspec import DecodeError, msgpack  # noqa: PLC0415 - workers of a cluster may lack it
    except ImportError:
        return None
    end = parquet_footer_start(data) - SEAL_BYTES
    packed = data[end - header["packed_bytes"] : end]
    with suppress(DecodeError, TypeError):
        columns: list[list[Any]] = msgpack.decode(packed) if header["records"] else [[] for _ in _PACKED]
        if {*map(len, columns)} == {header["records"]} and len(columns) == len(_PACKED):
            return columns
    raise ObjectError(f"{path} has unreadable packed records")


def _table_of(objects: Sequence[_ReadObject], schema: pa.Schema) -> pa.Table:
    """Return the packed records of adjacent chunks as a table."""
    by_column = zip(*(item.content for item in objects), strict=True)
    columns: dict[str, Any] = {
        name: list(chain.from_iterable(each)) for name, each in zip(_PACKED, by_column, strict=True)
    }
    columns["size_bytes"] = [
        len(key) + len(value) + sum(len(name.encode()) + len(content) for name, content in headers)
        for key, value, headers in zip(columns["key"], columns["value"], columns["headers"], strict=True)
    ]
    columns["headers"] = [
        [{"name": name, "value": content} for name, content in each] or None for each in columns["headers"]
    ]
    columns["fact"] = pa.repeat("record", len(columns["key"]))
    stored = [field for field in schema if field.name in columns]
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in stored})


def rows_of(objects: Sequence[_ReadObject], schema: pa.Schema) -> pa.Table:
    """Return the rows of all ``objects`` as ``schema``: for many small ones, a tenth of the work of one by one."""
    try:
        tables: list[pa.Table] = []
        for is_packed, run in groupby(objects, lambda item: item.is_packed):
            items = list(run)
            tables += [_table_of(items, schema)] if is_packed else [item.content for item in items]
        table = pa.concat_tables(tables, promote_options="permissive")
        rows = [len(item.content[0] if item.is_packed else item.content) for item in objects]
        for name in objects[0].constants.keys() & set(schema.names):
            values = np.repeat([item.constants[name] for item in objects], rows)
            table = table.append_column(name, pa.array(values, pa.int64()))
        if "fact" in schema.names and table.column("fact").null_count:
            table = table.combine_chunks()  # To filter many small pieces takes a tenth of the whole reading.
            table = table.filter(table.column("fact").is_valid())
        added = [item.constants | item.own for item in objects if item.own]
        row = {name: [item[name] for item in added] for name in schema.names if added and name in added[0]}
        return pa.concat_tables([schema.empty_table(), table, pa.table(row)], promote_options="permissive").cast(schema)
    except (pa.ArrowException, KeyError) as error:
        if len(objects) == 1:
            raise object_error(objects[0].path, error) from None
        for item in objects:  # One of them raises, with its name.
            rows_of([item], schema)
        raise


def _of_path(path: str) -> dict[str, int]:
    match = _COMPACTED_PATH.search(path)
    assert match is not None, f"{path} is not the name of a compacted object"
    return {"topic_id": int(match[1]), "segment": int(match[2])}


def _header(data: bytes, path: str) -> dict[str, Any]:
    """Return the header of a chunk, which is where it says to be. Raises ObjectError."""
    try:
        header: dict[str, Any] = json.loads(parquet_metadata(data, _METADATA_KEY) or b"")
        found, place = header["format"], (int(header["shard"]), int(header["number"]), int(header["at_ms"]))
    except (KeyError, TypeError, ValueError):
        raise ObjectError(f"{path} is a Parquet object that headgate did not write") from None
    if found != _FORMAT:
        raise ObjectError(
            f"{path} has format {found}, this version of headgate reads format {_FORMAT}; run the version that wrote it"
        )
    if not path.endswith(f"/shard={place[0]:04d}/{place[1]:012d}.parquet"):
        raise ObjectError(f"{path} states that it is chunk {place[1]} of shard {place[0]}")
    return header
