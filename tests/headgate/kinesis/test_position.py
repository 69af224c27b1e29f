"""Checkpoints of Kinesis, where they continue, and the pauses that its limits ask for."""

from datetime import UTC, datetime

import pytest

from headgate.errors import HeadgateError
from headgate.kinesis.position import Packed, Position, iterator_arguments
from headgate.kinesis.stream import Page, pause_seconds

START = datetime(2026, 1, 2, tzinfo=UTC)
PACKED = [Packed(number, "k", b"") for number in (0, 2, 3)]


@pytest.mark.parametrize(
    ("checkpoint", "kind", "left"),
    [("7", "AFTER_SEQUENCE_NUMBER", []), ("7:0", "AT_SEQUENCE_NUMBER", [2, 3]), ("7:2", "AT_SEQUENCE_NUMBER", [3])],
)
def test_a_checkpoint_continues_behind_what_is_handled(checkpoint: str, kind: str, left: list[int]) -> None:
    position = Position.read(checkpoint)

    assert {"ShardIteratorType": kind, "StartingSequenceNumber": "7"} == iterator_arguments(position, START)
    assert left == [each.number for each in position.unhandled("7", PACKED)]
    assert PACKED == position.unhandled("8", PACKED)
    assert checkpoint == position.checkpoint
    again = iterator_arguments(position, START, again=True)
    assert {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "7"} == again


def test_without_a_checkpoint_reading_starts_where_the_program_says() -> None:
    assert {"ShardIteratorType": "TRIM_HORIZON"} == iterator_arguments(None, None)
    assert {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": START} == iterator_arguments(None, START)


@pytest.mark.parametrize("checkpoint", ["", "LATEST", "7:", "7:x", "\u0667"])
def test_a_checkpoint_of_another_program_is_refused(checkpoint: str) -> None:
    with pytest.raises(HeadgateError, match="is no sequence number"):
        Position.read(checkpoint)


@pytest.mark.parametrize(
    ("size_bytes", "behind_ms", "seconds"), [(0, 0, 1.0), (0, 5, 0.2), (9, 0, 0.2), (10**6, 5, 0.5)]
)
def test_a_shard_is_read_five_times_and_with_two_megabytes_a_second(size_bytes: int, behind_ms: int, seconds: float):
    records = [("1", "k", bytes(size_bytes), 0)] if size_bytes else []

    assert seconds == pause_seconds(Page(records, "next", behind_ms))
