"""`headgate cluster set-shards`: more shards while the cluster runs."""

import click

from headgate.cli.context import CommandContext, command


@command("headgate cluster set-shards 16 --dry-run", "headgate cluster set-shards 16", name="set-shards")
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
        f"{twice} of them are looked for in more than one place",
    )
