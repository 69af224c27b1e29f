"""Columns read with arro3 equal the values that pyarrow wrote, in each encoding that writers use."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arro3.core import DataType
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LedgerError
from headgate.ledger.chunk import facts_of
from headgate.ledger.parquet_columns import Columns, read_columns, read_first_rows
from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, Layout

INTEGERS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(INTEGERS, st.binary(max_size=30)), max_size=60)
WRITERS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4"]),
        "use_dictionary": st.booleans(),
        "row_group_size": st.integers(1, 70),
        "data_page_size": st.sampled_from([1, 1 << 20]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
    }
)


def parquet(columns: dict[str, pa.Array], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def written(rows: list[tuple[int, bytes]], **options: Any) -> bytes:
    numbers, contents = [row[0] for row in rows], [row[1] for row in rows]
    return parquet({"number": pa.array(numbers, pa.int64()), "content": pa.array(contents, pa.binary())}, **options)


def rows_of(columns: Columns) -> list[tuple[int, bytes]]:
    return list(zip(columns.integers("number"), columns.blobs("content"), strict=True))


@given(ROWS, WRITERS)
def test_any_rows_are_read_as_they_were_written(rows: list[tuple[int, bytes]], options: dict[str, Any]) -> None:
    assert rows == rows_of(read_columns(written(rows, **options), "x"))


@given(ROWS, st.integers(0, 60), st.integers(0, 60), WRITERS)
def test_a_slice_has_the_rows_that_a_list_would_have(rows, first, count, options):
    first = min(first, len(rows))
    found = read_columns(written(rows, **options), "x").slice(first, count)

    assert rows[first : first + count] == rows_of(found)
    assert len(rows[first : first + count]) == len(found)


def test_an_instant_that_libraries_do_not_know_is_null_and_the_others_are_read() -> None:
    at_ms = [0, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1]
    instants = read_columns(parquet({"at": pa.array(at_ms)}), "x").instants("at", DataType.timestamp("ms", tz="UTC"))

    found = pa.array(instants).cast(pa.timestamp("us", "UTC"))  # As Spark and DuckDB do.
    assert [0, 253_402_300_799_999_000, None, None] == found.cast(pa.int64()).to_pylist()


@given(ROWS, st.integers(1, 70))
def test_the_first_rows(rows: list[tuple[int, bytes]], count: int) -> None:
    assert rows[:count] == rows_of(read_first_rows(written(rows), "x", count))


def test_rows_of_several_batches_are_concatenated() -> None:
    rows = [(number, b"%d" % number) for number in range(10)]

    assert rows == rows_of(read_columns(written(rows), "x", batch_rows=3))


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array([1], pa.int32()), "a column a with nulls, or of another type"),
        (pa.array(["text"]), "a column a with nulls, or of another type"),
        (pa.array([1, None], pa.int64()), "a column a with nulls, or of another type"),
        (pa.array([b"", None], pa.binary()), "a column a with nulls, or of another type"),
    ],
    ids=["shorter integers", "strings", "no integer", "no blob"],
)
def test_a_column_of_another_type_or_with_nulls_is_an_error(column: pa.Array, complaint: str) -> None:
    """Its buffers have other lengths, and the place of a null has any value."""
    columns = read_columns(parquet({"a": column}), "path/1")
    with pytest.raises(LedgerError, match=f"^path/1 has {complaint}"):
        columns.integers("a")
    with pytest.raises(LedgerError, match=f"^path/1 has {complaint}"):
        columns.blobs("a")


def test_a_missing_column_is_an_error() -> None:
    columns = read_columns(written([(1, b"")]), "path/1")
    for read in (columns.integers, columns.blobs, columns.values):
        with pytest.raises(LedgerError, match=r"^path/1 has only the columns \['number', 'content'\], without size"):
            read("size")


def test_values_counts_what_is_not_null() -> None:
    assert 2 == read_columns(parquet({"a": pa.array([b"", None, b"x"])}), "x").values("a")


# The facts of each entry: the columns that Spark and consumers read instead of the entry.


TOPIC, BILLING = 7, 3


def sealed(segment: int, end_offset: int) -> dict[str, Any]:
    return {"fact": "sealed", "topic_id": TOPIC, "segment": segment, "end_offset": end_offset}


def created(*segments: int) -> list[dict[str, Any]]:
    return [{"fact": "created", "topic_id": TOPIC, "segment": each} for each in segments]


def test_an_acknowledgement_states_each_bucket_of_a_slice_and_none_for_a_whole_segment() -> None:
    ranges = [e.AcknowledgedRange(5, 0, 4, 14, 16), e.AcknowledgedRange(2, 1, 3), e.AcknowledgedRange(5, 0, 6, 0, 1)]
    entry = e.RecordsAcknowledged(topic_id=TOPIC, subscription_id=BILLING, seek_generation=2, ranges=ranges)
    constant = {"fact": "acknowledged", "topic_id": TOPIC, "subscription_id": BILLING, "seek_generation": 2}

    assert facts_of(entry, None) == [
        constant | {"segment": segment, "offset": offset, "end_offset": end, "bucket": bucket}
        for segment, offset, end, bucket in [(5, 0, 4, 14), (5, 0, 4, 15), (2, 1, 3, None), (5, 0, 6, 0)]
    ]


def test_a_topic_states_its_segments() -> None:
    assert facts_of(e.TopicCreated(topic_id=TOPIC, topic="orders", segments=2, token="t"), None) == created(0, 1)


def test_a_topic_with_another_number_of_buckets_is_a_bug() -> None:
    entry = e.TopicCreated(topic_id=TOPIC, topic="orders", segments=1, token="t", buckets=KEY_BUCKETS * 2)
    with pytest.raises(AssertionError, match="no fact states the number of buckets"):
        facts_of(entry, None)


def test_an_import_states_all_segments_and_the_ends_of_the_sealed_ones() -> None:
    segments = [
        e.ImportedSegment(segment=0, label="a", end_offset=9),
        e.ImportedSegment(segment=1, label="b", parents=[0]),
        e.ImportedSegment(segment=2, label="c", end_offset=0),
    ]
    entry = e.TopicImported(topic_id=TOPIC, topic="orders", token="t", segments=segments, positions="offsets")

    assert facts_of(entry, None) == [*created(0, 1, 2), sealed(0, 9), sealed(2, 0)]


def test_an_extension_seals_known_and_new_segments_in_the_order_of_their_numbers() -> None:
    new = [e.ImportedSegment(segment=3, label="d", end_offset=5), e.ImportedSegment(segment=4, label="e")]
    entry = e.LayoutExtended(topic_id=TOPIC, token="t", created=new, sealed={6: 1, 1: 8})

    assert facts_of(entry, None) == [*created(3, 4), sealed(1, 8), sealed(3, 5), sealed(6, 1)]


def test_splits_and_merges_state_the_ends_of_their_segments_and_their_children() -> None:
    # Not segment 0, which a mistaken child of another segment would have too.
    split = e.SegmentSplit(topic_id=TOPIC, segment=1, end_offset=4, token="t")
    assert facts_of(split, Layout.initial(3, 0).split(1, 4, 0)) == [sealed(1, 4), *created(3, 4)]
    merge = e.SegmentsMerged(topic_id=TOPIC, segments=(1, 2), end_offsets=(4, 6), token="t")
    assert facts_of(merge, Layout.initial(3, 0).merge(1, 2, {1: 4, 2: 6}, 0)) == [
        sealed(1, 4),
        sealed(2, 6),
        *created(3),
    ]


def test_different_numbers_of_segments_and_ends_are_a_bug() -> None:
    layout = Layout.initial(3, 0).merge(1, 2, {1: 4, 2: 6}, 0)
    entry = e.SegmentsMerged(topic_id=TOPIC, segments=(1, 2), end_offsets=(4,), token="t")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="zip"):
        facts_of(entry, layout)


def test_pruned_segments_and_deleted_topics_are_stated() -> None:
    assert facts_of(e.SegmentsPruned(topic_id=TOPIC, segments=[4, 2]), None) == [
        {"fact": "pruned", "topic_id": TOPIC, "segment": 4},
        {"fact": "pruned", "topic_id": TOPIC, "segment": 2},
    ]
    assert facts_of(e.TopicDeleted(topic_id=TOPIC, token="t"), None) == [{"fact": "topic_deleted", "topic_id": TOPIC}]


def subscribed(kind: str) -> dict[str, object]:
    return {"fact": "subscribed", "topic_id": TOPIC, "subscription_id": BILLING, "subscription_type": kind}


def position(segment: int, offset: int, seek_generation: int) -> dict[str, object]:
    return {
        "fact": "position",
        "topic_id": TOPIC,
        "subscription_id": BILLING,
        "segment": segment,
        "offset": offset,
        "seek_generation": seek_generation,
    }


@pytest.mark.parametrize(("kind", "stated"), [(None, ""), (e.SubscriptionType.QUEUE, "QUEUE")])
def test_a_subscription_states_its_type_which_may_be_unknown_and_its_positions(kind, stated):
    entry = e.SubscriptionCreated(
        topic_id=TOPIC,
        subscription_id=BILLING,
        subscription="billing",
        subscription_type=kind,
        order="none",
        positions={4: 1, 2: 9},
    )

    assert facts_of(entry, None) == [subscribed(stated), position(2, 9, 0), position(4, 1, 0)]


def test_a_configuration_a_seek_and_the_end_of_a_subscription_are_stated() -> None:
    ids = {"topic_id": TOPIC, "subscription_id": BILLING}
    configured = e.SubscriptionConfigured(**ids, subscription_type=e.SubscriptionType.STREAM, order="key")
    seek = e.SubscriptionSeek(**ids, seek_generation=5, positions={1: 0}, token="t")
    deleted = e.SubscriptionDeleted(**ids, token="t")

    assert facts_of(configured, None) == [subscribed("STREAM")]
    assert facts_of(seek, None) == [position(1, 0, 5)]
    assert facts_of(deleted, None) == [{"fact": "unsubscribed", **ids}]


def test_other_entries_state_nothing() -> None:
    assert facts_of(e.TermStarted(leader_epoch=1, instance="a"), None) == []
