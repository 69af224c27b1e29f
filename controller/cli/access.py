"""`headgate access` explains access decisions and configures the broker; `headgate http` makes tokens.

Reads the daemon's settings and the access file, and connects to nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.cli.run import config_option, read_settings
from controller.local.private_file import OWNER_ONLY
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.option_types import FilePath
from headgate.cli.terminal.output import print_table
from headgate.errors import ConfigError
from shard.access.broker_rules import BrokerFormat, export
from shard.access.quotas import QUOTAS, limit_text
from shard.access.rules import AccessRules, Act, Action, Role
from web.tokens import new_token, read_tokens, token_line

if TYPE_CHECKING:
    from controller.settings.load import Settings


@click.group()
def access() -> None:
    """Show, explain and export who may do what.

    The rules are in the file that [access] file names in the daemon's settings.
    """


@command(
    "headgate access check shop produce orders --config /etc/headgate/headgate.toml",
    "headgate access check billing consume orders billing --config headgate.toml --json",
    "headgate access check operator administer orders --config headgate.toml",
    group=access,
    asks_cluster=False,
)
@click.argument("user")
@click.argument("action", type=click.Choice([action.value for action in Action]))
@click.argument("topic", required=False)
@click.argument("subscription", required=False)
@config_option
def check(
    context: CommandContext, user: str, action: str, topic: str | None, subscription: str | None, config: Path
) -> None:
    """Explain whether USER may do ACTION with SUBSCRIPTION of TOPIC; without TOPIC: with all topics.

    The quotas of the user are shown too. Devices have none, because daemons do not see who publishes.
    The exit code is 0 if it is allowed, and 1 if it is denied.
    """
    rules = _rules(read_settings(config))
    decision = rules.judge(user, Act(Action(action), topic, subscription, on_all_topics=topic is None))
    quotas = _quotas(rules, user)
    if not context.printed_as_json({"allowed": decision.allowed, "reason": decision.reason, "quotas": quotas}):
        click.echo(f"{'allowed' if decision.allowed else 'denied'}: {decision.reason}")
        if quotas:
            click.echo("quotas: " + ", ".join(map(" ".join, quotas.items())))
    if not decision.allowed:
        raise click.exceptions.Exit(1)


@command("headgate access list --config /etc/headgate/headgate.toml", group=access, name="list", asks_cluster=False)
@config_option
def list_users(context: CommandContext, config: Path) -> None:
    """List the rights and the quotas of all users."""
    rules = _rules(read_settings(config))
    rows = [
        (user, right.role.value, ", ".join(right.topics), ", ".join(right.subscriptions))
        for user, rights in sorted(rules.users.items())
        for right in rights
    ]
    columns = ("user", "role", "topics", "subscriptions")
    quotas = [{"user": user} | found for user in sorted(rules.users) if (found := _quotas(rules, user))]
    documents = {"rights": [dict(zip(columns, row, strict=True)) for row in rows], "quotas": quotas}
    if not context.printed_as_json(documents):
        print_table(columns, rows)
        click.echo()
        values = [tuple(row.values()) for row in quotas]
        print_table(("user", *QUOTAS), values, numbers=QUOTAS, drop=("producers", "consumers", "subscriptions"))


@command(
    "headgate access export --config /etc/headgate/headgate.toml > /etc/mosquitto/headgate.acl",
    "headgate access export --config headgate.toml --format dynamic-security > dynamic-security.json",
    group=access,
    name="export",
    prints_json=False,
    asks_cluster=False,
)
@click.option(
    "--format",
    "broker_format",
    type=click.Choice([each.value for each in BrokerFormat]),
    default=BrokerFormat.ACL_FILE.value,
    show_default=True,
    help="mosquitto: a file for acl_file. dynamic-security: the plugin's file, to which you add passwords.",
)
@config_option
def export_rules(_: CommandContext, broker_format: str, config: Path) -> None:
    """Print the MQTT broker's configuration for all users and for the daemons.

    The broker vouches for the user of each message, and enforces the rights of devices. Export again
    and reload the broker whenever the access file changes.
    """
    settings = read_settings(config)
    if settings.broker.username is None:
        raise ConfigError(f"{config}: $.broker.username is not set; the broker must know the daemons by a user name")
    rules = _rules(settings)
    text = export(
        rules, BrokerFormat(broker_format), cluster=settings.cluster.name, daemon_user=settings.broker.username
    )
    click.echo(text, nl=False)


def _quotas(rules: AccessRules, user: str) -> dict[str, str]:
    """Return the quotas of ``user``; none if it is unknown or only a device, for which they do not hold."""
    if all(right.role is Role.DEVICE for right in rules.users.get(user, ())):
        return {}
    return {quota: limit_text(rules.limits_of(user).of(quota)) for quota in QUOTAS}


def _rules(settings: Settings) -> AccessRules:
    if settings.access.file is None:
        raise ConfigError("access control is off ([access] open = true): name a file in [access] file first")
    return settings.access.rules()


@click.group()
def http() -> None:
    """Make tokens for the daemons' HTTP server."""


@command(
    "headgate http token prometheus --file /etc/headgate/http-tokens > /etc/prometheus/headgate-token",
    "headgate http token alice --file http-tokens",
    group=http,
    prints_json=False,
    asks_cluster=False,
)
@click.argument("name")
@click.option(
    "--file",
    "path",
    type=FilePath(dir_okay=False),
    required=True,
    help="The daemon's [http] tokens_file; created for its owner only if it is missing.",
)
def token(_: CommandContext, name: str, path: Path) -> None:
    """Make a token for NAME, add its hash to FILE, and print the token once.

    NAME says in FILE who holds the token. A daemon accepts it after SIGHUP. To revoke it, delete its
    line. To replace it, make another one for NAME, and delete the first line later.
    """
    made = new_token()
    line = f"{token_line(name, made)}\n"
    if path.exists() and (before := path.read_bytes()):
        read_tokens(path, "--file")
        line = line if before.endswith(b"\n") else f"\n{line}"
    # In one write, so that a daemon that reads the file finds whole lines.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OWNER_ONLY)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    click.echo(made)
    click.echo(f"added {name} to {path}; send SIGHUP to the daemons", err=True)
