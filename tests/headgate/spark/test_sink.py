"""What of a partition is stored already, and which rows and options are refused before anything starts."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from headgate.errors import ConfigError, FencedError, HeadgateError, NoLeaderError
from headgate.protocol.replies import SourcePosition
from headgate.spark import sink
from headgate.spark.options import BatchOptions, SinkOptions, StreamOptions, checked
from headgate.spark.source import SCHEMA, TopicStreamReader

KEY_VALUE = StructType().add("key", StringType()).add("value", StringType())


ROWS: list[sink.Row] = [(b"k", b"%d" % number, (), None) for number in range(4)]


def stored_after(rows: list[sink.Row]) -> sink.StoredRows:
    """Return what a task of write 7 has stored that ended after ``rows``."""
    return sink.rows_stored([position for position, _ in sink.unstored(rows, sink.StoredRows(0, 0), 7)][-1], 7)


def test_a_task_skips_what_its_batch_has_stored_in_any_order_if_that_is_all() -> None:
    assert [row for _, row in sink.unstored(ROWS, stored_after(ROWS[:3]), 7)] == ROWS[3:]
    assert not list(sink.unstored(ROWS[::-1], stored_after(ROWS), 7))
    assert sink.rows_stored(None, 7) == sink.rows_stored(b"spark 6 90 a1", 7) == sink.StoredRows(0, 0), (
        "of this batch none is stored"
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(b"k0", b"", (), None), *ROWS[1:]], "the first 2 rows are others than those that batch 7 has stored"),
        (ROWS[::-1], "the first 2 rows are others"),
        (ROWS[:1], "2 rows are stored, and the repeated task has 1"),
    ],
    ids=["other bytes", "order", "fewer"],
)
def test_a_task_whose_rows_are_others_than_its_batch_has_stored_stores_nothing(rows: list[sink.Row], text: str) -> None:
    with pytest.raises(HeadgateError, match=text):
        list(sink.unstored(rows, stored_after(ROWS[:2]), 7))


@pytest.mark.parametrize(
    ("position", "text"),
    [(b"spark 8 90 a1", "write 8 has begun after write 7"), (b"42", "b'42' is another program's")],
    ids=["a later batch", "a file"],
)
def test_a_task_that_comes_too_late_stores_nothing(position: bytes, text: str) -> None:
    with pytest.raises(HeadgateError, match=text):
        sink.rows_stored(position, 7)


@pytest.mark.parametrize("committed", [0, 7, 8], ids=["unknown", "those before", "also this one"])
def test_a_batch_follows_those_that_the_ledger_has(committed: int) -> None:
    sink.require_followed(7, committed)
    for other in (1, 6, 9):
        with pytest.raises(
            HeadgateError, match=f"at batch 7, and the ledger has its batches up to {other - 1}: an older"
        ):
            sink.require_followed(7, other)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (StructType().add("key", StringType()), "column value is missing; write key .binary or string., value"),
        (KEY_VALUE.add("n", IntegerType()), "a record has no column n; select key"),
        (StructType().add("key", IntegerType()).add("value", StringType()), "column key is int; write key"),
        (SCHEMA, "a record has no column segment; select key"),
    ],
    ids=["missing", "extra", "type", "all of a source"],
)
def test_columns_are_checked(schema: StructType, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        sink.check_columns(schema)


def test_rows_have_bytes_milliseconds_and_headers_and_no_null_key() -> None:
    headers = pa.array(
        [[{"name": "n", "value": b"1"}], None], pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()}))
    )
    times = pa.array([1_500_999, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"key": ["a", "b"], "value": [b"1", b"2"], "headers": headers, "timestamp": times})

    assert [(b"a", b"1", (("n", b"1"),), 1500), (b"b", b"2", (), None)] == list(sink.rows_of(batch))
    assert [(b"a", b"1", (), None)] == list(sink.rows_of(batch.select(["key", "value"]).slice(0, 1)))
    with pytest.raises(HeadgateError, match="a key is null, and a record needs one: filter such rows"):
        list(sink.rows_of(pa.record_batch({"key": [None], "value": ["x"]})))
    for wrong in (None, {"name": None, "value": b"1"}, {"name": "n", "value": None}):
        given = pa.array([[wrong]], headers.type)
        with pytest.raises(HeadgateError, match="a header is null, or has no name or no value"):
            list(sink.rows_of(pa.record_batch({"key": ["a"], "value": ["x"], "headers": given})))


def test_large_rows_are_sent_a_few_together() -> None:
    rows = (
        (b"", (b"", bytes(size), (), None))
        for size in (1, sink.SENT_BYTES - 1, 1, sink.SENT_BYTES, *[0] * (sink.SENT_ROWS + 1))
    )

    assert [2, 2, sink.SENT_ROWS, 1, 0] == [len(sink.portion(rows)) for _ in range(5)]


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (BatchOptions, {}, "required field `topic`"),
        (SinkOptions, {"path": "t", "topic": "u"}, "option topic is 'u', and the argument 't': give one"),
        (BatchOptions, {"topic": "t", "subscription": "s"}, "unknown option subscription; options are topic, config"),
        (StreamOptions, {"path": "t", "maxrecordspertrigger": "0"}, "`int` >= 1 - at `\\$.maxRecordsPerTrigger`"),
        (StreamOptions, {"path": "t", "maxrecordspertrigger": "1", "maxbytespertrigger": "1"}, "not both"),
        (SinkOptions, {"path": "t", "timeoutseconds": "soon"}, "`float`, got `str` - at `\\$.timeoutSeconds`"),
    ],
    ids=["topic", "two topics", "unknown", "zero", "two limits", "no number"],
)
def test_a_wrong_option_is_one_line(kind: Any, given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        checked(kind, given)


def test_a_schema_selects_columns_of_a_topic() -> None:
    options = checked(StreamOptions, {"path": "t"})
    with pytest.raises(
        ConfigError, match="a topic has no column key string; it has struct<key:binary,value:binary,head"
    ):
        TopicStreamReader(options, KEY_VALUE)


def stream_writer(monkeypatch: pytest.MonkeyPatch) -> sink.TopicStreamWriter:
    monkeypatch.setattr(sink, "load_client_config", lambda _: None)
    monkeypatch.setattr(sink.Client, "from_config", Mock(return_value=AsyncMock()))
    schema = StructType().add("key", StringType()).add("value", StringType())
    return sink.TopicStreamWriter(
        checked(SinkOptions, {"path": "t", "timeoutseconds": "0.02"}), schema, overwrite=False
    )


def test_a_partition_that_a_repeated_batch_does_not_have_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may be in another partition now, where they were stored again."""
    asked = AsyncMock(side_effect=[SourcePosition(topic_id=1, position=b"spark 7 1 a1")])
    monkeypatch.setattr(sink.TopicStreamWriter, "_position", asked)
    with pytest.raises(HeadgateError, match="'spark-q-1': 1 rows are stored, and the repeated task has 0"):
        stream_writer(monkeypatch).commit([sink.PartitionStored("spark-q", "spark-q-0", 7)])


