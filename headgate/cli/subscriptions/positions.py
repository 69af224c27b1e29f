"""`headgate subscription export` and `import`: save the positions of a subscription, and move it there again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, BinaryIO

import click

from headgate.cli.arguments import require_consent, subscription_argument, topic_argument, yes_option
from headgate.cli.context import CommandContext, command
from headgate.cli.subscriptions.position_file import (
    MAX_FILE_BYTES,
    PositionFileError,
    decode_positions,
    positions_to_restore,
    saved_positions,
)
from headgate.cli.subscriptions.seek import move_subscription
from headgate.cli.terminal.output import print_json
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate import Admin, SubscriptionInfo, TopicInfo


async def _described(admin: Admin, topic: str, name: str) -> tuple[TopicInfo, SubscriptionInfo]:
    subscription = await admin.describe_subscription(topic, name)
    return await admin.describe_topic(topic), subscription


@command("headgate subscription export orders billing > billing.json", prints_json=False)
@topic_argument
@subscription_argument
def export(context: CommandContext, topic: str, name: str) -> None:
    """Print the positions of SUBSCRIPTION of TOPIC.

    The output is one JSON document, for `headgate subscription import`. A position is the first record of a segment
    that is not acknowledged. Records above it that a QUEUE, or one of several consumers of a segment, has acknowledged
    are not saved: after an import they are delivered again.
    """
    described, subscription = context.ask(lambda admin: _described(admin, topic, name))
    try:
        print_json(saved_positions(described, subscription, time.time_ns() // 1_000_000))
    except PositionFileError as error:
        raise HeadgateError(str(error)) from None


@command(
    "headgate subscription import orders billing billing.json --dry-run",
    "headgate subscription import orders billing billing.json --yes",
    "headgate subscription import orders audit billing.json",
    name="import",
)
@topic_argument
@subscription_argument
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@yes_option
def import_(context: CommandContext, topic: str, name: str, file: BinaryIO, dry_run: bool, yes: bool) -> None:
    """Move SUBSCRIPTION of TOPIC to exported positions.

    It moves as with `seek`, while its consumers run. FILE (standard input by default) is the output of `headgate
    subscription export` for any subscription of the same topic. Segments that were created since then start at their
    first record. If a position does not fit, nothing is moved.

    The previous positions are lost. On a terminal, the command shows what would move and asks first. Elsewhere it
    needs --yes.
    """
    require_consent(context, yes=yes, dry_run=dry_run)
    try:
        saved = decode_positions(file.read(MAX_FILE_BYTES + 1))
        described, subscription = context.ask(lambda admin: _described(admin, topic, name))
        positions = positions_to_restore(saved, described, subscription)
    except PositionFileError as error:
        raise click.BadParameter(str(error), param_hint="FILE") from None
    move_subscription(context, topic, name, {"positions": positions}, dry_run=dry_run, yes=yes)
