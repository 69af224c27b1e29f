"""Formats the state of a cluster for one screen of 80 columns. Pure.

What is wrong comes before totals, and a daemon that is not ready before the others if not all fit. ``?`` marks what is
not known, because the daemon did not answer or is of an earlier version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Final

from headgate.client.cluster.values import ClusterInfo, DaemonInfo, ShardInfo, SubscriptionSummary
from headgate.model.duration import duration
from headgate.protocol.backlog import records_text

WIDTH: Final = 80
MAX_DAEMONS: Final = 6
MAX_DEGRADED: Final = 6
MAX_BLOCKED: Final = 8
"""What is shown of each; the rest is counted."""
BLOCKED_COLUMNS: Final = ("topic", "subscription", "blocked", "since", "waits for")
UNKNOWN: Final = "?"
_WORST_FIRST: Final = ("unreachable", "not_ready", "degraded", "ready")


def report_lines(cluster: ClusterInfo) -> list[str]:
    """Return the lines about daemons, what is degraded, and totals."""
    return [*_wrapped(_headline(cluster), "  "), "", *_daemons(cluster), *_degraded(cluster), "", *_totals(cluster)]


def blocked_rows(subscriptions: Iterable[SubscriptionSummary], as_of_ms: int) -> list[list[str]]:
    """Return the cells of `BLOCKED_COLUMNS` for the subscriptions that have been blocked longest."""
    ordered = sorted(subscriptions, key=lambda each: (each.blocked_since_ms or as_of_ms, each.topic, each.subscription))
    return [
        [
            each.topic,
            each.subscription,
            _plural(each.blocked_segments, "segment"),
            UNKNOWN if each.blocked_since_ms is None else duration(max(0, as_of_ms - each.blocked_since_ms) / 1000),
            _blockers(each),
        ]
        for each in ordered[:MAX_BLOCKED]
    ]


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
    led = "each has a leader" if not without else f"{without} without a leader"
    return f"cluster {cluster.cluster}: {_plural(len(cluster.shards), 'shard')}, {led}; {state}"


def _daemons(cluster: ClusterInfo) -> Iterator[str]:
    shown = sorted(cluster.daemons, key=lambda each: (_WORST_FIRST.index(each.state), each.daemon))[:MAX_DAEMONS]
    for daemon in sorted(shown, key=lambda each: each.daemon):
        yield from _wrapped(f"{daemon.daemon}  {_condition(daemon)}", "  ")
        led = [each for each in cluster.shards if each.daemon == daemon.daemon]
        yield from _wrapped(f"  leads {led_shards(led) if led else 'no shard'}", "    ")
    if cluster.totals.daemons > len(shown):
        yield f"and {cluster.totals.daemons - len(shown)} more; see --json"
    without = [each for each in cluster.shards if each.daemon is None]
    if without:
        yield from _wrapped(f"without a leader: {led_shards(without)}", "  ")


def _condition(daemon: DaemonInfo) -> str:
    up = UNKNOWN
    if daemon.started_at_ms is not None and daemon.as_of_ms is not None:
        up = duration((daemon.as_of_ms - daemon.started_at_ms) / 1000)
    url = daemon.url or "no URL"
    if daemon.state == "unreachable":
        return f"unreachable, {url}"
    return f"{daemon.state.replace('_', ' ')}, {daemon.version or UNKNOWN}, up {up}, Spark {_spark(daemon)}, {url}"


def _spark(daemon: DaemonInfo) -> str:
    """Return the state of the drain service: the first words of its reason are the state."""
    reasons = [each.reason for each in daemon.components if each.component == "drain"]
    return reasons[0].partition(":")[0].partition(",")[0] if reasons else UNKNOWN


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
        yield from _wrapped(f"  {each}", "    ")
    if len(found) > MAX_DEGRADED:
        yield f"  and {len(found) - MAX_DEGRADED} more; see --json"


def _totals(cluster: ClusterInfo) -> Iterator[str]:
    totals = cluster.totals
    yield (
        f"{_plural(totals.topics, 'topic')}, {_plural(totals.active_segments, 'active segment')}, "
        f"{totals.sealed_segments} sealed; {_plural(totals.subscriptions, 'subscription')}, "
        f"{_plural(totals.connected_consumers, 'consumer')}"
        + (f", {totals.disconnected_consumers} away" if totals.disconnected_consumers else "")
    )
    backlog = UNKNOWN if totals.backlog_records is None else records_text(totals.backlog_records, False)
    acknowledged = UNKNOWN if totals.acknowledged_per_second is None else f"{totals.acknowledged_per_second:.1f}"
    yield f"{totals.stored_per_second:.1f} records/s in, {acknowledged}/s acknowledged, backlog {backlog} records"


def _blockers(row: SubscriptionSummary) -> str:
    if not row.blocking_segments:
        return UNKNOWN
    more = ", …" if row.draining_segments > len(row.blocking_segments) else ""
    return f"segment{'s' * (len(row.blocking_segments) > 1)} {', '.join(map(str, row.blocking_segments))}{more}"


def _wrapped(text: str, indent: str) -> list[str]:
    """Return ``text`` in lines of `WIDTH`. An address is not broken."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
