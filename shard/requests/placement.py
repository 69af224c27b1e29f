"""Route the records of a batch: to the active segment of each key's hash, at its next offset.

Pure: applying the returned entry reserves the offsets. The order of the batch is kept.
"""

from typing import Final

from headgate.ledger.chunk import RecordColumns
from headgate.model import entries as e
from headgate.model.hashing import segment_hash
from headgate.model.headers import MAX_HEADER_BYTES, Headers, counted_bytes, wrong_headers
from headgate.protocol import messages as m
from headgate.protocol.batch_digest import batch_digest
from shard.state.topic import Topic

_LARGE_RECORD_BYTES: Final = m.MAX_RECORD_BYTES - MAX_HEADER_BYTES
"""Headers make no smaller record too large."""


def route_batch(topic: Topic, batch: m.ProduceBatch) -> tuple[e.RecordsStored, RecordColumns]:
    """Return the entry for ``batch``, and its records with the segment and offset of each."""
    route, tails, layout = topic.layout.route, topic.tails, topic.layout.segments
    next_offsets: dict[int, int] = {}
    segments: list[int] = []
    offsets: list[int] = []
    keys = [record.key for record in batch.records]
    values = [record.value for record in batch.records]
    headers: list[Headers] = [()] * len(keys)
    for index, each in batch.headers_by_record().items():
        headers[index] = each
    for key in keys:
        segment = route(segment_hash(key))
        offset = next_offsets.get(segment)
        if offset is None:
            offset = tails[segment].next_offset
        next_offsets[segment] = offset + 1
        segments.append(segment)
        offsets.append(offset)
    entry = e.RecordsStored(
        topic_id=topic.topic_id,
        count=len(keys),
        placements=[
            e.Placement(
                segment,
                layout[segment].first_hash,
                layout[segment].last_hash,
                tails[segment].next_offset,
                next_offset - tails[segment].next_offset,
            )
            for segment, next_offset in sorted(next_offsets.items())
        ],
        size_bytes=sum(map(len, keys))
        + sum(map(len, values))
        + sum([len(each.name.encode()) + len(each.value) for each in batch.headers]),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence or 0,
        source_position=batch.source_position,
        digest=b"" if batch.producer_id is None else batch_digest(batch),
    )
    records = RecordColumns(
        topic_id=[topic.topic_id] * len(keys),
        segment=segments,
        offset=offsets,
        timestamp_ms=[record.timestamp_ms for record in batch.records],
        key=keys,
        value=values,
        headers=headers,
    )
    return entry, records


def refused_record(batch: m.ProduceBatch) -> str | None:
    """Return which record of ``batch`` is too large, has no key, or has headers that it may not have; or None."""
    headers = batch.headers_by_record()
    if headers and (last := max(headers)) >= len(batch.records):
        return f"the batch has {len(batch.records)} records, and a header for record {last}"
    for index, record in enumerate(batch.records):
        size = len(record.key) + len(record.value)
        if headers and (own := headers.get(index)):
            if (wrong := wrong_headers(own, reserved=batch.reserved_headers)) is not None:
                return f"record {index} has {wrong}"
            size += counted_bytes(own) if size > _LARGE_RECORD_BYTES else 0
        if size > m.MAX_RECORD_BYTES:
            return f"record {index} has {size} bytes of key, value and headers; the limit is {m.MAX_RECORD_BYTES}"
        if not record.key:
            return f"record {index} has an empty key: records without a key would all have the same one"
    return None
