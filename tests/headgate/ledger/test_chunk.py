"""Chunks: what is written comes back, and what is not a chunk is rejected by name."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.errors import ChunkError
from headgate.ledger import chunk
from headgate.model import entries as e
from headgate.model.layout import Layout

COLUMNS = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value")


def built() -> tuple[chunk.ChunkBuilder, bytes]:
    builder = chunk.ChunkBuilder()
    builder.add(e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t"))
    builder.add(e.SegmentSplit(topic_id=1, segment=0, end_offset=2, token="u"), Layout.initial(1, 0).split(0, 2, 0))
    for offset in range(2):
        for column, value in zip(
            COLUMNS,
            (1, 0, offset, 1000 + offset, b"k", b"v%d" % offset),
            strict=True,
        ):
            getattr(builder.records, column).append(value)
    return builder, builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def test_entries_and_records_come_back() -> None:
    """Both kinds of reader find all of theirs, and nothing of the other's."""
    builder, data = built()

    decoded = chunk.decode(data, shard=3, number=7)
    records = chunk.decode_records(data, shard=3, number=7)

    assert tuple(builder.entries) == decoded.entries
    assert (2, 99) == (decoded.header.leader_epoch, decoded.header.at_ms)
    assert [b"v0", b"v1"] == records.column("value").to_pylist()
    assert [0, 1] == records.column("offset").to_pylist()


def test_large_chunks_read_like_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two libraries write them: same schema, same rows, same metadata, for entries, facts and records together."""
    tables, metadata = [], []
    for large_bytes in (1, 2**30):
        monkeypatch.setattr(chunk, "PYARROW_THRESHOLD_BYTES", large_bytes)
        _, data = built()
        file = pq.ParquetFile(io.BytesIO(data))
        tables.append(file.read())
        metadata.append(file.metadata.metadata)
        assert file.metadata.created_by.startswith("parquet-cpp" if large_bytes == 1 else "parquet-rs")
    assert tables[0] == tables[1]
    assert tables[0].schema == chunk.SCHEMA
    assert metadata[0] == metadata[1]


def test_a_batch_of_one_record_is_written_plainly_and_is_no_larger_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = one_record()
    monkeypatch.setattr(chunk, "UNCOMPRESSED_MAX_ROWS", 0)
    packed = one_record()

    assert _compressions(plain) == {"UNCOMPRESSED"}
    assert _compressions(packed) == {"SNAPPY"}
    assert pq.read_table(io.BytesIO(plain)) == pq.read_table(io.BytesIO(packed))
    assert len(plain) <= len(packed)
    assert _compressions(built()[1]) == {"SNAPPY"}


def one_record() -> bytes:
    builder = chunk.ChunkBuilder()
    builder.add(e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 9, 0, 1)], size_bytes=101))
    for column, value in zip(COLUMNS, (1, 0, 0, 5, b"k", random.Random(1).randbytes(100)), strict=True):
        getattr(builder.records, column).append(value)
    return builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)


def test_a_large_record_or_entry_is_compressed_in_a_chunk_of_a_few_rows_too() -> None:
    record, entry = chunk.ChunkBuilder(), chunk.ChunkBuilder()
    for column, value in zip(COLUMNS, (1, 0, 0, 5, b"k", b"v" * chunk.UNCOMPRESSED_MAX_BYTES), strict=True):
        getattr(record.records, column).append(value)
    entry.add(e.TermStarted(leader_epoch=1, instance="i" * chunk.UNCOMPRESSED_MAX_BYTES))

    for builder in (record, entry):
        assert _compressions(builder.encode(shard=3, number=7, leader_epoch=2, at_ms=99)) == {"SNAPPY"}


def _compressions(data: bytes) -> set[str]:
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    return {group.column(number).compression for number in range(group.num_columns)}


def test_a_split_states_what_was_sealed_and_created() -> None:
    """The Spark job never reads a body: everything it counts by is a fact."""
    _, data = built()
    rows = [row for row in pq.read_table(io.BytesIO(data)).to_pylist() if row["fact"] not in (None, "record")]

    assert [("created", 0, None), ("sealed", 0, 2), ("created", 1, None), ("created", 2, None)] == [
        (row["fact"], row["segment"], row["end_offset"]) for row in rows
    ]


def test_every_entry_survives_its_encoding() -> None:
    """One of each kind, with defaults left out."""
    kinds = [
        e.TermStarted(leader_epoch=1, instance="a"),
        e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 9, 0, 1)], size_bytes=3),
        e.RecordsAcknowledged(
            topic_id=1, subscription_id=2, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 1)], count=1
        ),
        e.SubscriptionCreated(
            topic_id=1, subscription_id=2, subscription="s", subscription_type=None, order="strict", positions={0: 4}
        ),
        e.SegmentsMerged(topic_id=1, segments=(1, 2), end_offsets=(3, 4), token="t"),
    ]

    assert kinds == [e.decode_entry(e.encode_entry(entry)) for entry in kinds]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[: len(data) // 2], "not a readable Parquet object"),
        (lambda _: b"", "not a readable Parquet object"),
        (lambda _: b"PAR1 and nothing else", "not a readable Parquet object"),
    ],
    ids=["cut short", "empty", "foreign"],
)
def test_what_is_not_a_chunk_is_refused_by_name(spoil, said: str) -> None:
    """The error says which object it was."""
    with pytest.raises(ChunkError, match=f"chunk 7 of shard 3.*{said}"):
        chunk.decode(spoil(built()[1]), shard=3, number=7)


def test_a_chunk_under_another_number_is_refused() -> None:
    """A copied object must not be taken for another commit."""
    with pytest.raises(ChunkError, match="says that it is chunk 7 of shard 3"):
        chunk.decode(built()[1], shard=3, number=8)


def test_parquet_of_somebody_else_is_refused() -> None:
    """Readable, but not ours."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)

    with pytest.raises(ChunkError, match="not one of headgate's"):
        chunk.decode(sink.getvalue(), shard=0, number=1)


def test_an_entry_of_a_later_version_is_refused() -> None:
    """Skipping what we cannot read would be losing it."""
    builder = chunk.ChunkBuilder()
    builder.entries.append(e.TermStarted(leader_epoch=1, instance="a"))
    original = e.encode_entry(builder.entries[0])
    data = builder.encode(shard=0, number=1, leader_epoch=1, at_ms=0)
    table = pq.read_table(io.BytesIO(data))
    table = table.set_column(
        table.schema.get_field_index("body"), "body", pa.array([original.replace(b"term_started", b"term_stopped")])
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)

    with pytest.raises(ChunkError, match="an entry that this version cannot read"):
        chunk.decode(sink.getvalue(), shard=0, number=1)
