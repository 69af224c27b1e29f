"""Copies what is stored of a topic into a table, each record once.

The table says where to continue, and each commit adds records together with the position behind them. So a crash at any
point, and any number of runs, leave each record in the table once.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from headgate.client.topic_source import TopicSource
from headgate.errors import HeadgateError, LedgerError, OtherHistoryError, PositionOutOfRangeError
from headgate.lakehouse.table_rows import TableRows
from headgate.lakehouse.tables import ExportTable
from headgate.model.text import listed
from headgate.reading.topic_position import Snapshot, beginning
from headgate.reading.topic_reader import TopicReader

REMEDY: Final = "export to another table"
IF_PRUNED: Final = (
    ", or continue behind pruned records with --skip-pruned; --subscription keeps those that are not exported"
)


class Exporter:
    def __init__(
        self, source: TopicSource, table: ExportTable, rows: TableRows, *, commit_bytes: int, skip_pruned: bool
    ) -> None:
        """``commit_bytes``: how many bytes of records make a commit full."""
        self._source = source
        self._table = table
        self._rows = rows
        self._commit_bytes = commit_bytes
        self._skip_pruned = skip_pruned
        self._progress: Callable[[], None] = lambda: None
        self._now: Snapshot | None = None
        self._first_chunk = 1
        """No record that is left to export is in an earlier chunk."""
        self.records = 0
        """Records in the commits so far."""
        self.commits = 0
        self.reached: dict[int, int] = {}
        """Segment → what the table has of it: before the first commit, what it had."""
        self.pruned: dict[int, int] = {}
        """Segment → the first record that was deleted while it was exported."""

    async def plan(self) -> tuple[Snapshot, dict[int, int]]:
        """Return the topic as it is now, and segment → first offset to export.

        Raises HeadgateError: the table has records of another topic, or of a history that the ledger does not have.
        """
        position = self._table.position or beginning(self._source.description, self._source.ledger_id)
        self._now = now = await self._source.look(self._now)
        try:
            starts = await self._source.starts_after(
                position, now, remedy=REMEDY, if_pruned=IF_PRUNED, skip_pruned=self._skip_pruned
            )
        except (OtherHistoryError, PositionOutOfRangeError) as error:
            raise HeadgateError(f"{self._table.name} cannot continue: {error}") from None
        return now, starts

    async def run(self, now: Snapshot, starts: dict[int, int], progress: Callable[[], None]) -> None:
        """Export the records that ``now`` counts, from ``starts`` on. Call ``progress`` after each commit.

        Segments that are pruned meanwhile do not keep the others from the table. Raises HeadgateError, also for those
        unless they may be skipped; see headgate.reading.topic_reader and headgate.lakehouse.tables.
        """
        self._progress = progress
        self.reached = {each.segment: each.next_offset for each in now.topic.segments} | starts
        unread = dict(starts)
        while True:
            try:
                left = {segment: offset for segment, offset in unread.items() if segment not in self.pruned}
                await self._export(now, left, unread)
                break
            except LedgerError:
                present = await self._source.describe()
                gone = unread.keys() - {each.segment for each in present.segments} - self.pruned.keys()
                lost = {segment: unread[segment] for segment in gone if unread[segment] < now.ends[segment]}
                if present.topic_id != now.topic.topic_id or not lost:
                    raise
            self.pruned |= lost
        self._first_chunk = now.counted + 1
        if self.pruned and not self._skip_pruned:
            where = listed([f"{segment} from offset {at} on" for segment, at in sorted(self.pruned.items())])
            raise HeadgateError(
                f"segment {where} of topic {now.topic.topic!r} was pruned while it was exported, and "
                f"{self._table.name} has the others; {REMEDY}{IF_PRUNED}"
            )

    async def _export(self, now: Snapshot, starts: dict[int, int], unread: dict[int, int]) -> None:
        """Export from ``starts`` on, and move ``unread``, which has them. An error loses nothing that was read."""
        failed = None
        first, describe = self._first_chunk, self._source.describe
        reader = TopicReader(self._source.ledger, now.topic, starts=starts, first_chunk=first, describe=describe)
        pending: list[pa.RecordBatch] = []
        pending_bytes = 0
        try:
            async with aclosing(reader.stored_rows()) as found:
                async for rows in found:
                    pending.append(pa.record_batch(rows.arrow()))
                    pending_bytes += pending[-1].nbytes
                    if pending_bytes >= self._commit_bytes:
                        await self._commit(pending, now, unread, reader)
                        pending, pending_bytes = [], 0
        except LedgerError as error:
            failed = error
        if pending:
            await self._commit(pending, now, unread, reader)
        if failed is not None:
            raise failed

    async def _commit(
        self, batches: list[pa.RecordBatch], now: Snapshot, unread: dict[int, int], reader: TopicReader
    ) -> None:
        """Add ``batches`` to the table, and move ``unread`` behind them, unless their ledger was replaced."""
        rows = await asyncio.to_thread(self._rows.table, batches)
        ends = rows.group_by("segment").aggregate([("offset", "max")])
        reached = unread | {
            segment: last + 1 for segment, last in zip(*(column.to_pylist() for column in ends.columns), strict=True)
        }
        # A chunk behind the rows: it is missing in an older ledger, which may have other records at their offsets.
        position = Snapshot(now.topic, self._source.ledger_id, *await self._source.newest()).position(reached)
        if await self._source.ledger.term_id_at(now.chunk) != now.term_id or not await reader.is_same_history():
            raise HeadgateError(f"an older ledger was put back while {now.topic.topic!r} was exported")
        await asyncio.to_thread(self._table.append, rows, position)
        unread |= reached
        self.reached |= reached
        self.records, self.commits = self.records + len(rows), self.commits + 1
        self._progress()
