"""Compact chunks of shard 0 and delete them, as a cluster does hours after they were written."""

from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.ledger.checksum import checksum
from headgate.ledger.compacted import CompactedObject, Manifest, compacted_folder, create_manifest
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_path
from headgate.storage.object_store import Store

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


async def compact(store: Store, folder: Path, first: int, last: int) -> None:
    """Move the records of chunks ``first`` to ``last`` into one object per segment."""
    ledger, segments = Ledger(store, 0), defaultdict[tuple[int, int], list[dict[str, Any]]](list)
    for number in range(first, last + 1):
        found = (await ledger.read_records(number))[1]
        names = "topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers"
        for row in zip(*(getattr(found, name) for name in names), strict=True):
            fields = dict(zip(names, row, strict=True))
            fields["headers"] = [{"name": name, "value": value} for name, value in fields["headers"]]
            segments[row[0], row[1]].append({**fields, "stored_at_ms": 1, "size_bytes": len(row[4]) + len(row[5])})
    objects, place = [], f"{compacted_folder(0)}/{first:012d}-{last:012d}-1-a"
    for (topic_id, segment), rows in sorted(segments.items()):
        columns: dict[str, Any] = {
            name: [row[name] for row in rows] for name in ("offset", "timestamp_ms", "stored_at_ms", "size_bytes")
        }
        columns |= {name: pa.array([row[name] for row in rows], pa.binary()) for name in ("key", "value")}
        columns["headers"] = pa.array([row["headers"] for row in rows], HEADERS)
        pq.write_table(pa.table(columns), out := BytesIO(), compression="zstd")
        path = f"{place}/topic_id={topic_id}/segment={segment}/x.parquet"
        await store.create(path, out.getvalue())
        objects.append(
            CompactedObject(
                path=path,
                topic_id=topic_id,
                segment=segment,
                first_offset=rows[0]["offset"],
                end_offset=rows[-1]["offset"] + 1,
                size_bytes=sum(row["size_bytes"] for row in rows),
                first_at_ms=1,
                last_at_ms=1,
                checksum=checksum(out.getvalue()),
            )
        )
    await store.create(facts := f"{place}/facts.parquet", b"")
    manifest = Manifest(
        ledger_id=await read_ledger_id(store, str(folder)) or "",
        shard=0,
        first=first,
        last=last,
        level=0,
        written_at_ms=1,
        last_at_ms=1,
        facts=facts,
        facts_checksum=checksum(b""),
        objects=objects,
    )
    await create_manifest(store, manifest)
    for number in range(first, last + 1):
        await store.delete(chunk_path(0, number))
