"""Count the tables of one external topic on a Spark session.

Records come from the table of entries, everything else from the ledger; mapped acknowledgements
from both. Results contain the ledger only, so this count is not published. Tables are read as a
whole. With opaque positions, the entries after the stored checkpoints are counted.

A table of acknowledgements is the source of truth: its rows count at the current seek generation,
so a seek has to be done in the table.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from drain.backlog import plans as backlog
from drain.backlog.aggregates import merged_rows
from drain.backlog.merge import MergedRow, StateRow, merge_rows, previous_rows
from drain.external import offset_facts as external_facts
from drain.external import opaque_facts
from drain.external.backlog import CheckpointKey, RemainingEntries, checkpoint_keys, offset_backlog, opaque_backlog
from drain.external.offset_facts import SEGMENT_SCHEMA, TableError
from drain.protocol import Backlog
from drain.spark.engines import ENGINE_ERRORS, error_summary, is_gone, run_errors
from drain.table_mapping import AcknowledgementsTable, EntriesTable, ExternalTables, ExternalView

_READ_OPTIONS = {
    # An unreadable line is an error, not a row of nulls.
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true", "inferSchema": "false"},
}
_SUBSCRIPTION_SCHEMA: Final = "subscription string, subscription_id long, seek_generation long"


def count_external(
    session: SparkSession, tables: ExternalTables, view: ExternalView, rows: Sequence[StateRow], shard: int
) -> tuple[Backlog, ...]:
    """Return the backlog of one topic; ``rows``: its rows of the ledger's result, at least one. Blocks.

    Raises:
        TableError: a table is invalid; names it, the error, and an example.
        RunError: Spark failed or was cancelled.
        JvmGoneError: the JVM is gone.
    """
    if view.opaque and tables.acknowledgements is not None:
        raise TableError(
            f"external.{view.topic}.acknowledgements ({tables.acknowledgements.path}): its "
            "positions are opaque, so a table of acknowledgements cannot be counted; remove it, and the "
            "acknowledgements sent to headgate count"
        )
    with run_errors(f"external.{view.topic}: "):
        if view.opaque:
            remaining = {} if tables.entries is None else _count_remaining(session, tables.entries, view)
            return opaque_backlog(rows, view.checkpoints, remaining)
        merged = _merged(session, tables, view, rows, shard)
    return offset_backlog(merge_rows([*previous_rows(rows), *merged]), tables.entries)


def _count_remaining(
    session: SparkSession, table: EntriesTable, view: ExternalView
) -> dict[CheckpointKey, RemainingEntries]:
    """Return the entries after each checkpoint that is found in the table."""
    with _table_errors(table, view):
        found = opaque_facts.entries(_read(session, table), table)
        _raise_faults(opaque_facts.faults(found))
        _check_labels(found, view)
        versions = _checkpoint_versions(session, found, table, view)
        rows = opaque_facts.remaining_entries(found, _checkpoints_frame(session, view, versions)).collect()
    none = RemainingEntries(0, None if table.size_bytes is None else 0, None)
    remaining = {
        (row["segment"], row["checkpoint"]): RemainingEntries(row["records"], row["size_bytes"], row["oldest_ms"])
        for row in rows
    }
    return {key: remaining.get(key, none) for key in versions}


def _checkpoint_versions(
    session: SparkSession, found: DataFrame, table: EntriesTable, view: ExternalView
) -> dict[CheckpointKey, str | None]:
    """Return the checkpoints that are found in the table, with their versions; None for a segment's beginning."""
    keys = checkpoint_keys(view)
    beginnings: dict[CheckpointKey, str | None] = {(segment, text): None for segment, text in keys if text is None}
    checkpoints = [(segment, text) for segment, text in keys if text is not None]
    if table.version == table.offset:
        return beginnings | {
            (segment, text): text for segment, text in checkpoints if text.isascii() and text.isdecimal()
        }
    if table.version is None or not checkpoints:
        return beginnings
    frame = _checkpoints_frame(session, view, dict.fromkeys(checkpoints))
    rows = opaque_facts.checkpoint_versions(found, frame).collect()
    return beginnings | {(row["segment"], row["checkpoint"]): row["version"] for row in rows}


