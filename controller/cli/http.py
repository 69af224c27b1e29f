"""`headgate http`: tokens for metrics and status. Changes only the file of tokens, and connects to nothing."""

import os
from pathlib import Path

import click

from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.option_types import FilePath
from web.tokens import new_token, read_tokens, token_line

OWNER_ONLY = 0o600


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
