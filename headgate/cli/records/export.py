"""`headgate export`: a topic in a Delta, Iceberg or Parquet table, each record once.

Rules:

1. The table says where to continue, so the command keeps no state, and any run may be killed.
2. What can be refused is refused before the first record is read: the schema, a missing library, the table.
3. A subscription (headgate.client.own_subscription) is moved after the commit: it never passes what the table has.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headgate.cli.arguments import require_beside, topic_argument
from headgate.cli.context import CommandContext, command
from headgate.cli.records.sending import ProgressLine
from headgate.cli.terminal.option_types import FilePath, Seconds, Url
from headgate.errors import ConfigError, HeadgateError, NoLeaderError, StoreUnavailableError
from headgate.extras import install_extra
from headgate.model.text import UNREADABLE_JSON, plural

if TYPE_CHECKING:
    from headgate import Admin
    from headgate.lakehouse.exporter import Exporter
    from headgate.lakehouse.table_rows import TableRows
    from headgate.lakehouse.tables import OpenTable

KINDS: Final = {"delta": "DeltaExport", "iceberg": "IcebergExport", "parquet": "ParquetExport"}


@command(
    "headgate export orders /srv/lake/orders --to delta",
    "headgate export orders s3://lake/orders --to delta --schema orders.json --partition-by day",
    "headgate export orders prod.sales.orders --to iceberg --follow --subscription orders-lake",
)
@topic_argument
@click.argument("table", type=Url())
@click.option("--to", "kind", type=click.Choice(list(KINDS)), required=True, help="Kind of the table.")
@click.option(
    "--schema",
    type=FilePath(exists=True, dir_okay=False),
    metavar="FILE",
    help='Fields of JSON values that become columns: a JSON object such as {"id": "string", "total": "double"}. '
    "Types: string, long, double, boolean, timestamp.",
)
@click.option("--partition-by", type=click.Choice(["day"]), help="Partition by the date of the timestamp, in UTC.")
@click.option(
    "--commit-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    default=128_000_000,
    show_default=True,
    help="Bytes of records that fill a commit, hence a file.",
)
@click.option("--follow", is_flag=True, help="Then export new records, until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="With --follow: time from one export to the next, hence the age of the table.",
)
@click.option(
    "--subscription",
    metavar="NAME",
    help="Move this subscription with the table: retention keeps what is not exported, and backlog shows it.",
)
@click.option("--skip-pruned", is_flag=True, help="Continue behind records that were pruned before they were exported.")
def export(context: CommandContext, topic: str, table: str, **given: Any) -> None:
    """Add the records of TOPIC to TABLE, each record once.

    TABLE is a folder or the URL of one in a bucket for delta and parquet, and CATALOG.NAMESPACE.TABLE for iceberg, of a
    catalog that pyiceberg is configured for. It is created if it does not exist. Each commit contains the position
    behind its records, so the next run continues there. The command ends after the last record that was stored when it
    began.
    """
    require_beside("--interval", "--follow", is_there=given["follow"])
    open_table, rows = _prepared(given.pop("kind"), given.pop("schema"), by_day=given.pop("partition_by") is not None)
    run = TableExport(context, topic, table, rows, open_table, **given)
    try:
        context.run(run.run())
    finally:
        if run.exporter is not None:
            run.report(run.exporter)


@dataclass
class TableExport:
    context: CommandContext
    topic: str
    table: str
    rows: TableRows
    open_table: OpenTable
    commit_bytes: int
    follow: bool
    interval: float
    subscription: str | None
    skip_pruned: bool
    exporter: Exporter | None = None
    """Set when nothing is left to refuse."""
    reported: Mapping[int, int] | None = None
    """What the subscription was last moved to."""

    async def run(self) -> None:
        """Export once, or until cancelled."""
        import asyncio  # noqa: PLC0415 - not needed to print help

        from headgate.client.own_subscription import open_own_subscription  # noqa: PLC0415
        from headgate.lakehouse.exporter import Exporter  # noqa: PLC0415
        from headgate.reading.topic_position import beginning  # noqa: PLC0415

        async with AsyncExitStack() as opened:
            source = await opened.enter_async_context(self.context.open_topic(self.topic))
            table = await asyncio.to_thread(
                self.open_table, self.table, beginning(source.description, source.ledger_id), self.rows
            )
            exporter = Exporter(source, table, self.rows, commit_bytes=self.commit_bytes, skip_pruned=self.skip_pruned)
            await exporter.plan()
            admin = None
            if self.subscription is not None:
                admin = await opened.enter_async_context(self.context.open_admin())
                await open_own_subscription(admin, self.topic, source.description.topic_id, self.subscription)
            self.exporter = exporter
            await self._export(exporter, admin)
            while self.follow:
                await self.context.pause(self.interval)
                try:
                    await self._export(exporter, admin)
                except (NoLeaderError, StoreUnavailableError) as error:
                    click.echo(f"headgate: waiting {self.interval:g} s: {error}", err=True)

    async def _export(self, exporter: Exporter, admin: Admin | None) -> None:
        """Export what is stored now, and move the subscription behind it."""
        now, starts = await exporter.plan()
        before = exporter.records
        segments = now.topic.segments
        total = before + sum(each.next_offset - starts.get(each.segment, each.next_offset) for each in segments)
        with ProgressLine(lambda: f"{exporter.records} of {total} records", total, sys.stderr) as progress:
            await exporter.run(now, starts, lambda: progress.advance_to(exporter.records))
        if admin is not None and self.subscription is not None and self.reported != exporter.reached:
            # Retention may have deleted complete segments meanwhile.
            kept = [each.segment for each in (await admin.describe_topic(self.topic)).segments]
            positions = {segment: at for segment, at in exporter.reached.items() if segment in kept}
            topic_id, point = now.topic.topic_id, (now.chunk, now.term_id)
            await admin.seek(self.topic, self.subscription, positions=positions, point=point, topic_id=topic_id)
            self.reported = exporter.reached
        if self.follow and exporter.records > before:
            click.echo(f"headgate: exported {plural(exporter.records - before, 'record')}", err=True)

    def report(self, exporter: Exporter) -> None:
        found = {
            "topic": self.topic,
            "table": self.table,
            "records": exporter.records,
            "commits": exporter.commits,
            "unfit": self.rows.unfit,
            "first_unfit": self.rows.first_unfit,
            "without_timestamp": self.rows.without_timestamp,
            "next_offsets": exporter.reached,
            "pruned": exporter.pruned,
        }
        text = f"exported {plural(exporter.records, 'record')} in {plural(exporter.commits, 'commit')}"
        if self.rows.unfit:
            fit = f"{plural(self.rows.unfit, 'value')} that the schema does not fit"
            text += f"; only in column value: {fit}, first {{first_unfit}}"
        if self.rows.without_timestamp:
            text += f"; null: {plural(self.rows.without_timestamp, 'timestamp')} behind the year 9999"
        self.context.report(found, text.format(**found))


def _prepared(kind: str, schema: Path | None, *, by_day: bool) -> tuple[OpenTable, TableRows]:
    """Return what opens a table, and its columns. Raises HeadgateError: no library, or a wrong schema."""
    import msgspec  # noqa: PLC0415 - not needed to print help

    try:
        open_table: OpenTable = getattr(import_module(f"headgate.lakehouse.{kind}"), KINDS[kind])
        from headgate.lakehouse.table_rows import TableRows  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise HeadgateError(f"export --to {kind} needs {error.name}: {install_extra('lakehouse')}") from error
    try:
        types = None if schema is None else msgspec.json.decode(schema.read_bytes(), type=dict[str, str])
        return open_table, TableRows(types, by_day=by_day)
    except UNREADABLE_JSON as error:
        raise ConfigError(f"{schema} is not a JSON object of names and types: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{schema}: {error}") from None
