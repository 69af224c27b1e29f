"""`headgate shard`: which daemon leads each shard, and transfers to another one."""

import click

from headgate.cli.completion import complete_daemon
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import examples, print_table


@click.group(
    epilog=examples(
        "headgate shard list",
        "headgate shard transfer 3 headgate-b",
    ),
)
def shard() -> None:
    """List shards with their leaders, and transfer one to another daemon.

    Daemons spread the shards evenly on their own. A transfer is for exceptions.
    """


@command("headgate shard list", "headgate shard list --json", group=shard, name="list")
def list_(context: CommandContext) -> None:
    """List the shards of the cluster, with the daemon that leads each. "-": no daemon is known to."""
    found = context.ask(lambda admin: admin.describe_cluster(blocked=True)).shards
    if context.printed_as_json(found):
        return
    print_table(
        ("shard", "term", "leader"),
        [(str(each.shard), str(each.leader_epoch), each.daemon or "-") for each in found],
        numbers=("shard", "term"),
    )


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
    if not context.printed_as_json({"shard": number, "daemon": daemon}):
        click.echo(f"daemon {daemon} leads shard {number}", err=True)
