"""What is known of an external topic's backlog: what the ledger says of it, and what its tables add.

The rules:

1. What is not known is None, never 0. What is not tracked (CHECKPOINT) is None as well, as ever.
2. Where offsets count, a backlog ends where the segment is sealed, or at the last entry of the table. An active segment
   of which no table tells the entries has an end that its source alone knows.
3. Bytes are known where the table has sizes and entries of that segment. Nothing left is 0 bytes.
4. Where positions are opaque, a segment that was read to its end has nothing left. One of which nothing was
   acknowledged has all of its entries left, one with a checkpoint those behind it. Where no table tells that, it is not
   known. Read to its end, and nothing else, is drained.

Pure: rows of a result and what was counted in, backlogs out. No Spark, so the daemon may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from drain.backlog.merge import Backlog, StateRow, outstanding
from drain.backlog.rates import BacklogKey, Rates
from drain.external.table_mapping import EntriesTable, ExternalTables, ExternalView
from drain.protocol import BacklogRow, ExternalBacklogQuery, ExternalBacklogResponse
from headgate.protocol.backlog import TRACKED

CheckpointKey = tuple[int, str | None]
"""A segment, and the checkpoint in it behind which entries are counted; None: all entries."""


@dataclass(frozen=True, slots=True)
class RemainingEntries:
    """The entries behind a mark."""

    records: int
    size_bytes: int | None
    oldest_ms: int | None


def offset_backlog(rows: Sequence[StateRow], entries: EntriesTable | None) -> tuple[Backlog, ...]:
    """Return the backlog where offsets count (rules 2 and 3); ``rows`` hold what ``entries``, if mapped, came to."""
    stored = {row.segment: row.records for row in rows if row.subscription_id is None}
    found: list[Backlog] = []
    for row in outstanding(rows):
        known = row
        if row.records is not None and entries is None and not row.sealed:
            known = replace(row, records=None, size_bytes=None, oldest_ms=None)
        elif row.records:
            sized = entries is not None and entries.size_bytes is not None and stored[row.segment]
            known = replace(row, size_bytes=row.size_bytes if sized else None)
        found.append(known)
    return tuple(found)


def opaque_backlog(
    rows: Sequence[StateRow],
    checkpoints: Mapping[int, Mapping[int, str]],
    counted: Mapping[CheckpointKey, RemainingEntries],
) -> tuple[Backlog, ...]:
    """Return the backlog where positions are opaque (rule 4).

    ``checkpoints``: subscription id → segment → mark. ``counted``: what lies behind those marks whose place is known.
    """
    found: list[Backlog] = []
    for row in outstanding(rows):
        if row.records is None:
            found.append(row)
            continue
        whole = counted.get((row.segment, None))
        if row.position:
            left: RemainingEntries | None = RemainingEntries(0, 0, None)
        else:
            left = counted.get((row.segment, checkpoints.get(row.subscription_id, {}).get(row.segment)))
        found.append(
            replace(
                row,
                # Rates come from how much was stored and how much of it is left.
                end_offset=row.end_offset if whole is None else whole.records,
                records=None if left is None else left.records,
                size_bytes=None if left is None else left.size_bytes,
                oldest_ms=None if left is None else left.oldest_ms,
            )
        )
    return tuple(found)


def checkpoint_keys(view: ExternalView) -> list[CheckpointKey]:
    """Return the marks behind which the entries of an opaque topic are counted: beginnings, and all checkpoints."""
    checkpoints = {(segment, mark) for found in view.checkpoints.values() for segment, mark in found.items()}
    known = {(segment, mark) for segment, mark in checkpoints if segment in view.labels}
    return [(segment, None) for segment in sorted(view.labels)] + sorted(known)


def backlog_from_ledger(
    query: ExternalBacklogQuery, rows: Iterable[StateRow], as_of_ms: int, reason: str
) -> ExternalBacklogResponse:
    """Return what the ledger alone tells; ``reason``: why there are no tables, said where something is not known."""
    view = query.view
    mine = [row for row in rows if row.topic_id == query.topic_id]
    known = opaque_backlog(mine, view.checkpoints, {}) if view.opaque else offset_backlog(mine, None)
    return backlog_response(query, known, as_of_ms, reason=reason if _unknown(known) else "")


def backlog_response(
    query: ExternalBacklogQuery,
    known: Sequence[Backlog],
    as_of_ms: int,
    *,
    rates: Mapping[BacklogKey, Rates] | None = None,
    reason: str = "",
    watermark: int = 0,
) -> ExternalBacklogResponse:
    """Return backlogs as they travel."""
    rows: list[BacklogRow] = []
    for row in known:
        rate = (rates or {}).get((row.topic_id, row.subscription_id, row.segment))
        rows.append(
            BacklogRow(
                shard=query.shard,
                watermark=watermark,
                drained=row.drained and not (query.view.opaque and not row.position),
                stored_per_second=None if rate is None else rate.stored_per_second,
                acknowledged_per_second=None if rate is None else rate.acknowledged_per_second,
                **asdict(row),
            )
        )
    return ExternalBacklogResponse(
        shard=query.shard, topic_id=query.topic_id, rows=rows, as_of_ms=as_of_ms, reason=reason
    )


def unknown_reason(known: Iterable[Backlog], tables: ExternalTables, view: ExternalView) -> str:
    """Return why some of ``known``, which was counted from ``tables``, is not known; empty if all is."""
    if not _unknown(known):
        return ""
    if tables.entries is None:
        return "no table of its entries is mapped, and its source alone knows where an active segment ends"
    assert view.opaque, "a table of entries tells the ends of all segments"
    if tables.entries.version is None:
        return "its positions are opaque, and no version is mapped that tells what lies behind a checkpoint"
    return "a checkpoint of it stands at no entry of its table"


def _unknown(known: Iterable[Backlog]) -> bool:
    return any(row.records is None and row.subscription_type in TRACKED for row in known)