def store_by(monkeypatch: pytest.MonkeyPatch, **producer: Any) -> None:
    """Store one row by a producer whose methods do this, with a timeout of 20 ms."""
    monkeypatch.setattr(sink, "Producer", Mock(return_value=AsyncMock(source_position=None, **producer)))
    rows = pa.record_batch({"key": ["k"], "value": ["v"]})
    stream_writer(monkeypatch)._store([rows], sink.PartitionStored("", "spark-t-0", 7))


@pytest.mark.parametrize(
    ("error", "pauses"), [(FencedError("fenced", "by another task"), [0.02]), (HeadgateError("by another task"), [])]
)
def test_a_task_that_another_one_fenced_waits_for_it_because_its_failure_would_start_a_third(
    error: HeadgateError, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends it when the other one has stored the rows."""
    slept: list[float] = []
    monkeypatch.setattr(sink.time, "sleep", slept.append)
    with pytest.raises(type(error), match="by another task"):
        store_by(monkeypatch, metrics=Mock(return_value=Mock(committed_records=0)), **{"__aenter__.side_effect": error})
    assert slept == pauses


def test_a_task_waits_as_long_as_rows_are_stored_and_then_says_what_prevents_it(monkeypatch: pytest.MonkeyPatch):
    """A user beyond a quota of bytes stores slowly, and less than is sent together within the timeout."""
    counts = [0, 0, 5, 10, 10]
    """What is stored: when opening begins, and whenever the timeout ends while the row is sent."""
    metrics = Mock(side_effect=[Mock(committed_records=count) for count in counts])
    session = Mock(session=Mock(obstacle=lambda: "user shop exceeds its quota bytes_per_second of 9"))
    hangs = AsyncMock(side_effect=lambda *_, **__: asyncio.Event().wait())
    expected = r"^rows were not stored within timeoutSeconds=0\.02: user shop exceeds its quota bytes_per_second of 9"
    with pytest.raises(NoLeaderError, match=expected):
        store_by(monkeypatch, metrics=metrics, sessions={0: session}, send=hangs)
    assert metrics.call_count == len(counts)
