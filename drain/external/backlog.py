"""The backlog of an external topic: what the ledger contains, and what its tables add. Pure, no Spark.

1. Unknown values and untracked ones (CHECKPOINT) are None, never 0.
2. With offsets, a backlog ends at the end of a sealed segment, or at the last entry in the table.
   Without a table of entries, only the source knows the end of an active segment.
3. Bytes are known if the table has sizes and entries of that segment. An empty backlog has 0 bytes.
4. With opaque positions, the entries after the checkpoint are left; without a checkpoint, all are;
   without a table, that is unknown. An empty backlog drains nothing: the table may have lost entries
   (`drain.external.topics.ExternalTopicCounter.needs_tables`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from msgspec.structs import replace

from drain.backlog.merge import StateRow, outstanding
from drain.protocol import Backlog, ExternalBacklogQuery, ExternalBacklogResponse
from drain.table_mapping import EntriesTable, ExternalTables, ExternalView
from headgate.protocol.backlog import TRACKED

CheckpointKey = tuple[int, str | None]
"""A segment, and the checkpoint after which entries are counted; None: all entries."""


@dataclass(frozen=True, slots=True)
class RemainingEntries:
    records: int | None = None
    size_bytes: int | None = None
    oldest_ms: int | None = None


def offset_backlog(rows: Sequence[StateRow], entries: EntriesTable | None) -> tuple[Backlog, ...]:
    """Return the backlog of a topic with offsets (rules 2 and 3); ``rows`` include ``entries`` if they are mapped."""
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
    """Return the backlog of a topic with opaque positions (rule 4).

    ``checkpoints``: subscription id → segment → checkpoint. ``counted``: the entries after each
    checkpoint that was found in the table.
    """
    found: list[Backlog] = []
    for row in outstanding(rows):
        if row.records is None:
            found.append(row)
            continue
        whole = counted.get((row.segment, None))
        checkpoint = checkpoints.get(row.subscription_id, {}).get(row.segment)
        none = RemainingEntries(records=0, size_bytes=0)
        left = none if row.position else counted.get((row.segment, checkpoint), RemainingEntries())
        found.append(
            replace(
                row,
                # Rates are computed from the stored and the remaining records.
                end_offset=row.end_offset if whole is None else whole.records,
                **asdict(left),
            )
        )
    return tuple(found)


def checkpoint_keys(view: ExternalView) -> list[CheckpointKey]:
    """Return the keys for which an opaque topic is counted: the beginning of each segment, and all checkpoints."""
    checkpoints = {key for by_segment in view.checkpoints.values() for key in by_segment.items()}
    known = sorted(key for key in checkpoints if key[0] in view.labels)
    return [*((segment, None) for segment in sorted(view.labels)), *known]


def backlog_from_ledger(
    query: ExternalBacklogQuery, rows: Iterable[StateRow], as_of_ms: int, reason: str
) -> ExternalBacklogResponse:
    """Return the backlog from the ledger alone; ``reason``: why there are no tables, if a value is unknown."""
    view = query.view
    of_topic = [row for row in rows if row.topic_id == query.topic_id]
    backlogs = opaque_backlog(of_topic, view.checkpoints, {}) if view.opaque else offset_backlog(of_topic, None)
    return ExternalBacklogResponse(
        shard=query.shard,
        topic_id=query.topic_id,
        rows=list(backlogs),
        as_of_ms=as_of_ms,
        reason=reason if _has_unknown(backlogs) else "",
    )


def unknown_reason(backlogs: Iterable[Backlog], tables: ExternalTables, view: ExternalView) -> str:
    """Return why a value in ``backlogs``, counted from ``tables``, is unknown; empty if none is."""
    if not _has_unknown(backlogs):
        return ""
    if tables.entries is None:
        return "no table of its entries is mapped, and only its source knows where an active segment ends"
    assert view.opaque, "a table of entries contains the ends of all segments"
    return "one of its checkpoints is no whole number, so its place among the entries is unknown"


def _has_unknown(backlogs: Iterable[Backlog]) -> bool:
    return any(each.records is None and each.subscription_type in TRACKED for each in backlogs)
