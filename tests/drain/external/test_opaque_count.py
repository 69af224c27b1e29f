"""Entries with opaque positions on real Spark: what lies behind a checkpoint, and every fault by the name of its table.

Positions are those of a Kinesis stream: 56 digits, with holes, and of which the longer one is the greater one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from drain.backlog.merge import Backlog, StateRow
from drain.external.count import count_external
from drain.external.offset_facts import TableError
from drain.external.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView

pytestmark = pytest.mark.spark

FIRST = 10**56 - 35
"""The third record of a segment has a digit more than the second."""
ROWS = (
    StateRow(1, None, 0, sealed_end_offset=1),
    StateRow(1, None, 1),
    StateRow(1, None, 2),
    StateRow(1, 2, None, subscription_type="STREAM"),
    StateRow(1, 2, 0, position=1),
    StateRow(1, 3, None, subscription_type="STREAM"),
    StateRow(1, 4, None, subscription_type="CHECKPOINT"),
)
"""What the ledger says: a is closed, and billing has read it to its end; b and c are open."""


def mark(at: int) -> str:
    return str(FIRST + 17 * at)


def entry_rows(**columns: Any) -> list[dict[str, Any]]:
    """Five records in each of a and b; the second one of a with other ``columns``."""
    rows = [
        {"shard": shard, "at": mark(n), "commit": f"{n:03}", "bytes": 10 + n, "ms": 1000 + n}
        for shard in ("a", "b")
        for n in range(5)
    ]
    rows[1] |= columns
    return rows


def view(**checkpoints: str) -> ExternalView:
    """``checkpoints``: of billing, by shard."""
    segments = {"a": 0, "b": 1, "c": 2}
    return ExternalView(
        topic="orders",
        subscriptions={2: "billing", 3: "audit", 4: "copy"},
        labels={number: label for label, number in segments.items()},
        opaque=True,
        checkpoints={2: {segments[label]: text for label, text in checkpoints.items()}},
    )


def table(folder: Path, rows: list[dict[str, Any]], *, version: str | None = "at", form: str = "parquet", **more: Any):
    folder.mkdir(exist_ok=True)
    if form == "json":
        (folder / "part.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "csv":
        lines = [",".join(rows[0]), *(",".join("" if v is None else str(v) for v in row.values()) for row in rows)]
        (folder / "part.csv").write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")
    mapped = {"size_bytes": "bytes", "timestamp_ms": "ms"} | more
    entries = EntriesTable(path=str(folder), format=form, segment="shard", offset="at", version=version, **mapped)
    return ExternalTables(entries=entries)


def numbers(counted: tuple[Backlog, ...], subscription: int) -> dict[int, tuple[int | None, int | None, int | None]]:
    return {
        row.segment: (row.records, row.size_bytes, row.oldest_ms)
        for row in counted
        if row.subscription_id == subscription
    }


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_what_lies_behind_a_checkpoint_is_left(spark, tmp_path: Path, form: str) -> None:
    given = table(tmp_path / "t", entry_rows(), form=form)
    counted = count_external(spark, given, view(b=mark(1)), ROWS, shard=5)

    assert {0: (0, 0, None), 1: (3, 39, 1002), 2: (0, 0, None)} == numbers(counted, 2)
    assert {0: (5, 60, 1000), 1: (5, 60, 1000), 2: (0, 0, None)} == numbers(counted, 3)
    assert {(None, None, None)} == set(numbers(counted, 4).values()), "CHECKPOINT is not tracked"


def left_behind(spark, given: ExternalTables, checkpoints: list[str]) -> list[int | None]:
    """Return what each checkpoint leaves of b, each of them that of a subscription of its own."""
    identities = range(10, 10 + len(checkpoints))
    rows = (*ROWS[:3], *(StateRow(1, each, None, subscription_type="STREAM") for each in identities))
    marks = {each: {1: text} for each, text in zip(identities, checkpoints, strict=True)}
    counted = count_external(spark, given, replace(view(), checkpoints=marks), rows, shard=5)
    return [numbers(counted, each)[1][0] for each in identities]


def test_a_mark_that_is_its_own_version_needs_no_entry_of_its_own(spark, tmp_path: Path) -> None:
    checkpoints = [mark(0), mark(4), str(FIRST - 1), "000" + mark(2), mark(2), mark(2), "SHARD_END"]
    assert [4, 0, 5, 2, 2, 2, None] == left_behind(spark, table(tmp_path / "t", entry_rows()), checkpoints)


def test_a_version_of_another_column_is_looked_up_at_the_entry(spark, tmp_path: Path) -> None:
    given = table(tmp_path / "t", entry_rows(), version="commit")
    assert [3, None, None] == left_behind(spark, given, [mark(1), "nowhere", mark(7)])


def test_without_a_version_nobody_knows_what_lies_behind_a_checkpoint(spark, tmp_path: Path) -> None:
    given = table(tmp_path / "t", entry_rows(), version=None)
    counted = count_external(spark, given, view(b=mark(1)), ROWS, shard=5)

    assert {0: (0, 0, None), 1: (None, None, None), 2: (0, 0, None)} == numbers(counted, 2)
    assert 5 == numbers(counted, 3)[1][0]


def test_without_sizes_and_times_there_are_records_alone(spark, tmp_path: Path) -> None:
    given = table(tmp_path / "t", entry_rows(), size_bytes=None, timestamp_ms=None)
    counted = count_external(spark, given, view(b=mark(1)), ROWS, shard=5)
    assert (3, None, None) == numbers(counted, 2)[1]


def test_marks_may_be_whole_numbers_too(spark, tmp_path: Path) -> None:
    rows = [row | {"at": n} for n, row in enumerate(entry_rows())]
    counted = count_external(spark, table(tmp_path / "t", rows), view(b="6"), ROWS, shard=5)
    assert 3 == numbers(counted, 2)[1][0]


FAULTS = {
    "a null mark": ({"at": None}, "at is null (1 times"),
    "a null segment": ({"shard": None}, "shard is null (1 times"),
    "a null size": ({"bytes": None}, "bytes is null (1 times"),
    "a negative size": ({"bytes": -1}, "a size is negative (1 times"),
    "a mark that is no number": ({"at": "-7"}, "a version is not a whole number (1 times"),
    "a mark twice": ({"at": mark(0)}, "a position occurs twice (1 times"),
    "a version twice": ({"at": "0" + mark(0)}, "a version occurs twice (1 times"),
}


@pytest.mark.parametrize(("columns", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_told_with_the_tables_name_and_an_example(spark, tmp_path: Path, columns: Any, said: str) -> None:
    with pytest.raises(TableError) as caught:
        count_external(spark, table(tmp_path / "t", entry_rows(**columns)), view(), ROWS, shard=5)
    assert str(caught.value).startswith(f"external.orders.entries ({tmp_path}/t): ")
    assert said in str(caught.value)


def test_numbers_that_may_have_lost_digits_are_refused(spark, tmp_path: Path) -> None:
    """As a JSON reader makes them of sequence numbers without quotes."""
    rows = [row | {"at": float(row["at"])} for row in entry_rows()]
    with pytest.raises(TableError, match="column 'at' is of type double; a position is a text or a whole number"):
        count_external(spark, table(tmp_path / "t", rows), view(), ROWS, shard=5)


def test_a_table_of_other_segments_is_a_wrong_mapping(spark, tmp_path: Path) -> None:
    rows = [row | {"shard": f"x{row['shard']}"} for row in entry_rows()]
    with pytest.raises(TableError, match="no row belongs to a segment of the topic"):
        count_external(spark, table(tmp_path / "t", rows), view(), ROWS, shard=5)


def test_a_table_of_acknowledgements_cannot_be_counted_and_says_what_to_do(spark) -> None:
    acknowledged = AcknowledgementsTable(path="/srv/acks", segment="s", subscription="a", end_offset="e")
    with pytest.raises(TableError, match=r"external.orders.acknowledgements \(/srv/acks\): .*opaque.*remove it"):
        count_external(spark, ExternalTables(acknowledgements=acknowledged), view(), ROWS, shard=5)


def test_without_a_table_of_entries_only_what_was_read_to_its_end_is_known(spark) -> None:
    counted = count_external(spark, ExternalTables(), view(), ROWS, shard=5)
    assert {0: (0, 0, None), 1: (None, None, None), 2: (None, None, None)} == numbers(counted, 2)
