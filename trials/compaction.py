"""Compaction without Spark: chunks in, compacted objects and one manifest out."""

from collections import defaultdict
from typing import Any

from controller.chunk_writer import builder
from controller.chunk_writer.builder import BYTE_ARRAY, HEADERS, INT64, Node, Page, ParquetWriter
from headgate.ledger.checksum import checksum
from headgate.ledger.compacted import CompactedObject, Manifest, compacted_folder, create_manifest
from headgate.ledger.identity import read_ledger_id
from headgate.ledger.ledger import Ledger
from headgate.model.headers import header_bytes

_INTEGERS, _BLOBS = ("offset", "timestamp_ms", "stored_at_ms", "size_bytes"), ("key", "value")
_NAMES = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")
_WRITER = ParquetWriter([*(Node(n, INT64) for n in _INTEGERS), *(Node(n, BYTE_ARRAY) for n in _BLOBS), HEADERS])


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
    at_ms = term_id = 0
    for number in range(first, last + 1):
        header, found = await ledger.read_records(number)
        at_ms, term_id = header.at_ms, header.term_id
        for values in zip(*(getattr(found, name) for name in _NAMES), strict=True):
            row = dict(zip(_NAMES, values, strict=True))
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
        last_term_id=term_id,
        facts=facts,
        facts_checksum=checksum(b""),
        objects=objects,
    )


async def _create_object(
    ledger: Ledger, path: str, topic_id: int, segment: int, records: list[dict[str, Any]]
) -> CompactedObject:
    columns = [(builder.integers, name) for name in _INTEGERS] + [(builder.blobs, name) for name in _BLOBS]
    rows, present = len(records), builder.levels((1, len(records)))
    pages = [Page(rows, present, [encode([row[name] for row in records])]) for encode, name in columns]
    pages += builder.header_pages(0, [row["headers"] for row in records])
    parts, footer = _WRITER.write(pages, rows, {})
    data = b"".join((*parts, footer))
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
