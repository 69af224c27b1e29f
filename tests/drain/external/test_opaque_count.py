"""Counting entries with opaque positions: on Spark where it counts, and without it where files are refused.

Positions are those of a Kinesis stream: numbers with 56 digits and more, with gaps.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drain.backlog.merge import StateRow
from drain.external.count import TableCounter
from drain.external.known_files import TableError
from drain.protocol import Backlog
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from tests.support.samples.table_files import InProcessSpark, write_table

FIRST = 10**56 - 35
"""The position of the third record of a segment has one digit more than that of the second."""
ROWS = (
    StateRow(1, None, 0, sealed_end_offset=1),
    StateRow(1, None, 1),
    StateRow(1, None, 2),
    StateRow(1, 2, None, subscription_type="STREAM"),
    StateRow(1, 2, 0, position=1),
    StateRow(1, 3, None, subscription_type="STREAM"),
    StateRow(1, 4, None, subscription_type="CHECKPOINT"),
)
"""The ledger's rows: a is closed, and billing has read it to its end; b and c are open."""


def position(at: int) -> str:
    return str(FIRST + 17 * at)


def entry_rows(**columns: Any) -> list[dict[str, Any]]:
    """Return five records in each of a and b, with ``columns`` changed in the second record of a."""
    rows = [
        {"shard": shard, "at": position(n), "bytes": 10 + n, "ms": 1000 + n} for shard in ("a", "b") for n in range(5)
    ]
    rows[1] |= columns
    return rows


def view(**checkpoints: str) -> ExternalView:
    """``checkpoints``: those of billing, by shard."""
    segments = {"a": 0, "b": 1, "c": 2}
    return ExternalView(
        topic="orders",
        labels={number: label for label, number in segments.items()},
        opaque=True,
        checkpoints={2: {segments[label]: text for label, text in checkpoints.items()}},
    )


def table(folder: Path, rows: list[dict[str, Any]], *, form: str = "parquet", **more: Any):
    write_table(folder, rows, form)
    mapped = {"size_bytes": "bytes", "timestamp": "ms"} | more
    entries = EntriesTable(path=str(folder), format=form, segment="shard", offset="at", **mapped)
    return ExternalTables(entries=entries)


