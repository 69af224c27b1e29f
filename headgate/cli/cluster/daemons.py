"""`headgate cluster`, `headgate daemon` and `headgate shard`: what daemons have in common, and what each leads."""

import click

from headgate.cli.arguments import complete_daemon
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table
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


@click.group()
def daemon() -> None:
    """List daemons, and empty one before its maintenance."""


@command("headgate daemon list", "headgate daemon list --json", group=daemon, name="list")
def list_(context: CommandContext) -> None:
    """List the live daemons, with the shards that each leads.

    "settled": it gets its share of the shards; "settling": it has not been live for long enough; "maintenance" and
    "leaving": it gives its shards away; "no_broker" and "no_store": it does so too, because it does not reach the
    broker, or cannot write to the store.
    """
    found = context.ask(lambda admin: admin.describe_cluster(blocked=True))
    if context.printed_as_json(found.daemons):
        return
    led = {each.daemon: [str(x.shard) for x in found.shards if x.daemon == each.daemon] for each in found.daemons}
    print_table(
        ("daemon", "state", "spread", "version", "shards"),
        [(x.daemon, x.state, x.spread, x.version, ", ".join(led[x.daemon]) or "-") for x in found.daemons],
        drop=("version",),
    )


@command("headgate daemon drain headgate-b", "headgate daemon drain headgate-b --off", group=daemon, name="drain")
@click.argument("name", metavar="DAEMON", shell_complete=complete_daemon)
@click.option("--off", is_flag=True, help="End the maintenance: the daemon gets shards again.")
def drain(context: CommandContext, name: str, off: bool) -> None:
    """Empty DAEMON before its maintenance: it transfers its shards, and gets none until --off.

    The command returns once this is stored, and says which daemons can take the shards. It outlasts restarts. SIGTERM
    transfers all shards too, so a short restart needs no maintenance. Needs the role administrator for all topics.
    """
    context.ask(lambda admin: admin.set_maintenance(name, on=not off))
    done = f"the maintenance of daemon {name} has ended"
    if not off:
        effect = context.ask(lambda admin: admin.describe_cluster(blocked=True)).maintenance_effect(name)
        done = f"daemon {name} is in maintenance; {effect}"
    context.report({"daemon": name, "maintenance": not off}, done)


@click.group()
def shard() -> None:
    """List shards with their leaders, and transfer one to another daemon.

    Daemons spread the shards evenly on their own. A transfer is for exceptions.
    """


@command("headgate shard list", "headgate shard list --json", group=shard, name="list")
def list_shards(context: CommandContext) -> None:
    """List the shards of the cluster, with the daemon that leads each. "-": no daemon is known to."""
    found = context.ask(lambda admin: admin.describe_cluster(blocked=True)).shards
    if context.printed_as_json(found):
        return
    print_table(("shard", "term", "leader"), [(each.shard, each.leader_epoch, each.daemon) for each in found])


@command(
    "headgate shard transfer 3 headgate-b", "headgate shard transfer 3 headgate-b --json", group=shard, name="transfer"
)
@click.argument("number", metavar="SHARD", type=click.IntRange(min=0))
@click.argument("daemon", metavar="DAEMON", shell_complete=complete_daemon)
def transfer(context: CommandContext, number: int, daemon: str) -> None:
    """Make DAEMON the leader of SHARD, without a pause for its clients.

    DAEMON reads the ledger before the present leader stops. The shard then stays there as long as DAEMON lives and is
    not in maintenance; others make up for it. If DAEMON leads it already, it stays there in the same way. Needs
    the role administrator for all topics.
    """
    context.ask(lambda admin: admin.transfer_shard(number, daemon))
    context.report({"shard": number, "daemon": daemon}, f"daemon {daemon} leads shard {number}")
