"""Records are routed to segments and offsets."""

import msgspec
import pytest

from headgate.model import entries as e
from headgate.model.hashing import segment_hash
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from headgate.protocol.requests import ProduceBatch, Record, RecordHeader
from shard.requests.placement import refused_record, route_batch
from shard.state.shard_state import ShardState
from shard.state.topic import Topic


def two_segments() -> Topic:
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="orders", segments=2, token="t")], chunk=1, at_ms=0)
    return state.topics["orders"]


def test_records_are_routed_by_hash_and_keep_their_order_in_each_segment() -> None:
    """Those of a segment follow each other, so a reader takes them as a whole."""
    keys = [b"k%d" % n for n in range(50)]
    batch = ProduceBatch(topic="orders", records=[Record(key, b"v" * 3, 7) for key in keys])
    topic = two_segments()
    topic.tails[1].next_offset = 100

    entry, columns = route_batch(topic, batch)

    low, high = ([key for key in keys if (segment_hash(key) < 0x8000) is low] for low in (True, False))
    assert [0] * len(low) + [1] * len(high) == columns.segment
    assert low + high == columns.key
    assert [*range(len(low)), *range(100, 100 + len(high))] == columns.offset
    assert [(0, 0), (1, 100)] == [(placement.segment, placement.first_offset) for placement in entry.placements]
    assert 50 == sum(placement.count for placement in entry.placements)


def with_headers(*headers: tuple[str, bytes], key: bytes = b"k", value: bytes = b"v", **fields: bool) -> ProduceBatch:
    """Return a batch of two records; the second one has the headers."""
    records = [Record(b"k", b"", 0), Record(key, value, 0)]
    return ProduceBatch(
        topic="orders", records=records, headers=[RecordHeader(1, *header) for header in headers], **fields
    )


@pytest.mark.parametrize(
    ("batch", "wrong"),
    [
        (with_headers(("a", b"1"), value=bytes(MAX_RECORD_BYTES - 3)), None),
        (
            with_headers(("a", b"1"), value=bytes(MAX_RECORD_BYTES - 2)),
            f"{MAX_RECORD_BYTES + 1} bytes of key, value",
        ),
        (with_headers(key=b""), "an empty key"),
        (with_headers(("a", bytes(16 * 1024))), "headers of 16385 bytes"),
        (with_headers(*[("a", b"")] * 65), "65 headers; the limit is 64"),
        (with_headers(("", b"")), "a header without a name"),
        (with_headers(("headgate-reason", b"")), "the header 'headgate-reason'"),
        (with_headers(("headgate-reason", b""), reserved_headers=True), None),
    ],
    ids=[
        *("as large as possible", "too large", "no key", "headers too large", "too many headers", "no name"),
        *("a name of headgate's", "a copy with one"),
    ],
)
def test_the_reason_names_the_record_and_what_is_wrong(batch: ProduceBatch, wrong: str | None) -> None:
    """All records whose key is missing by mistake would have one key, in one segment."""
    found = refused_record(batch)

    assert found is None if wrong is None else (found or "").startswith(f"record 1 has {wrong}")


def test_a_header_of_no_record_is_refused() -> None:
    batch = msgspec.structs.replace(with_headers(), headers=[RecordHeader(2, "a", b"")])

    assert refused_record(batch) == "the batch has 2 records, and a header for record 2"


def test_headers_are_routed_with_their_record() -> None:
    batch = msgspec.structs.replace(
        with_headers(("a", b"1"), ("a", b"")),
        headers=[RecordHeader(1, "a", b"1"), RecordHeader(0, "b", b""), RecordHeader(1, "a", b"")],
    )
    entry, columns = route_batch(two_segments(), batch)

    assert [(("b", b""),), (("a", b"1"), ("a", b""))] == columns.headers
    assert entry.size_bytes == len(b"k" + b"kv" + b"b" + b"a1" + b"a")
