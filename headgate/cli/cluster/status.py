"""`headgate status`: the whole cluster on one screen of 80 columns, once or again and again.

What is wrong comes before totals, and a daemon that is not ready before the others if not all fit. ``?`` marks what is
not known, because the daemon did not answer or is of an earlier version.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import click

from headgate.cli.cluster.judgements import wrapped
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.option_types import Seconds
from headgate.cli.terminal.output import NONE, UNKNOWN, outlook_text, print_table, rate_text
from headgate.model.text import plural
from headgate.model.time_text import duration, time_of_day
from headgate.protocol.backlog import records_text
from headgate.views.cluster import ClusterInfo, DaemonInfo, ShardInfo, SubscriptionSummary

MAX_DAEMONS: Final = 6
MAX_DEGRADED: Final = 6
MAX_SUBSCRIPTIONS: Final = 8
"""What is shown of each; the rest is counted."""
COLUMNS: Final = ("topic", "subscription", "consumers", "in/s", "acked/s", "backlog", "drained in", "blocked")
NUMBERS: Final = COLUMNS[2:7]
DROP: Final = ("consumers", "in/s", "acked/s")
_WORST_FIRST: Final = ("unreachable", "not_ready", "degraded", "ready")
TIMEOUT_SECONDS: Final = 4.0
"""A person who looks because something is broken must not wait: with its start, the command ends within 5 seconds."""
SHORTEST_INTERVAL_SECONDS: Final = 0.5
"""A daemon collects at most once a second."""


def report_lines(cluster: ClusterInfo) -> list[str]:
    return [*wrapped(_headline(cluster), "  "), "", *_daemons(cluster), *_degraded(cluster), "", *_totals(cluster)]


def subscription_rows(subscriptions: Iterable[SubscriptionSummary], as_of_ms: int) -> list[list[str]]:
    """Return the cells of `COLUMNS`: first those that have been blocked longest, then the largest backlogs."""

    def urgency(each: SubscriptionSummary) -> tuple[bool, int, int, str, str]:
        since_ms = each.blocked_since_ms or as_of_ms
        return not each.blocked_segments, since_ms, -(each.backlog_records or 0), each.topic, each.subscription

    return [_cells(each, as_of_ms) for each in sorted(subscriptions, key=urgency)[:MAX_SUBSCRIPTIONS]]


def _cells(row: SubscriptionSummary, as_of_ms: int) -> list[str]:
    tracked = row.outlook != "not_tracked"
    away = f" +{row.disconnected_consumers} away" if row.disconnected_consumers else ""
    return [
        row.topic,
        row.subscription,
        f"{row.connected_consumers}{away}",
        rate_text(row.stored_per_second),
        rate_text(row.acknowledged_per_second) if tracked else NONE,
        _records(row.backlog_records) if tracked else NONE,
        outlook_text(row.outlook, row.drained_in_seconds),
        _blocked(row, as_of_ms),
    ]


def _blocked(row: SubscriptionSummary, as_of_ms: int) -> str:
    if not row.blocked_segments:
        return NONE
    seconds = None if row.blocked_since_ms is None else max(0, as_of_ms - row.blocked_since_ms) / 1000
    waited = UNKNOWN if seconds is None else duration(seconds)
    return f"{plural(row.blocked_segments, 'segment')} for {waited} by {_blockers(row)}"


def led_shards(shards: Iterable[ShardInfo]) -> str:
    """Return shards with their terms: ``0-2 (term 1), 3 (term 4)``; neighbors in one term are a range."""
    runs: list[tuple[int, int, int]] = []
    for each in sorted(shards, key=lambda each: each.shard):
        if runs and runs[-1][1] == each.shard - 1 and runs[-1][2] == each.leader_epoch:
            runs[-1] = (runs[-1][0], each.shard, each.leader_epoch)
        else:
            runs.append((each.shard, each.shard, each.leader_epoch))
    return ", ".join(f"{first if first == last else f'{first}-{last}'} (term {term})" for first, last, term in runs)


def _headline(cluster: ClusterInfo) -> str:
    without = sum(each.daemon is None for each in cluster.shards)
    state = "complete" if cluster.complete else "incomplete: totals lack what did not answer"
    state += "; degraded" if any(_degraded(cluster)) else ""
    led = "each has a leader" if not without else f"{without} without a leader"
    level = "" if cluster.feature_level is None else f"feature level {cluster.feature_level.level}, "
    return f"cluster {cluster.cluster}: {level}{plural(len(cluster.shards), 'shard')}, {led}; {state}"


def _daemons(cluster: ClusterInfo) -> Iterator[str]:
    shown = sorted(cluster.daemons, key=lambda each: (_WORST_FIRST.index(each.state), each.daemon))[:MAX_DAEMONS]
    for daemon in sorted(shown, key=lambda each: each.daemon):
        yield from wrapped(f"{daemon.daemon}  {_condition(daemon)}", "  ")
        led = [each for each in cluster.shards if each.daemon == daemon.daemon]
        yield from wrapped(f"  leads {led_shards(led) if led else 'no shard'}", "    ")
    if cluster.totals.daemons > len(shown):
        yield f"and {cluster.totals.daemons - len(shown)} more; see --json"
    without = [each for each in cluster.shards if each.daemon is None]
    if without:
        yield from wrapped(f"without a leader: {led_shards(without)}", "  ")


def _condition(daemon: DaemonInfo) -> str:
    up = UNKNOWN
    if daemon.started_at_ms is not None and daemon.as_of_ms is not None:
        up = duration((daemon.as_of_ms - daemon.started_at_ms) / 1000)
    url = daemon.url or "no URL"
    if daemon.state == "unreachable":
        return f"unreachable, {url}"
    return f"{daemon.state.replace('_', ' ')}, {daemon.version or UNKNOWN}, up {up}, {_drain_checks(daemon)}, {url}"


def _drain_checks(daemon: DaemonInfo) -> str:
    """Return whether Spark or published results answer; why they do not is among what is degraded."""
    found = next((each for each in daemon.components if each.component == "drain"), None)
    if found is None:
        return f"drain {UNKNOWN}"
    return f"drain {found.reason.partition(',')[0]}" if found.state == "ok" else "drain not ready"


def _degraded(cluster: ClusterInfo) -> Iterator[str]:
    found = [f"{each.daemon}: {each.problem}" for each in cluster.daemons if each.state == "unreachable"]
    found += [
        f"{daemon.daemon} {each.component} {each.state}: {each.reason}"
        for daemon in cluster.daemons
        for each in daemon.components
        if each.state != "ok"
    ]
    if found:
        yield ""
        yield "degraded:"
    for each in found[:MAX_DEGRADED]:
        yield from wrapped(f"  {each}", "    ")
    if len(found) > MAX_DEGRADED:
        yield f"  and {len(found) - MAX_DEGRADED} more; see --json"


def _totals(cluster: ClusterInfo) -> Iterator[str]:
    totals = cluster.totals
    yield (
        f"{plural(totals.topics, 'topic')}, {plural(totals.active_segments, 'active segment')}, "
        f"{totals.sealed_segments} sealed; {plural(totals.subscriptions, 'subscription')}, "
        f"{plural(totals.connected_consumers, 'consumer')}"
        + (f", {totals.disconnected_consumers} away" if totals.disconnected_consumers else "")
    )
    stored, acknowledged = rate_text(totals.stored_per_second), rate_text(totals.acknowledged_per_second)
    yield f"{stored} records/s in, {acknowledged}/s acknowledged, backlog {_records(totals.backlog_records)} records"


def _records(number: int | None) -> str:
    return UNKNOWN if number is None else records_text(number, False)


def _blockers(row: SubscriptionSummary) -> str:
    if not row.blocking_segments:
        return UNKNOWN
    more = ", …" if row.draining_segments > len(row.blocking_segments) else ""
    return f"segment{'s' * (len(row.blocking_segments) > 1)} {', '.join(map(str, row.blocking_segments))}{more}"


@command("headgate status", "headgate status --watch", "headgate status --json", "headgate status --timeout 30")
@click.option(
    "--watch",
    "interval_seconds",
    type=Seconds(SHORTEST_INTERVAL_SECONDS),
    is_flag=False,
    flag_value="2",
    metavar="[SECONDS]",
    help="Show it again after each pause of SECONDS (2) until Ctrl-C.",
)
def status(context: CommandContext, interval_seconds: float | None) -> None:
    """Show daemons, leaders, what is degraded, and the subscriptions.

    One daemon answers for the cluster and asks the others; "unreachable" are those that do not answer it.
    Subscriptions that have been blocked longest come first, then those with the largest backlog. Spark counts the
    acknowledged records/s, leaders the other numbers. "drained in" is backlog ÷ (acked/s - in/s), or "never" if the
    backlog does not shrink; without "- in/s" for what readers acknowledge within 10 s, because they keep up.

    With --watch, a terminal is drawn again in place, and each answer has its time. With --json too, each answer is one
    line. While no leader answers, --watch says so on standard error.

    Waits 4 seconds for an answer, unless --timeout says otherwise. Exit code 1 if no leader answers: the error says
    which shards have none.
    """
    context.reply_timeout_seconds = TIMEOUT_SECONDS
    if interval_seconds is not None:
        context.watch(lambda admin: admin.describe_cluster(), _print_with_time, interval_seconds)
        return
    context.show(lambda admin: admin.describe_cluster(), _print)


def _print_with_time(found: ClusterInfo) -> None:
    click.echo(f"{time_of_day(found.as_of_ms)}, by {found.daemon}")
    _print(found)


def _print(found: ClusterInfo) -> None:
    for line in report_lines(found):
        click.echo(line)
    if found.subscriptions:
        click.echo("")
        rows = subscription_rows(found.subscriptions, found.as_of_ms)
        print_table(COLUMNS, rows, numbers=NUMBERS, drop=DROP)
        if len(found.subscriptions) > len(rows):
            click.echo(f"and {len(found.subscriptions) - len(rows)} more; see --json")
