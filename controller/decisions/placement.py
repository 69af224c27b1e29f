"""Where the records of an accepted batch go: to the active segment of the key's hash, at that segment's next offset.

Pure: a topic and records in, an entry and columns out. Nothing is reserved or counted here; folding the entry does
that. The keyed order of a batch is kept because records are placed in the order of the batch.
"""

from __future__ import annotations

from controller.state.shard_state import Topic
from headgate.ledger.record_columns import RecordColumns
from headgate.model import entries as e
from headgate.model.hashing import segment_hash
from headgate.protocol import messages as m


def route_batch(topic: Topic, batch: m.ProduceBatch, columns: RecordColumns) -> e.RecordsStored:
    """Append the records of ``batch`` to ``columns`` and return the entry that states where they are."""
    route, tails = topic.layout.route, topic.tails
    next_offsets: dict[int, int] = {}
    size_bytes = 0
    for record in batch.records:
        segment = route(segment_hash(record.key))
        offset = next_offsets.get(segment)
        if offset is None:
            offset = tails[segment].next_offset
        next_offsets[segment] = offset + 1
        columns.segment.append(segment)
        columns.offset.append(offset)
        columns.timestamp_ms.append(record.timestamp_ms)
        columns.key.append(record.key)
        columns.value.append(record.value)
        size_bytes += len(record.key) + len(record.value)
    columns.topic_id.extend([topic.topic_id] * len(batch.records))
    segments = topic.layout.segments
    return e.RecordsStored(
        topic_id=topic.topic_id,
        count=len(batch.records),
        placements=[
            e.Placement(
                segment,
                segments[segment].first_hash,
                segments[segment].last_hash,
                tails[segment].next_offset,
                next_offset - tails[segment].next_offset,
            )
            for segment, next_offset in sorted(next_offsets.items())
        ],
        size_bytes=size_bytes,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence,
        source_position=batch.source_position,
    )


def oversized_reason(batch: m.ProduceBatch) -> str | None:
    """Return why a record of ``batch`` is too large, or None."""
    for index, record in enumerate(batch.records):
        size = len(record.key) + len(record.value)
        if size > m.MAX_RECORD_BYTES:
            return f"record {index} has {size} bytes of key and value; the limit is {m.MAX_RECORD_BYTES}"
    return None
