"""Compaction without Spark: chunks in, compacted objects and one manifest out."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

import pyarrow as pa
from arro3.io import write_parquet

from controller.chunk_writer.arrow_columns import PaddedColumns
from controller.chunk_writer.builder import HEADERS
from headgate.ledger.checksum import checksum
from headgate.ledger.compacted import CompactedObject, Manifest, compacted_folder, create_manifest
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.model.headers import header_bytes
from tests.support.samples.record_rows import record_rows

_TYPES = {
    "offset": pa.int64(),
    "timestamp_ms": pa.int64(),
    "stored_at_ms": pa.int64(),
    "size_bytes": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}


async def compact(
    ledger: Ledger, first: int, last: int, *, written_at_ms: int = 0, run: str = "a", parts: int = 1
) -> Manifest:
    """Compact chunks ``first`` to ``last`` into at most ``parts`` objects per segment, and create the manifest."""
    manifest = await compacted_objects(ledger, first, last, written_at_ms=written_at_ms, run=run, parts=parts)
    await create_manifest(ledger.store, manifest)
    return manifest


async def compacted_objects(
    ledger: Ledger, first: int, last: int, *, written_at_ms: int = 0, run: str = "a", parts: int = 1
) -> Manifest:
    """Do the same without the manifest, which is returned."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    at_ms = 0
    for number in range(first, last + 1):
        at_ms = (await ledger.header(number)).at_ms
        for row in record_rows((await ledger.read_records(number))[1]):
            size = len(row["key"]) + len(row["value"]) + header_bytes(row["headers"])
            rows[row["topic_id"], row["segment"]].append(row | {"stored_at_ms": at_ms, "size_bytes": size})
    folder = f"{compacted_folder(ledger.shard)}/{first:012d}-{last:012d}-{written_at_ms}-{run}"
    objects = []
    for (topic_id, segment), records in sorted(rows.items()):
        for part in range(parts):
            low, high = (len(records) * bound // parts for bound in (part, part + 1))
            if low < high:
                path = f"{folder}/topic_id={topic_id}/segment={segment}/part={part}/x.parquet"
                objects.append(await _create_object(ledger, path, topic_id, segment, records[low:high]))
    facts = f"{folder}/facts.parquet"
    await ledger.store.create(facts, b"")
    return Manifest(
        ledger_id=await read_ledger_id(ledger.store, "the ledger") or "",
        shard=ledger.shard,
        first=first,
        last=last,
        level=0,
        written_at_ms=written_at_ms,
        last_at_ms=at_ms,
        facts=facts,
        facts_checksum=checksum(b""),
        objects=objects,
    )


async def _create_object(
    ledger: Ledger, path: str, topic_id: int, segment: int, records: list[dict[str, Any]]
) -> CompactedObject:
    # As chunks are written: `pyarrow.array` would import pandas, and its writer takes three times as long for some rows.
    columns = PaddedColumns(len(records), 0, len(records))
    arrays = [
        columns.integers([row[name] for row in records])
        if kind == pa.int64()
        else columns.headers([row[name] for row in records], kind)
        if kind == HEADERS
        else columns.blobs([row[name] for row in records], kind)
        for name, kind in _TYPES.items()
    ]
    sink = io.BytesIO()
    batch = pa.RecordBatch.from_arrays(arrays, names=list(_TYPES))
    write_parquet(batch, sink, compression="uncompressed", dictionary_enabled=False, skip_arrow_metadata=True)
    data = sink.getvalue()
    await ledger.store.create(path, data)
    return CompactedObject(
        path=path,
        topic_id=topic_id,
        segment=segment,
        first_offset=records[0]["offset"],
        end_offset=records[-1]["offset"] + 1,
        size_bytes=sum(row["size_bytes"] for row in records),
        first_at_ms=records[0]["stored_at_ms"],
        last_at_ms=records[-1]["stored_at_ms"],
        checksum=checksum(data),
    )
