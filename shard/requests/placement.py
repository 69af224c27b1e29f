"""Route the records of a batch: to the active segment of each key's hash, at its next offset.

Pure: applying the returned entry reserves the offsets. Inside a segment the order of the batch is kept.
"""

from collections import Counter
from typing import Final

from headgate.ledger.chunk import RecordColumns
from headgate.model import entries as e
from headgate.model.hashing import segment_hashes
from headgate.model.headers import MAX_HEADER_BYTES, counted_bytes, wrong_headers
from headgate.protocol.codec import batch_digest
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.protocol.requests import ProduceBatch
from shard.state.topic import Topic

_LARGE_RECORD_BYTES: Final = MAX_RECORD_BYTES - MAX_HEADER_BYTES
"""Headers make no smaller record too large."""


def route_batch(topic: Topic, batch: ProduceBatch) -> tuple[e.RecordsStored, RecordColumns]:
    """Return the entry for ``batch``, and its records segment by segment, with the offset of each."""
    keys = [record.key for record in batch.records]
    segments = topic.layout.route(segment_hashes(keys))
    order = sorted(range(len(segments)), key=segments.__getitem__)
    segments = list(map(segments.__getitem__, order))
    records, headers = list(map(batch.records.__getitem__, order)), batch.headers_by_record()
    tails, described = topic.tails, topic.layout.segments
    placements = [
        e.Placement(each, (known := described[each]).first_hash, known.last_hash, tails[each].next_offset, count)
        for each, count in Counter(segments).items()
    ]
    found = RecordColumns(
        topic_id=[topic.topic_id] * len(order),
        segment=segments,
        offset=[offset for each in placements for offset in range(each.first_offset, each.first_offset + each.count)],
        timestamp_ms=[record.timestamp_ms for record in records],
        key=list(map(keys.__getitem__, order)),
        value=[record.value for record in records],
        headers=[headers.get(index, ()) for index in order] if headers else [()] * len(order),
    )
    entry = e.RecordsStored(
        topic_id=topic.topic_id,
        count=len(segments),
        placements=placements,
        size_bytes=sum(map(len, found.key))
        + sum(map(len, found.value))
        + sum([len(each.name.encode()) + len(each.value) for each in batch.headers]),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        sequence=batch.sequence or 0,
        source_position=batch.source_position,
        digest=b"" if batch.producer_id is None else batch_digest(batch),
    )
    return entry, found


def refused_record(batch: ProduceBatch) -> str | None:
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
        if size > MAX_RECORD_BYTES:
            return f"record {index} has {size} bytes of key, value and headers; the limit is {MAX_RECORD_BYTES}"
        if not record.key:
            return f"record {index} has an empty key: records without a key would all have the same one"
    return None
