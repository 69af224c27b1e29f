"""Records are routed to segments and offsets."""

from headgate.model import entries as e
from headgate.model.hashing import segment_hash
from headgate.protocol import messages as m
from shard.requests.placement import refused_record, route_batch
from shard.state.shard_state import ShardState
from shard.state.topic import Topic


def two_segments() -> Topic:
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="orders", segments=2, token="t")], chunk=1, at_ms=0)
    return state.topics["orders"]


def test_records_are_routed_by_hash_in_the_order_of_the_batch() -> None:
    keys = [b"k%d" % n for n in range(50)]
    batch = m.ProduceBatch(topic="orders", records=[m.Record(key, b"v" * 3, 7) for key in keys])
    topic = two_segments()
    topic.tails[1].next_offset = 100

    entry, columns = route_batch(topic, batch)

    expected = [0 if segment_hash(key) < 0x8000 else 1 for key in keys]
    assert expected == columns.segment
    assert keys == columns.key
    for segment, start in ((0, 0), (1, 100)):
        offsets = [offset for offset, where in zip(columns.offset, columns.segment, strict=True) if where == segment]
        assert list(range(start, start + len(offsets))) == offsets
    assert [(0, 0), (1, 100)] == [(placement.segment, placement.first_offset) for placement in entry.placements]
    assert 50 == sum(placement.count for placement in entry.placements)


def test_the_reason_names_an_oversized_record_its_size_and_the_limit() -> None:
    batch = m.ProduceBatch(
        topic="orders",
        records=[m.Record(b"k", b"v", 0), m.Record(b"k", b"v" * m.MAX_RECORD_BYTES, 0)],
    )

    assert f"record 1 has {m.MAX_RECORD_BYTES + 1} bytes" in (refused_record(batch) or "")
    largest = m.Record(b"k", b"v" * (m.MAX_RECORD_BYTES - 1), 0)
    assert refused_record(m.ProduceBatch(topic="t", records=[largest, m.Record(b"k", b"", 0)])) is None


def test_a_record_without_a_key_is_refused_as_from_a_device() -> None:
    """All records whose key is missing by mistake would have one key, in one segment."""
    batch = m.ProduceBatch(topic="t", records=[m.Record(b"k", b"", 0), m.Record(b"", b"v", 0)])

    assert "record 1 has an empty key" in (refused_record(batch) or "")
