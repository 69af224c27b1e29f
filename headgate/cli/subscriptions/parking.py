"""`headgate subscription parked`, `resume` and `drop`: the parked keys of a STREAM.

A key is text. One that is not UTF-8 is shown as base64, as `headgate read` shows it, and given with ``--base64``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from headgate.cli.arguments import (
    base64_option,
    consent_options,
    destroy,
    key_bytes,
    of_subscription,
    require_consent,
    seen_before,
)
from headgate.cli.context import CommandContext, command
from headgate.cli.records.record_format import printable, put_text
from headgate.cli.terminal.output import print_table
from headgate.errors import HeadgateError
from headgate.model.text import plural
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate import ParkedKeyInfo

_key_argument = click.argument("key")


def _document(each: ParkedKeyInfo) -> dict[str, Any]:
    document: dict[str, Any] = {}
    put_text(document, "key", each.key)
    return msgspec.structs.asdict(each) | document


@command("headgate subscription parked orders billing", "headgate subscription parked orders billing --json")
@of_subscription
def parked(context: CommandContext, topic: str, name: str) -> None:
    """List the parked keys of SUBSCRIPTION of TOPIC, the oldest first.

    Their records go to the dead-letter topic, until the key is resumed or dropped.
    """
    found = [_document(each) for each in context.ask(lambda admin: admin.parked_keys(topic, name))]
    if not found:
        context.report(found, "no key is parked")
    elif not context.printed_as_json(found):
        print_table(
            ("key", "records", "since", "state", "reason"),
            [
                (
                    printable(each["key"]) + (" (base64)" if "key_encoding" in each else ""),
                    each["records"],
                    utc_minute(each["since_ms"]),
                    ("resuming" if each["records"] else "ending") if each["is_resuming"] else "parked",
                    printable(each["reason"]),
                )
                for each in found
            ],
            drop=("state",),
        )


@command("headgate subscription resume orders billing customer-7")
@of_subscription
@_key_argument
@base64_option
def resume(context: CommandContext, topic: str, name: str, key: str, *, is_base64: bool) -> None:
    """Deliver the parked records of KEY in order, and then newer ones.

    The consumer that reads the key begins within a heartbeat. The key stays parked until the records are processed.
    """
    wanted = key_bytes(key, is_base64=is_base64)
    context.ask(lambda admin: admin.resume_key(topic, name, wanted))
    report: dict[str, Any] = {}
    put_text(report, "key", wanted)
    context.report(
        report | {"resumed": True}, f"key {printable(report['key'])} of subscription {name} of {topic} is being resumed"
    )


@command(
    "headgate subscription drop orders billing customer-7 --dry-run",
    "headgate subscription drop orders billing customer-7 --yes",
)
@of_subscription
@_key_argument
@base64_option
@consent_options()
def drop(context: CommandContext, topic: str, name: str, key: str, *, is_base64: bool) -> None:
    """Give the parked records of KEY up, and deliver those that come from now on.

    What is in the dead-letter topic stays there, but cannot be resumed any more. On a terminal, the command says what
    is dropped and asks first. Elsewhere it needs --yes.
    """
    wanted = key_bytes(key, is_base64=is_base64)
    require_consent(context)
    seen = seen_before(context, topic, name)
    found = context.ask(lambda admin: admin.parked_keys(topic, name, wanted))
    if not found:
        raise HeadgateError(f"key {key} is not parked; see: headgate subscription parked {topic} {name}")
    report: dict[str, Any] = {"topic": topic, "subscription": name, "records": found[0].records}
    put_text(report, "key", wanted)
    records = plural(found[0].records, "parked record")
    which = f"key {printable(report['key'])} of subscription {name} of {topic}"
    destroy(
        context,
        report,
        f"{which} with {records}",
        dict,
        lambda admin: admin.resume_key(topic, name, wanted, drop=True),
        question=f"Drop the {records} of {which}?",
        done="dropped",
        seen=seen,
    )
