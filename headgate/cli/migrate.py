"""`headgate migrate`: take over the positions of another system."""

import click

from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table
from headgate.errors import HeadgateError


@click.group()
def migrate() -> None:
    """Take over the positions of another system."""


@command(
    "headgate migrate kcl billing-app --stream orders --subscription billing --dry-run",
    "headgate migrate kcl billing-app --stream orders --subscription billing",
    group=migrate,
)
@click.argument("table")
@click.option("--stream", required=True, help="Name of the Kinesis stream.")
@click.option("--subscription", required=True, help="A new subscription, which gets the positions.")
@click.option("--topic", help="External topic of the stream.  [default: the stream's name]")
@click.option("--dry-run", is_flag=True, help="Only show what the leases say.")
@click.option("--trust-table", is_flag=True, help="TABLE is of the stream, although nothing in it shows that.")
def kcl(
    context: CommandContext,
    table: str,
    stream: str,
    subscription: str,
    topic: str | None,
    dry_run: bool,
    trust_table: bool,
) -> None:
    """Continue where a KCL application stopped, whose leases are in TABLE of DynamoDB.

    Stop all its workers first. The shards of the stream are imported, and the subscription gets the checkpoint of each
    lease. The command ends by comparing both, and can be repeated. AWS' credentials and region are in the environment.
    """
    from headgate.kinesis import migration  # noqa: PLC0415 - an extra
    from headgate.kinesis.stream import KinesisStream  # noqa: PLC0415

    async def run() -> list[migration.MigratedShard]:
        source = KinesisStream(None, stream)
        try:
            return await migration.migrate(
                context.client_config(),
                source,
                await migration.read_tables(table),
                topic=topic or stream,
                subscription=subscription,
                dry_run=dry_run,
                trusted=trust_table,
                report=lambda text: click.echo(text, err=True),
            )
        finally:
            source.close()

    shards = context.run(run())
    if not context.printed_as_json(shards):
        shown = 2 if dry_run else 3
        rows = [(each.shard, each.kcl or "TRIM_HORIZON", each.headgate or "TRIM_HORIZON")[:shown] for each in shards]
        print_table(("shard", "KCL", "headgate")[:shown], rows)
    different = [each.shard for each in shards if each.kcl != each.headgate]
    if different and not dry_run:
        raise HeadgateError(f"headgate and {table} differ in {', '.join(different)}: run the command again")
