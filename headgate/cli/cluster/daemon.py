"""`headgate daemon` and `headgate shard`: the daemons of the cluster, their maintenance, and what each leads."""

import click

from headgate.cli.completion import complete_daemon
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table


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
