"""Text from outside that is nested more deeply than Python's recursion limit is a fault like any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.leadership.policy.instance_record import read_maintenance, read_record
from controller.leadership.policy.queue_order import read_order
from headgate.cli.records.consume import record_line
from headgate.cli.records.ndjson import BadLineError, Line, LineFormat, keyed_record
from headgate.cli.subscriptions.seek import decode_positions
from headgate.cli.verify_history import read_events
from headgate.errors import HeadgateError
from headgate.lakehouse.tables import decoded
from headgate.model.identifiers import Offset, SegmentId
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.topic_position import decode_copy

NESTED = b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


def line() -> Line:
    return Line(2, len(NESTED), NESTED, b"")


def events(folder: Path) -> object:
    (folder / "history").write_bytes(NESTED + b"\n")
    return read_events(folder / "history")


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda _: keyed_record(line(), LineFormat(key=b"k")), BadLineError),
        (lambda _: keyed_record(line(), LineFormat(key_field="id")), BadLineError),
        (lambda _: decode_positions(NESTED), ValueError),
        (lambda _: decoded(NESTED, "table"), HeadgateError),
        (events, HeadgateError),
    ],
    ids=["line", "line with a key", "positions", "table", "history"],
)
def test_it_is_named(read: Callable[[Path], Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=r"maximum recursion depth"):
        read(tmp_path)


def test_it_is_shown_as_text_and_known_to_be_of_another_program() -> None:
    assert b'"value":"{\\"x\\":[[' in record_line(LedgerRecord(SegmentId(0), Offset(0), 7, b"k", NESTED))
    assert decode_copy(NESTED) is None
    for read in (read_order, read_record, read_maintenance):
        assert read(NESTED) is not None
