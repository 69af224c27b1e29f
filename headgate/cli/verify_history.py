"""`headgate verify-history`: judge what programs have recorded."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.option_types import FilePath
from headgate.cli.terminal.output import print_table
from headgate.client_history.judge import fault_of, judge
from headgate.errors import HeadgateError
from headgate.model.text import UNREADABLE_JSON

SHOWN = 20
"""Violations in the table; --json has all."""


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file. A last line without an end is left out: a kill has cut it. Raises HeadgateError."""
    events = []
    data = path.read_bytes()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
            fault = fault_of(event)
        except UNREADABLE_JSON as error:
            fault = str(error)
        if fault is not None:
            raise HeadgateError(f"{path}, line {number}: {fault}")
        events.append(event)
    return events


@command(
    "headgate verify-history producer.jsonl billing-1.jsonl billing-2.jsonl",
    "headgate verify-history --complete producer.jsonl billing-1.jsonl billing-2.jsonl",
    asks_cluster=False,
)
@click.argument("files", nargs=-1, required=True, type=FilePath(), metavar="FILE…")
@click.option("--complete", is_flag=True, help="Every subscription has read everything: what it did not get is lost.")
def verify_history(context: CommandContext, files: tuple[Path, ...], complete: bool) -> None:
    """Judge what producers and consumers have recorded in FILEs, without asking a cluster.

    Nothing is lost, changed, stored twice, out of order within its key, or delivered again after its acknowledgement.
    Programs record with headgate.client_history.recorder.HistoryRecorder, or write the lines themselves.
    """
    read = {path: read_events(path) for path in files}
    for path in [path for path, events in read.items() if not events]:
        click.echo(f"{path} has no event: what its program had to get is judged only by the other files", err=True)
    events = list(chain(*read.values()))
    found = judge(events, complete=complete)
    if not context.printed_as_json([each._asdict() for each in found]) and found:
        print_table(found[0]._fields, found[:SHOWN])
    if found:
        rules = ", ".join(f"{count} {rule}" for rule, count in Counter(each.rule for each in found).items())
        raise HeadgateError(f"violations: {rules}")
    counts = Counter(each["event"] for each in events)
    readers = len({(each["topic"], each["subscription"]) for each in events if "subscription" in each})
    text = f"no violation: {counts['send']} records sent, {counts['delivery']} deliveries to {readers} subscriptions"
    click.echo(text, err=True)