class Counter:
    """A counter on Spark, and the number of its runs."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.runs = 0
        self.counter = TableCounter(self.run)

    async def run(self, work: Any) -> Any:
        self.runs += 1
        return work(self.session)

    def __call__(self, mapped: ExternalTables, names: ExternalView, rows: Any = ROWS) -> tuple[Backlog, ...]:
        return asyncio.run(self.counter.count(mapped, names, rows, 5))


def counted(spark, mapped: ExternalTables, names: ExternalView) -> tuple[Backlog, ...]:
    return Counter(spark)(mapped, names)


def numbers(backlogs: tuple[Backlog, ...], subscription: int) -> dict[int, tuple[int | None, int | None, int | None]]:
    return {
        row.segment: (row.records, row.size_bytes, row.oldest_ms)
        for row in backlogs
        if row.subscription_id == subscription
    }


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.spark
def test_entries_after_a_checkpoint_are_outstanding(spark, tmp_path: Path, form: str) -> None:
    given = table(tmp_path / "t", entry_rows(), form=form)
    found = counted(spark, given, view(b=position(1)))

    assert {0: (0, 0, None), 1: (3, 39, 1002), 2: (0, 0, None)} == numbers(found, 2)
    assert {0: (5, 60, 1000), 1: (5, 60, 1000), 2: (0, 0, None)} == numbers(found, 3)
    assert {(None, None, None)} == set(numbers(found, 4).values()), "CHECKPOINT is not tracked"


@pytest.mark.spark
def test_a_checkpoint_needs_no_entry_of_its_position(spark, tmp_path: Path) -> None:
    checkpoints = [position(0), position(4), str(FIRST - 1), "000" + position(2), position(2), position(2), "SHARD_END"]
    subscriptions = dict(enumerate(checkpoints, 10))
    rows = (*ROWS[:3], *(StateRow(1, each, None, subscription_type="STREAM") for each in subscriptions))
    given = replace(view(), checkpoints={each: {1: text} for each, text in subscriptions.items()})
    found = Counter(spark)(table(tmp_path / "t", entry_rows()), given, rows)
    assert [4, 0, 5, 2, 2, 2, None] == [numbers(found, each)[1][0] for each in subscriptions]


@pytest.mark.spark
def test_files_that_overlap_count_their_rows_once_and_are_remembered(spark, tmp_path: Path) -> None:
    """Firehose delivers a file again, and another one in part. Checkpoints advance, also in the middle of a file."""
    rows = entry_rows()
    given = table(tmp_path / "t", rows[:3] + rows[5:8])
    for at, later in enumerate([rows[2:5] + rows[8:], rows[:3] + rows[5:8], rows[3:5]]):
        write_table(tmp_path / "t", later, name=f"later-{at}")
    counter = Counter(spark)

    assert {0: (0, 0, None), 1: (3, 39, 1002), 2: (0, 0, None)} == numbers(counter(given, view(b=position(1))), 2)
    assert counter.runs == 2
    assert (5, 60, 1000) == numbers(counter(given, view(b=position(1))), 3)[0]
    assert counter.runs == 2, "nothing is new"
    write_table(tmp_path / "t", [rows[9] | {"at": position(5)}], name="newest")
    assert (2, 28, 1004) == numbers(counter(given, view(b=position(3))), 2)[1]
    assert counter.runs == 4, "the new file, and what follows the new checkpoint"
    write_table(tmp_path / "t", [rows[9] | {"at": position(6)}], name="newest-2")
    assert (1, 14, 1004) == numbers(counter(given, view(b=position(5))), 2)[1]
    assert counter.runs == 5, "between files, nothing is read again"


FAULTS = {
    "a null position": ({"at": None}, "column 'at' is null in 1 row(s), first in row 2"),
    "a null segment": ({"shard": None}, "column 'shard' is null in 1 row(s)"),
    "a negative size": ({"bytes": -1}, "a size is negative in 1 row(s)"),
    "a position that is not a number": ({"at": "-7"}, "column 'at' has a position that is not a whole number"),
}


@pytest.mark.parametrize(("columns", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_reported_with_the_table_and_an_example(tmp_path: Path, columns: Any, fault: str) -> None:
    with pytest.raises(TableError) as caught:
        counted(InProcessSpark(), table(tmp_path / "t", entry_rows(**columns)), view())
    assert str(caught.value).startswith(f"external.orders.entries ({tmp_path}/t): {tmp_path}/t/part-0.parquet: ")
    assert fault in str(caught.value)


def test_floating_point_positions_are_rejected(tmp_path: Path) -> None:
    """A JSON reader converts sequence numbers without quotes to floats, which lose digits."""
    rows = [row | {"at": float(row["at"])} for row in entry_rows()]
    with pytest.raises(TableError, match="column 'at' is of type double; a position is a text or a whole number"):
        counted(InProcessSpark(), table(tmp_path / "t", rows), view())


def test_a_table_without_segments_of_the_topic_is_rejected(tmp_path: Path) -> None:
    rows = [row | {"shard": f"x{row['shard']}"} for row in entry_rows()]
    with pytest.raises(TableError, match="no row belongs to a segment of the topic"):
        counted(InProcessSpark(), table(tmp_path / "t", rows), view())


def test_a_table_of_acknowledgements_is_rejected() -> None:
    acknowledged = AcknowledgementsTable(path="/srv/acks", segment="s", subscription_id="a", end_offset="e")
    with pytest.raises(TableError, match=r"external.orders.acknowledgements \(/srv/acks\): .*opaque.*remove it"):
        counted(InProcessSpark(), ExternalTables(acknowledgements=acknowledged), view())


def test_without_a_table_of_entries_only_segments_read_to_their_end_are_known() -> None:
    found = counted(InProcessSpark(), ExternalTables(), view())
    assert {0: (0, 0, None), 1: (None, None, None), 2: (None, None, None)} == numbers(found, 2)