def _checkpoints_frame(
    session: SparkSession, view: ExternalView, versions: Mapping[CheckpointKey, str | None]
) -> DataFrame:
    rows = [(segment, view.labels[segment], text, version) for (segment, text), version in versions.items()]
    return session.createDataFrame(rows, opaque_facts.CHECKPOINT_SCHEMA)


def _merged(
    session: SparkSession, tables: ExternalTables, view: ExternalView, rows: Sequence[StateRow], shard: int
) -> list[MergedRow]:
    topic_id = next(row.topic_id for row in rows)
    ends = {row.segment: row.sealed_end_offset for row in rows if row.subscription_id is None}
    segments = session.createDataFrame(
        [(label, s, ends.get(s)) for s, label in sorted(view.labels.items())], SEGMENT_SCHEMA
    )
    facts: list[DataFrame] = []
    if tables.entries is not None:
        with _table_errors(tables.entries, view):
            found = external_facts.entries(_read(session, tables.entries), tables.entries)
            _raise_faults(external_facts.entry_faults(found, segments))
            _check_labels(found, view)
        facts.append(external_facts.entry_facts(found, segments, shard=shard, topic_id=topic_id))
    if tables.acknowledgements is not None:
        known = {row.subscription_id: row.seek_generation for row in rows if row.segment is None}
        subscriptions = session.createDataFrame(
            [(name, number, known.get(number, 0)) for number, name in sorted(view.subscriptions.items())],
            _SUBSCRIPTION_SCHEMA,
        )
        with _table_errors(tables.acknowledgements, view):
            found = external_facts.acknowledgements(_read(session, tables.acknowledgements), tables.acknowledgements)
            _raise_faults(external_facts.acknowledgement_faults(found, segments))
            _check_labels(found, view)
        facts.append(
            external_facts.acknowledgement_facts(found, segments, subscriptions, shard=shard, topic_id=topic_id),
        )
    if not facts:
        return []
    aggregates = backlog.aggregate_joined(backlog.contributions(reduce(DataFrame.unionByName, facts))).toArrow()
    merged = [row for rows in merged_rows(aggregates).values() for row in rows]
    if tables.entries is not None and tables.entries.timestamp_ms is None:
        # Without a timestamp column, ages are unknown.
        merged = [replace(item, row=replace(item.row, timestamp_index=())) for item in merged]
    return merged


@contextlib.contextmanager
def _table_errors(table: EntriesTable | AcknowledgementsTable, view: ExternalView) -> Iterator[None]:
    """Prefix errors, including those of Spark about its files, with the table's name."""
    kind = "entries" if isinstance(table, EntriesTable) else "acknowledgements"
    where = f"external.{view.topic}.{kind} ({table.path})"
    try:
        yield
    except TableError as error:
        raise TableError(f"{where}: {error}") from error
    except ENGINE_ERRORS as error:
        if is_gone(error):
            raise
        raise TableError(f"{where}: {error_summary(error)}") from error


def _read(session: SparkSession, table: EntriesTable | AcknowledgementsTable) -> DataFrame:
    return session.read.format(table.format).options(**_READ_OPTIONS.get(table.format, {})).load(table.path)


def _raise_faults(faults: DataFrame) -> None:
    found = faults.orderBy("fault").collect()
    if found:
        raise TableError("; ".join(f"{row['fault']} ({row['count']} times, e.g. {row['example']})" for row in found))


def _check_labels(found: DataFrame, view: ExternalView) -> None:
    """Rule 6 of drain.external.offset_facts."""
    if not found.where(found["label"].isin(list(view.labels.values()))).isEmpty():
        return
    other = found.select("label").first()
    if other is not None:
        known = ", ".join(list(view.labels.values())[:10])
        raise TableError(f"no row belongs to a segment of the topic: one has {other[0]!r}, the segments are {known}")
