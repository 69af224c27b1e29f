"""A small chunk with entries, facts and records; chunks of entries only; and the records of a chunk as rows."""

from typing import Any

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.chunk import Chunk, ChunkHeader, RecordColumns
from headgate.model import entries as e
from headgate.model.headers import Headers
from headgate.model.layout import Layout

COLUMNS = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")


def add_record(
    builder: ChunkBuilder,
    offset: int,
    timestamp_ms: int,
    value: bytes,
    headers: Headers = (),
    *,
    topic_id: int = 1,
    segment: int = 0,
    key: bytes = b"k",
) -> None:
    row = topic_id, segment, offset, timestamp_ms, key, value, headers
    for column, each in zip(COLUMNS, row, strict=True):
        getattr(builder.records, column).append(each)


def small_chunk(*, headers: Headers = (), **limits: int) -> tuple[ChunkBuilder, bytes]:
    """Return chunk 7 of shard 3 as it was built and encoded: a topic, its first split, and two records.

    The second record has ``headers``. Records are in columns only, unless ``limits`` says otherwise.
    """
    builder = ChunkBuilder(**{"packed_max_bytes": 0} | limits)
    builder.add(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"))
    builder.add(e.SegmentSplit(topic_id=1, segment=0, end_offset=2, token="u"), Layout.initial(1, 0).split(0, 2, 0))
    for offset in range(2):
        add_record(builder, offset, 1000 + offset, b"v%d" % offset, headers if offset else ())
    return builder, builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def ledger(*chunks: list[e.AnyEntry]) -> list[Chunk]:
    """Return the first chunks of shard 0, one a second."""
    return [
        Chunk(
            ChunkHeader(format=1, shard=0, number=n, leader_epoch=1, at_ms=n * 1000, entries=len(entries), records=0),
            tuple(entries),
        )
        for n, entries in enumerate(chunks, start=1)
    ]


def record_rows(records: RecordColumns) -> list[dict[str, Any]]:
    """Return one dictionary for each record, column → value."""
    columns = [getattr(records, name) for name in COLUMNS]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]
