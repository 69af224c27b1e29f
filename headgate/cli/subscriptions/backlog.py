"""`headgate backlog`: show unacknowledged records, their age and the time to drain.

``~`` marks an estimate, ``?`` a value that is not known yet, ``-`` a value that does not exist, or that cannot be known
because the topic is stored elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import click

from headgate.cli.arguments import NO_SUBSCRIPTIONS, of_any_subscription
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import format_bytes, outlook_text, print_table, rate_text
from headgate.model.time_text import duration
from headgate.protocol.backlog import estimate_drain, records_text
from headgate.views.subscriptions import BacklogInfo, Outlook, SegmentBacklogInfo

COLUMNS: Final = ("topic", "subscription", "type", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
NUMBERS: Final = ("segment", "records", "bytes", "oldest", "in/s", "acked/s", "drained in")
DROP: Final = ("type", "bytes", "in/s", "acked/s", "oldest")
STALE_SECONDS: Final = 5.0
"""The age of older counts is shown."""
NOTES: Final = 5
"""Maximum number of external topics for which the reason of a missing value is shown."""


def subscription_row(backlog: BacklogInfo) -> list[str]:
    kind = "?" if backlog.subscription_type is None else backlog.subscription_type.lower()
    outlook = backlog.outlook, backlog.drained_in_seconds
    return [backlog.topic, backlog.subscription, kind, *_cells(backlog, backlog, *outlook)]


def segment_row(part: SegmentBacklogInfo, whole: BacklogInfo) -> list[str]:
    tracked = whole.outlook != "not_tracked"
    outlook = estimate_drain(part.records, part.stored_per_second, part.acknowledged_per_second, tracked=tracked)
    name = f"  segment {part.segment}" + ("" if part.label is None else f" {part.label}")
    return ["", name, "sealed" if part.sealed else "active", *_cells(part, whole, *outlook)]


def _cells(
    backlog: BacklogInfo | SegmentBacklogInfo, whole: BacklogInfo, outlook: Outlook, seconds: float | None
) -> list[str]:
    oldest = "-" if not backlog.records or (whole.external and whole.counted_by == "spark") else "?"
    if backlog.oldest_ms is not None:
        oldest = duration(max(0, whole.as_of_ms - backlog.oldest_ms) / 1000)
    if backlog.records is None:
        return ["not tracked" if outlook == "not_tracked" else "-", "-", oldest, "-", "-", "-"]
    return [
        records_text(backlog.records, backlog.estimated),
        "-" if backlog.size_bytes is None else format_bytes(backlog.size_bytes),
        oldest,
        rate_text(backlog.stored_per_second),
        rate_text(backlog.acknowledged_per_second),
        outlook_text(outlook, seconds),
    ]


def counted_lines(backlogs: Sequence[BacklogInfo], now_ms: int) -> list[str]:
    """Return notes on how the backlogs were counted; none if Spark has just counted all of them."""
    by_leader = sum(_needs_spark(backlog) for backlog in backlogs)
    age_seconds = max((now_ms - each.as_of_ms for each in backlogs), default=0) / 1000
    lines: list[str] = []
    if by_leader:
        lines.append(
            f"{by_leader} of {len(backlogs)} counted by the leader: no count of Spark has arrived, "
            "so their ages and rates are unknown"
        )
    elif age_seconds > STALE_SECONDS:
        lines.append(f"as of {duration(age_seconds)} ago")
    notes = sorted({(each.topic, each.failing, each.unknown_reason) for each in backlogs if each.unknown_reason})
    for topic, failing, reason in notes[:NOTES]:
        lines.append(f"{topic} {'could not be counted' if failing else 'is only partly known'}: {reason}")
    if len(notes) > NOTES:
        lines.append(f"and {len(notes) - NOTES} more; --json has all reasons")
    return lines


def _needs_spark(backlog: BacklogInfo) -> bool:
    """Return whether the leader counted because Spark has not answered. External topics give their own reason."""
    explained = bool(backlog.unknown_reason) or (backlog.external and backlog.records == 0)
    return backlog.counted_by == "leader" and not explained


def trend(backlog: BacklogInfo | SegmentBacklogInfo) -> str:
    """Return ▲, ▼ or = by the rates; empty where one of them is not known."""
    stored, acknowledged = backlog.stored_per_second, backlog.acknowledged_per_second
    if stored is None or acknowledged is None:
        return ""
    return "=" if stored == acknowledged else "▲" if stored > acknowledged else "▼"


@command("headgate backlog orders", "headgate backlog orders --watch", "headgate backlog --json")
@of_any_subscription
@click.option("--segments", "by_segment", is_flag=True, help="Add a row for each segment.")
@click.option("--watch", is_flag=True, help="Update every 2 seconds until Ctrl-C.")
def backlog(context: CommandContext, topic: str | None, name: str | None, by_segment: bool, watch: bool) -> None:
    """Show what SUBSCRIPTION of TOPIC, all its subscriptions, or those of all topics have not acknowledged.

    "oldest" is the age of the oldest unacknowledged record. Rates are averages over about one minute. "drained in" is
    backlog ÷ (acked/s - in/s), or "never" if the backlog does not shrink; without "- in/s" for what readers acknowledge
    within 10 s, because they keep up. "?" marks values that are not known yet, "~" an estimate: consumers that share a
    segment have different positions in it. With --watch and --json, each update is one line of JSON.

    The backlog of an external topic comes from its tables (setting drain.external), as of their last count: a table is
    read as a whole, so not for every request. Values that no table provides are "-" (null in JSON), with the reason.

    Spark counts incrementally. `headgate drain verify` counts a whole ledger again and compares.
    """
    show = partial(_print, by_segment=by_segment)
    if watch:
        context.watch(lambda admin: admin.backlog(topic, name), show, context.watch_interval_seconds)
        return
    context.show(lambda admin: admin.backlog(topic, name), show, empty=NO_SUBSCRIPTIONS)


def _print(found: list[BacklogInfo], *, by_segment: bool) -> None:
    rows = []
    for each in found:
        rows.append([*subscription_row(each), trend(each)])
        if by_segment:
            rows += [[*segment_row(part, each), trend(part)] for part in each.segments]
    print_table((*COLUMNS, ""), rows, numbers=NUMBERS, drop=DROP)
    for line in counted_lines(found, time.time_ns() // 1_000_000):
        click.echo(line, err=True)
