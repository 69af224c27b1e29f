"""Write compacted objects on Spark's workers, without a jar: each of one segment, sorted by offset.

A task reads adjacent chunks, or the objects of some segments, in the order in which they were written. So the records
of a segment arrive in offset order, and nothing is sorted or shuffled. It aggregates the facts of chunks meanwhile.

1. A segment's records become an object when they have ``object_bytes``, or at the end. Those of the largest segment do
   so earlier when all that wait have `WAITING_BYTES`.
2. Each object is read back before it is reported, also one whose write has failed: what is stored decides. Its name
   contains its checksum, so a task that is repeated, or runs twice, writes the same object again.

Workers need what `drain.spark.object_reader` says.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final

import numpy as np
import obstore
import obstore.exceptions
import obstore.store
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from drain.backlog.aggregates import FACTS, SCHEMA, aggregate, contributions
from drain.spark.object_reader import ObjectError, object_error, read_objects
from headgate.ledger.checksum import checksum

RECORD_COLUMNS: Final = ("offset", "timestamp_ms", "stored_at_ms", "size_bytes", "key", "value", "headers")
_RECORDS: Final = pa.schema(
    [(name, pa.int64()) for name in ("topic_id", "segment", *RECORD_COLUMNS[:4])]
    + [(name, pa.binary()) for name in ("key", "value")]
    + [("headers", pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()})))]
)
_FACTS_AND_RECORDS: Final = pa.unify_schemas([FACTS, _RECORDS])
_OBJECT_NUMBERS: Final = ("first_offset", "end_offset", "first_at_ms", "last_at_ms", "checksum")
WRITTEN: Final = pa.schema([*SCHEMA, ("path", pa.string()), *((name, pa.int64()) for name in _OBJECT_NUMBERS)])
"""What tasks return: a row with a path describes an object, and each other row is an aggregate of facts."""
WAITING_BYTES: Final = 128 * 1024 * 1024
_FAILURES: Final = (obstore.exceptions.BaseError, OSError)
Key = tuple[int, int]
"""Topic id and segment."""


def write_compacted(
    ledger_url: str,
    folder: str,
    inputs: Sequence[Sequence[tuple[str, int | None]]],
    *,
    alive: Collection[Key],
    object_bytes: int,
    waiting_bytes: int = WAITING_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Write the records of the segments ``alive`` in ``inputs``; yield rows as `WRITTEN` says. Raises ObjectError.

    ``inputs``: paths and checksums. All are chunks, whose checksum is None, or none is. ``folder``: that of the run,
    relative to ``ledger_url``.
    """
    store = obstore.store.from_url(ledger_url, retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)})
    objects = [*chain.from_iterable(inputs)]
    of_chunks = all(expected is None for _, expected in objects)
    waiting: defaultdict[Key, list[pa.RecordBatch]] = defaultdict(list)
    parts: list[pa.Table] = []

    def written(key: Key) -> pa.RecordBatch:
        rows = pa.Table.from_batches(waiting.pop(key)).combine_chunks()
        return pa.RecordBatch.from_pylist([write_object(store, folder, key, rows)], WRITTEN)

    for batch in read_objects(ledger_url, objects, _FACTS_AND_RECORDS if of_chunks else _RECORDS):
        records = batch
        if of_chunks:
            facts = pa.Table.from_batches([batch]).select(FACTS.names)
            parts.append(aggregate(contributions(facts), in_order=True))
            records = batch.filter(pc.equal(batch.column("fact"), "record"))
        for key, rows in _by_segment(records.select(_RECORDS.names), alive):
            piece = rows
            while len(piece):
                taken = _rows_to(object_bytes - sum(map(_size_bytes, waiting[key])), piece)
                waiting[key].append(piece.slice(0, taken))
                if sum(map(_size_bytes, waiting[key])) >= object_bytes:
                    yield written(key)
                piece = piece.slice(taken)
        memory = {key: sum(each.nbytes for each in pieces) for key, pieces in waiting.items()}
        while sum(memory.values()) > waiting_bytes:
            memory.pop(largest := max(memory, key=memory.__getitem__))
            yield written(largest)
    yield from map(written, sorted(waiting))
    if parts:
        counted = aggregate(pa.concat_tables(parts))
        yield from pa.concat_tables([WRITTEN.empty_table(), counted], promote_options="default").to_batches()


def _size_bytes(records: pa.RecordBatch) -> int:
    return int(pc.sum(records.column("size_bytes")).as_py())


def _rows_to(size_bytes: int, records: pa.RecordBatch) -> int:
    """Return how many of ``records`` have ``size_bytes`` together, or more; all if there are not so many."""
    ends = np.cumsum(records.column("size_bytes").to_numpy())
    return min(len(records), int(np.searchsorted(ends, size_bytes)) + 1)


def _by_segment(records: pa.RecordBatch, alive: Collection[Key]) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """Yield the records of each segment, in order, as copies: a part of ``records`` would keep all of it in memory."""
    topics, segments = (records.column(name).to_numpy() for name in ("topic_id", "segment"))
    order = np.lexsort((segments, topics))
    changes = np.flatnonzero((np.diff(topics[order]) != 0) | (np.diff(segments[order]) != 0)) + 1
    for rows in np.split(order, changes):
        if len(rows) and (key := (int(topics[rows[0]]), int(segments[rows[0]]))) in alive:
            yield key, records.take(pa.array(rows))


def write_object(store: Any, folder: str, key: Key, rows: pa.Table) -> dict[str, Any]:
    """Write the records ``rows`` of one segment, read them back, and return the row for them; raises ObjectError."""
    place = f"{folder}/topic_id={key[0]}/segment={key[1]}"
    offsets = rows.column("offset").to_pylist()
    first, end = offsets[0], offsets[-1] + 1
    if offsets != list(range(first, end)):
        raise ObjectError(f"{place}: its {len(offsets)} offsets from {first} to {end - 1} have holes or occur twice")
    written = pa.BufferOutputStream()
    pq.write_table(rows.select(RECORD_COLUMNS), written, compression="zstd")
    data = written.getvalue().to_pybytes()
    stated = checksum(data)
    path = f"{place}/{first:012d}-{stated:08x}.parquet"
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
    return {
        "topic_id": key[0],
        "segment": key[1],
        "path": path,
        "first_offset": first,
        "end_offset": end,
        "size_bytes": pc.sum(rows.column("size_bytes")).as_py(),
        "first_at_ms": times["min"],
        "last_at_ms": times["max"],
        "checksum": stated,
    }
