"""The backlog of an external topic: which values are known, and why others are unknown."""

from typing import Any

import pytest

from drain.backlog.merge import StateRow
from drain.external.backlog import (
    RemainingEntries,
    backlog_from_ledger,
    checkpoint_keys,
    offset_backlog,
    opaque_backlog,
    unknown_reason,
)
from drain.protocol import Backlog, ExternalBacklogQuery
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView

PLAIN = EntriesTable(path="p", segment="s", offset="o")
SIZED = EntriesTable(path="p", segment="s", offset="o", size_bytes="b")
ACKNOWLEDGED = AcknowledgementsTable(path="p", segment="s", subscription_id="a", end_offset="e")
SUBSCRIPTION = StateRow(1, 2, None, subscription_type="STREAM")


def offsets(**entries: Any) -> tuple[StateRow, ...]:
    """Segment 0 is sealed at 10 and acknowledged to 4; segment 1 is active, with ``entries`` in its table."""
    return (
        StateRow(1, None, 0, sealed_end_offset=10),
        StateRow(1, None, 1, **entries),
        SUBSCRIPTION,
        StateRow(1, 2, 0, position=4),
    )


def numbers(found: tuple[Backlog, ...]) -> dict[int, tuple[int | None, int | None, int | None]]:
    return {row.segment: (row.records, row.size_bytes, row.oldest_ms) for row in found}


def test_without_a_table_of_entries_only_sealed_segments_have_an_end() -> None:
    assert numbers(offset_backlog(offsets(), None)) == {0: (6, None, None), 1: (None, None, None)}


def test_a_table_of_entries_defines_the_end_of_an_active_segment_even_without_its_entries() -> None:
    assert numbers(offset_backlog(offsets(), PLAIN))[1] == (0, 0, None)
    assert numbers(offset_backlog(offsets(records=3, end_offset=3), PLAIN))[1] == (3, None, None)


def test_bytes_are_known_only_from_sizes_of_the_segments_own_entries() -> None:
    stored = offsets(records=3, size_bytes=30, end_offset=3)
    assert numbers(offset_backlog(stored, SIZED)) == {0: (6, None, None), 1: (3, 30, None)}
    assert numbers(offset_backlog(stored, PLAIN))[1] == (3, None, None)


def test_untracked_values_stay_unknown() -> None:
    rows = (*offsets()[:2], StateRow(1, 2, None, subscription_type="CHECKPOINT"))
    assert {row.records for row in offset_backlog(rows, SIZED)} == {None}
    assert {row.records for row in opaque_backlog(rows, {}, {(0, None): RemainingEntries(1, 1, 1)})} == {None}


OPAQUE = (StateRow(1, None, 0, sealed_end_offset=1), StateRow(1, None, 1), SUBSCRIPTION)


@pytest.mark.parametrize(
    ("position", "checkpoint", "expected"),
    [
        pytest.param(0, None, (5, 50, 100), id="nothing read"),
        pytest.param(0, "m", (2, 20, 104), id="a checkpoint"),
        pytest.param(0, "another", (None, None, None), id="an unknown checkpoint"),
        pytest.param(1, None, (0, 0, None), id="read to its end"),
        pytest.param(1, "another", (0, 0, None), id="read to its end, with a checkpoint"),
    ],
)
def test_an_opaque_segment_is_counted_after_its_checkpoint(position, checkpoint, expected) -> None:
    counted = {(0, None): RemainingEntries(5, 50, 100), (0, "m"): RemainingEntries(2, 20, 104)}
    rows = (*OPAQUE, StateRow(1, 2, 0, position=position))
    checkpoints = {} if checkpoint is None else {2: {0: checkpoint}}

    found = numbers(opaque_backlog(rows, checkpoints, counted))
    assert found == {0: expected, 1: (None, None, None)}


def test_the_end_of_an_opaque_segment_is_its_number_of_entries() -> None:
    counted = {(0, None): RemainingEntries(5, None, None), (0, "m"): RemainingEntries(2, None, None)}
    found = opaque_backlog(OPAQUE, {2: {0: "m"}}, counted)
    assert [(row.end_offset, row.records) for row in found] == [(5, 2), (0, None)]


def test_checkpoint_keys_are_all_beginnings_and_each_checkpoint_once() -> None:
    checkpoints = {2: {0: "m", 9: "of a removed segment"}, 3: {0: "m"}, 4: {1: "n"}}
    view = ExternalView(topic="t", labels={0: "a", 1: "b"}, opaque=True, checkpoints=checkpoints)
    assert checkpoint_keys(view) == [(0, None), (1, None), (0, "m"), (1, "n")]


def query(*, opaque: bool = False) -> ExternalBacklogQuery:
    return ExternalBacklogQuery(5, 1, ExternalView(topic="t", labels={}, opaque=opaque))


def test_without_tables_the_backlog_comes_from_the_ledger_with_a_reason() -> None:
    found = backlog_from_ledger(query(), (*offsets(), StateRow(8, None, 0)), 900, "not read")

    assert [(row.segment, row.records) for row in found.rows] == [(0, 6), (1, None)]
    assert (found.shard, found.topic_id, found.as_of_ms, found.reason) == (5, 1, 900, "not read")
    assert not found.failing


@pytest.mark.parametrize(
    ("tables", "opaque", "reason"),
    [
        (ExternalTables(acknowledgements=ACKNOWLEDGED), False, "no table of its entries is mapped"),
        (ExternalTables(), True, "no table of its entries is mapped"),
        (ExternalTables(entries=PLAIN), True, "one of its checkpoints is no whole number"),
    ],
    ids=["acknowledgements only", "no table", "an unknown checkpoint"],
)
def test_the_reason_names_the_cause(tables, opaque, reason) -> None:
    unknown = opaque_backlog(OPAQUE, {}, {}) if opaque else offset_backlog(offsets(), None)
    assert reason in unknown_reason(unknown, tables, query(opaque=opaque).view)
    assert unknown_reason(offset_backlog(offsets(), PLAIN), tables, query().view) == ""
