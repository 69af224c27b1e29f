"""Counting the tables of an external topic with offsets, on real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drain.backlog.merge import StateRow
from drain.external.count import count_external
from drain.external.offset_facts import TableError
from drain.protocol import Backlog
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView
from tests.support.samples.table_files import write_table

pytestmark = pytest.mark.spark

VIEW = ExternalView(topic="orders", subscriptions={2: "billing"}, labels={0: "a", 1: "b", 2: "c"})
ROWS = (
    StateRow(1, None, 0, sealed_end_offset=10),
    StateRow(1, None, 1),
    StateRow(1, None, 2),
    StateRow(1, 2, None, seek_generation=3, subscription_type="STREAM"),
)
"""The ledger's rows: segment a is sealed at 10, b and c are active."""


def entry_rows() -> list[dict[str, Any]]:
    rows = [{"shard": "a", "seq": n, "bytes": 11, "at": 1000 + n} for n in range(10)]
    return rows + [{"shard": "b", "seq": n, "bytes": 7, "at": 2000 + n} for n in range(4)]


def ack(shard: str = "a", first: int | None = 0, end: int | None = 10, app: str | None = "billing", commit: int = 1):
    return {"app": app, "shard": shard, "first": first, "next": end, "commit": commit}


def tables(folder: Path, entries: Any, acks: Any, form: str = "parquet", *, versions: bool = False) -> ExternalTables:
    mapped_entries = mapped_acks = None
    if entries is not None:
        write_table(folder / "entries", entries, form)
        mapped_entries = EntriesTable(
            path=str(folder / "entries"),
            format=form,
            segment="shard",
            offset="seq",
            size_bytes="bytes",
            timestamp_ms="at",
            version="version" if versions else None,
        )
    if acks is not None:
        write_table(folder / "acks", acks, form)
        mapped_acks = AcknowledgementsTable(
            path=str(folder / "acks"),
            format=form,
            subscription="app",
            segment="shard",
            first_offset="first",
            end_offset="next",
            version="commit" if versions else None,
        )
    return ExternalTables(entries=mapped_entries, acknowledgements=mapped_acks)


def counted(spark, mapped: ExternalTables, rows: tuple[StateRow, ...] = ROWS) -> tuple[Backlog, ...]:
    return count_external(spark, mapped, VIEW, rows, shard=5)


def by_segment(backlogs: tuple[Backlog, ...]) -> dict[int, tuple[int | None, int | None, int | None, bool]]:
    return {row.segment: (row.records, row.size_bytes, row.oldest_ms, row.drained) for row in backlogs}


def test_without_a_table_of_entries_ends_come_from_the_ledger(spark, tmp_path: Path) -> None:
    found = counted(spark, tables(tmp_path, None, [ack(end=9)]))
    assert {0: (1, None, None, False), 1: (None, None, None, False), 2: (None, None, None, False)} == by_segment(found)


def test_without_a_table_of_acknowledgements_those_in_the_ledger_count(spark, tmp_path: Path) -> None:
    rows = (*ROWS, StateRow(1, 2, 0, seek_generation=3, position=10), StateRow(1, 2, 1, seek_generation=3, position=3))
    found = counted(spark, tables(tmp_path, entry_rows(), None), rows)
    assert {0: (0, 0, None, True), 1: (1, 7, 2003, False), 2: (0, 0, None, False)} == by_segment(found)


def changed(**columns: Any) -> list[dict[str, Any]]:
    """Return the entries with the second row changed."""
    rows = entry_rows()
    rows[1] = rows[1] | columns
    return rows


def without(column: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


ENTRY_FAULTS = {
    "missing columns": (without("seq", without("at", entry_rows())), "has no column 'at', 'seq'; it has: shard, bytes"),
    "a null offset": (changed(seq=None), 'seq is null (1 times, e.g. {"label":"a"})'),
    "a null segment": (changed(shard=None), 'shard is null (1 times, e.g. {"offset":1})'),
    "a null size": (changed(bytes=None), "bytes is null (1 times"),
    "a negative offset": (changed(seq=-1), 'an offset is negative (1 times, e.g. {"label":"a","offset":-1})'),
    "an offset twice": (
        changed(seq=2),
        'an offset occurs twice (1 times, e.g. {"label":"a","offset":2,"times":2})',
    ),
    "beyond the sealed end": (changed(seq=10), "an offset is beyond the end of a sealed segment (1 times"),
    "a fraction": ([row | {"seq": row["seq"] + 0.5} for row in entry_rows()], "column 'seq' is of type double"),
    "text for a number": ([row | {"seq": str(row["seq"])} for row in entry_rows()], "column 'seq' is of type string"),
    "no segment of the topic": (
        [row | {"shard": "x" + row["shard"]} for row in entry_rows()],
        "no row belongs to a segment of the topic: one has 'xa', the segments are a, b, c",
    ),
}


@pytest.mark.parametrize(("rows", "fault"), ENTRY_FAULTS.values(), ids=ENTRY_FAULTS.keys())
def test_a_fault_of_the_entries_is_reported_with_the_table_and_an_example(
    spark, tmp_path: Path, rows: list[dict[str, Any]], fault: str
) -> None:
    given = tables(tmp_path, rows, [ack()])
    with pytest.raises(TableError) as caught:
        counted(spark, given)
    assert str(caught.value).startswith(f"external.orders.entries ({tmp_path}/entries): ")
    assert fault in str(caught.value)


def test_with_a_version_decreasing_offsets_are_a_fault(spark, tmp_path: Path) -> None:
    rising = [row | {"version": n} for n, row in enumerate(entry_rows())]
    acks = [ack(end=4, commit=1), ack(end=6, commit=2)]
    counted(spark, tables(tmp_path, rising, acks, versions=True))

    falling = [row | {"version": 100 - n} for n, row in enumerate(entry_rows())]
    with pytest.raises(TableError, match=r"offsets go backward \(12 times"):
        counted(spark, tables(tmp_path / "again", falling, acks, versions=True))
    with pytest.raises(TableError, match=r"acknowledged offsets go backward \(1 times.*before"):
        counted(spark, tables(tmp_path / "acks-back", None, [ack(end=6), ack(end=4, commit=2)], versions=True))


def test_a_text_in_a_number_column_of_csv_is_a_fault(spark, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"seq is not a whole number \(1 times"):
        counted(spark, tables(tmp_path, changed(seq="many"), None, "csv"))


def test_an_unreadable_line_of_json_is_a_fault(spark, tmp_path: Path) -> None:
    given = tables(tmp_path, entry_rows(), None, "json")
    (tmp_path / "entries" / "part-1.json").write_text('{"shard": "a", "seq": \n')
    with pytest.raises(TableError, match=r"external.orders.entries .*Spark could not count"):
        counted(spark, given)


def test_a_missing_table_is_named(spark, tmp_path: Path) -> None:
    given = ExternalTables(entries=EntriesTable(path=str(tmp_path / "nowhere"), segment="s", offset="o"))
    with pytest.raises(TableError, match=r"external.orders.entries .*nowhere"):
        counted(spark, given)


def test_a_format_without_its_jars_is_named(spark, tmp_path: Path) -> None:
    given = ExternalTables(entries=EntriesTable(path=str(tmp_path), format="delta", segment="s", offset="o"))
    with pytest.raises(TableError, match="delta"):
        counted(spark, given)
