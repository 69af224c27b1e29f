"""`headgate cluster`: what the daemons of a cluster have in common."""

import click

from headgate.cli.cluster.set_shards import set_shards
from headgate.cli.context import CommandContext, command
from headgate.errors import HeadgateError


@click.group()
def cluster() -> None:
    """Raise the feature level of the cluster after an upgrade, and give it more shards."""


cluster.add_command(set_shards)


@command("headgate cluster upgrade --dry-run", "headgate cluster upgrade", group=cluster)
@click.option("--dry-run", is_flag=True, help="Only show the level, which one is possible, and what prevents it.")
def upgrade(context: CommandContext, dry_run: bool) -> None:
    """Raise the feature level to the newest one, once every daemon is of a version that supports it.

    New versions write nothing that older ones cannot read until then, so each daemon can go back. From then on, daemons
    of older versions are refused, and the level never falls. The daemons learn of it within seconds, without a restart.
    Needs the role administrator for all topics.
    """
    found = context.ask(lambda admin: admin.describe_cluster(blocked=True)).feature_level
    if found is None:
        raise HeadgateError("the daemon that answered has not heard of the feature level yet: try again")
    if not dry_run and found.newest > found.level:
        from msgspec.structs import replace  # noqa: PLC0415 - a command that only shows its help must not import it

        wanted = found.newest
        context.ask(lambda admin: admin.raise_feature_level(wanted))
        found = replace(found, level=wanted, problems=())
    if context.printed_as_json(found):
        return
    text = f"feature level {found.level}, "
    if found.newest == found.level:
        text += "the newest that the daemons support"
    elif found.problems:
        text += f"and level {found.newest} is not possible yet:"
    else:
        text += f"and every daemon supports level {found.newest}: headgate cluster upgrade"
    click.echo("\n  ".join((text, *found.problems)))
