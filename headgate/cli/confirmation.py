"""Ask before a command destroys something.

Rules:

1. On a terminal the command shows what would go, and asks. Every answer but "y" changes nothing, and the exit code
   is 1.
2. Elsewhere it needs ``--yes``. Without it, it is wrong usage (exit code 2), found before a connection is opened.
3. ``--yes`` never asks. ``--dry-run`` only shows.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from headgate.cli.context import CommandContext
from headgate.errors import HeadgateError

Command = TypeVar("Command", bound=Callable[..., Any])

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask. Needed where no terminal can be asked.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would go.")


def require_consent(context: CommandContext, *, yes: bool, dry_run: bool) -> None:
    """Raise UsageError if the command would have to ask, and cannot."""
    if not (yes or dry_run or context.can_ask()):
        raise click.UsageError(
            "this destroys something, and there is no terminal to ask: add --yes, or --dry-run to see what would go"
        )


def ask_first(question: str, unchanged: str) -> None:
    """Ask ``question``; raise HeadgateError with the text ``unchanged`` unless the answer is yes."""
    if not click.confirm(question, err=True):
        raise HeadgateError(f"{unchanged}, because the answer was not y")
