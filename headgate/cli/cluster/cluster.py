"""`headgate cluster`: what the daemons of a cluster have in common."""

import click

from headgate.cli.context import CommandContext, command
from headgate.errors import HeadgateError


@click.group()
def cluster() -> None:
    """Raise the feature level of the cluster after an upgrade, and give it more shards."""


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


@command("headgate cluster set-shards 16 --dry-run", "headgate cluster set-shards 16", name="set-shards", group=cluster)
@click.argument("shards", metavar="N", type=click.IntRange(min=1))
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
def set_shards(context: CommandContext, shards: int, dry_run: bool) -> None:
    """Give the cluster N shards, more than it has. This cannot be undone.

    Topics stay where they are, with their records and consumers, and new ones are spread over all shards. The daemons
    follow within seconds, without a restart, and spread the new shards among themselves. From then on, a program that
    begins to use a name which can be on two shards asks both: one more round trip. Needs the role administrator for all
    topics.
    """
    twice = context.ask(lambda admin: admin.set_shards(shards, dry_run=dry_run))
    context.report(
        {"shards": shards, "dry_run": dry_run, "topics_with_several_places": twice},
        f"the cluster {'would get' if dry_run else 'gets'} {shards} shards; all topics stay where they are, and "
        f"{twice} of them {'is' if twice == 1 else 'are'} looked for in more than one place",
    )
