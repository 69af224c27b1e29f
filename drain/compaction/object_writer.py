"""Write sorted records as objects on Spark's workers, without a jar: one object of one segment at a time.

Workers need what `drain.spark.object_reader` says. A task reads each object back before it reports it, also one whose
write has failed: what is stored decides. The name of an object contains its checksum, so a task that is repeated, or
runs twice, writes the same object again.
"""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

import obstore
import obstore.exceptions
import obstore.store
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from drain.spark.object_reader import ObjectError, object_error
from headgate.ledger.checksum import checksum

KEYS: Final = ("topic_id", "segment", "part")
"""What is the same in all records of an object, and in its path."""
RECORD_COLUMNS: Final = ("offset", "timestamp_ms", "stored_at_ms", "size_bytes", "key", "value", "headers")
_WRITTEN: Final = (
    "topic_id long, segment long, part long, path string, first_offset long, end_offset long, size_bytes long, "
    "first_at_ms long, last_at_ms long, checksum long"
)
_FAILURES: Final = (obstore.exceptions.BaseError, OSError)
Key = tuple[int, ...]


def write_objects(records: DataFrame, ledger_url: str, folder: str) -> DataFrame:
    """Return a row for each object that is written when the result is computed.

    ``folder``: relative to ``ledger_url``. ``records``: KEYS and RECORD_COLUMNS, sorted by KEYS and offset, each key in
    one partition.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = obstore.store.from_url(
            ledger_url, retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
        )
        pieces = (piece for batch in batches for piece in _pieces(batch))
        for key, found in groupby(pieces, key=lambda piece: piece[0]):
            rows = pa.Table.from_batches([each for _, each in found]).combine_chunks()
            yield pa.RecordBatch.from_pylist([_write(store, folder, key, rows)])

    for module in (sys.modules[__name__], sys.modules[object_error.__module__], sys.modules[checksum.__module__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return records.mapInArrow(write, _WRITTEN)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Yield adjacent rows of one key."""
    columns = [batch.column(name) for name in KEYS]
    first = 0
    for end in sorted({end for each in columns for end in pc.run_end_encode(each).run_ends.to_pylist()}):
        yield tuple(each[first].as_py() for each in columns), batch.slice(first, end - first)
        first = end


def _write(store: Any, folder: str, key: Key, rows: pa.Table) -> dict[str, Any]:
    """Write one object, read it back, and describe it; raises ObjectError."""
    place = f"{folder}/{'/'.join(f'{name}={value}' for name, value in zip(KEYS, key, strict=True))}"
    offsets = rows.column("offset").to_pylist()
    first, end = offsets[0], offsets[-1] + 1
    if offsets != list(range(first, end)):
        raise ObjectError(f"{place}: its {len(offsets)} offsets from {first} to {end - 1} have holes or occur twice")
    written = pa.BufferOutputStream()
    pq.write_table(rows.select(RECORD_COLUMNS), written, compression="zstd")
    data = written.getvalue().to_pybytes()
    stated = checksum(data)
    path = f"{place}/{stated:08x}.parquet"
    unanswered: Exception | None = None
    try:
        obstore.put(store, path, data)
    except _FAILURES as error:
        unanswered = error  # The store may have lost its answer.
    try:
        stored = checksum(bytes(obstore.get(store, path).bytes()))
    except _FAILURES as error:
        raise object_error(path, unanswered or error) from None
    if stored != stated:
        raise ObjectError(f"{path} was written, and has another checksum when it is read back")
    times = pc.min_max(rows.column("stored_at_ms")).as_py()
    return dict(zip(KEYS, key, strict=True)) | {
        "path": path,
        "first_offset": first,
        "end_offset": end,
        "size_bytes": pc.sum(rows.column("size_bytes")).as_py(),
        "first_at_ms": times["min"],
        "last_at_ms": times["max"],
        "checksum": stated,
    }
