"""Renders a daemon's status and health as an HTML page. Pure; all text is escaped.

The page has no script and loads nothing, so it works under the strictest content security policy.
It shows at most `MAX_ROWS` topics, and as many subscriptions of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from headgate.model.bucket_ranges import BucketRange
from headgate.protocol.backlog import records_text
from headgate.protocol.messages import SegmentProgress, SubscriptionBacklog, SubscriptionDescription, TopicDescription
from metrics.health import Health
from metrics.segment_graph import MAX_DRAWN_SEGMENTS, bucket_range_bars, segment_graph
from metrics.status import DaemonStatus, ShardStatus

MAX_ROWS = 100

STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;max-width:64rem;margin:1.5rem auto;padding:0 1rem;color:#1d2327;"
    "background:#fff}h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin-bottom:.2rem}"
    "table{border-collapse:collapse;margin:.5rem 0}th,td{text-align:left;padding:.15rem .9rem .15rem 0;"
    "border-bottom:1px solid #d5d8dc}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "svg{max-width:100%;height:auto}line{stroke:#8a939c}rect{stroke:#3b4650;fill:#cfe8d5}"
    "text{font-size:12px;text-anchor:middle}.sealed rect{fill:#e4e6e8}.blocked rect{fill:#f6d9a8}"
    ".ok,.ready{color:#17692f}.degraded,.blocked{color:#8a5a00}.failed,.not_ready{color:#a3211b}"
)


def status_page(status: DaemonStatus, health: Health) -> str:
    body = [
        f"<h1>headgate {escape(status.instance)}</h1>",
        f'<p>This daemon is <strong class="{escape(health.state)}">{escape(health.state.replace("_", " "))}</strong>'
        + (f" in cluster {escape(status.cluster)}." if status.cluster else ".")
        + ' Also <a href="/status">/status</a>, <a href="/backlog">/backlog</a>, '
        '<a href="/readyz">/readyz</a>, <a href="/metrics">/metrics</a>.</p>',
        _table(
            ("component", "state", "reason"),
            ((component.name, component.state.value, component.reason) for component in health.components),
        ),
        "<h2>Shards</h2>",
        _table(
            ("shard", "role", "leader epoch", "head chunk", "producers", "batches in flight", "topics", "fault"),
            (
                (
                    shard.shard,
                    shard.role.replace("_", " "),
                    shard.leader_epoch,
                    shard.head,
                    shard.producers,
                    shard.in_flight_batches,
                    len(shard.topics) if shard.leading else "see its leader",
                    shard.fault,
                )
                for shard in status.shards
            ),
        ),
        *_topics(status.shards),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>headgate {escape(status.instance)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _topics(shards: Sequence[ShardStatus]) -> list[str]:
    found = [(topic, shard) for shard in shards for topic in shard.topics]
    found.sort(key=lambda pair: pair[0].topic)
    parts = [part for topic, shard in found[:MAX_ROWS] for part in _topic(topic, shard)]
    if len(found) > MAX_ROWS:
        parts.append(f"<p>{len(found) - MAX_ROWS} more topics are not shown; /status lists all.</p>")
    return parts or ["<p>No topics on the shards that this daemon leads.</p>"]


def _topic(topic: TopicDescription, shard: ShardStatus) -> list[str]:
    subscriptions = [each for each in shard.subscriptions if each.topic == topic.topic]
    blocked = frozenset(
        progress.segment for each in subscriptions for progress in each.segments if progress.status == "blocked"
    )
    active = sum(segment.state == "active" for segment in topic.segments)
    parts = [
        f"<h2>Topic {escape(topic.topic)}</h2>",
        (
            f"<p>Shard {topic.shard}, layout epoch {topic.layout_epoch}: "
            f"{active} active and {len(topic.segments) - active} sealed segments{_source(topic)}.</p>"
        ),
        segment_graph(topic.segments, blocked),
    ]
    if len(topic.segments) > MAX_DRAWN_SEGMENTS:
        parts.append(
            f"<p>{len(topic.segments) - MAX_DRAWN_SEGMENTS} older segments are not drawn; /status lists all.</p>"
        )
    for subscription in subscriptions[:MAX_ROWS]:
        backlog = next((each for each in shard.backlogs if _belongs_to(each, subscription)), None)
        parts += _subscription(subscription, backlog)
    if len(subscriptions) > MAX_ROWS:
        parts.append(f"<p>{len(subscriptions) - MAX_ROWS} more subscriptions are not shown; /status lists all.</p>")
    return parts


def _source(topic: TopicDescription) -> str:
    if topic.external is None:
        return ""
    return escape(f", external, stored in {topic.external.source or 'an unnamed source'}")


def _belongs_to(backlog: SubscriptionBacklog, subscription: SubscriptionDescription) -> bool:
    return (backlog.topic, backlog.subscription) == (subscription.topic, subscription.subscription)


def _subscription(subscription: SubscriptionDescription, backlog: SubscriptionBacklog | None) -> list[str]:
    connected = sum(consumer.connected for consumer in subscription.consumers)
    disconnected = len(subscription.consumers) - connected
    remaining = {} if backlog is None else {part.segment: part.records for part in backlog.segments}
    return [
        (f"<h3>Subscription {escape(subscription.subscription)} ({escape(subscription.type or 'type unknown')})</h3>"),
        f"<p>{connected} consumers connected, {disconnected} in their grace period.{_backlog(backlog)}</p>",
        _table(
            ("segment", "status", "consumer", "generation", "acknowledged", "backlog", "blocked by"),
            (
                row
                for progress in subscription.segments
                for row in _progress(subscription, progress, remaining.get(progress.segment))
            ),
        ),
        bucket_range_bars(subscription.segments),
    ]


def _backlog(backlog: SubscriptionBacklog | None) -> str:
    if backlog is None or backlog.outlook == "not_tracked":
        return ""
    why = f" {escape(backlog.unknown_reason)}." if backlog.unknown_reason else ""
    if backlog.records is None:
        return f" The backlog is unknown.{why}"
    size = "" if backlog.size_bytes is None else f", {backlog.size_bytes} bytes"
    parts = [f"{_count(backlog.records, backlog.estimated)} records{size} unacknowledged"]
    if backlog.oldest_ms is not None:
        parts.append(f"the oldest is {max(0, backlog.as_of_ms - backlog.oldest_ms) / 1000:.0f} s old")
    if backlog.stored_per_second is not None and backlog.acknowledged_per_second is not None:
        parts.append(
            f"{backlog.stored_per_second:.1f} stored and {backlog.acknowledged_per_second:.1f} acknowledged per second"
        )
    if backlog.outlook == "never":
        parts.append("never drains at this rate")
    elif backlog.outlook == "shrinking":
        parts.append(f"drained in {backlog.drained_in_seconds:.0f} s")
    return f" {escape('; '.join(parts))}.{why}"


def _progress(
    subscription: SubscriptionDescription, progress: SegmentProgress, counted: int | None
) -> list[tuple[object, ...]]:
    """Return the row of a segment and one row per bucket range.

    ``counted``: its backlog by Spark, for an external topic, whose tables the leader cannot count.
    """
    tracked = subscription.type != "CHECKPOINT"
    unacknowledged = counted if progress.unacknowledged is None else progress.unacknowledged
    whole = (
        progress.segment if progress.label is None else f"{progress.segment} {progress.label}",
        progress.status,
        progress.consumer or "",
        "" if progress.generation is None else progress.generation,
        progress.acknowledged_offset if tracked else "-",
        _count(unacknowledged, progress.estimated),
        ", ".join(str(ancestor) for ancestor in progress.blocked_by),
    )
    bucket_ranges = [
        (
            str(BucketRange(progress.segment, each.first_bucket, each.end_bucket)),
            each.status,
            each.consumer or "",
            "" if each.generation is None else each.generation,
            each.acknowledged_offset,
            _count(each.unacknowledged, each.estimated),
            "",
        )
        for each in progress.bucket_ranges
    ]
    return [whole, *bucket_ranges]


def _count(records: int | None, estimated: bool) -> object:
    return records_text(records, estimated) if records is None or estimated else records


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _cell(value: object) -> str:
    return f'<td class="n">{value}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"
