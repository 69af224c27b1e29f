"""The rows that are open: the state of the cluster, its subscriptions, and ingestion."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.panels import CLUSTER, LEADS, Query, Row, graph, highest, quantiles, rate, stat, subscription, summed

NOW: Final = Row(
    "Now",
    (
        stat(
            "Shards without leader",
            Query(f"sum(max by (shard) (headgate_shard_is_leader{{{CLUSTER}}}) == bool 0)"),
            1,
            text="Shards that no daemon leads.",
        ),
        stat("Daemons", Query(f"sum(up{{{CLUSTER}}})"), text="Daemons that respond."),
        stat(
            "Disconnected brokers",
            Query(f"sum(headgate_broker_connected{{{CLUSTER}}} == bool 0)"),
            1,
            text="Daemons without a connection to the MQTT broker.",
        ),
        stat(
            "Drain service not ready",
            Query(f'sum(headgate_drain_service_state{{{CLUSTER}, state="ready"}} == bool 0 and {LEADS})'),
            1,
            text="Daemons that lead a shard and whose drain service is not ready.",
        ),
        stat("Blocked segments", summed("segments_blocked")),
        stat(
            "Consumers", Query(f'sum(headgate_consumers{{{CLUSTER}, state="connected"}})'), text="Connected consumers."
        ),
        stat(
            "Firing alerts",
            Query(f'count(ALERTS{{{CLUSTER}, alertstate="firing"}}) or vector(0)'),
            1,
            text="Alerts of this cluster that fire. Each links to its section of the runbook.",
        ),
        stat("Never drained", summed("backlog_never_drained_subscriptions"), 1),
        stat("Unknown backlogs", summed("backlog_unknown_subscriptions"), 1),
        stat(
            "Without series",
            summed("subscriptions_without_series"),
            text="Subscriptions that the panels below do not show, because others are busier "
            "(metrics.max_subscriptions).",
        ),
        stat(
            "Versions",
            Query(f"count(count by (version, python) (headgate_build_info{{{CLUSTER}}}))"),
            2,
            text="Versions of headgate and Python that daemons run. More than one: an upgrade is under way.",
        ),
        stat("Open status pages", summed("http_streams")),
    ),
    collapsed=False,
)

SUBSCRIPTIONS: Final = Row(
    "Subscriptions (the busiest, and those of metrics.backlog_topics)",
    (
        graph("Unacknowledged records", units.Short, subscription("backlog_records")),
        graph(
            "Unacknowledged bytes",
            units.BytesIEC,
            subscription("backlog_bytes"),
            text="Bytes that the subscription has not acknowledged. No line: the size is unknown.",
        ),
        graph("Oldest unacknowledged record", units.Seconds, subscription("oldest_unacknowledged_seconds")),
        graph(
            "Time until drained",
            units.Seconds,
            Query(f"{subscription('drained_in_seconds').expression} < Inf", "{{topic}} {{subscription}}"),
            text="Time until the backlog is empty, at the current rates. No line: unknown, or it does not shrink.",
        ),
        graph(
            "Backlog of shards",
            units.Short,
            highest("backlog_records"),
            text="Unacknowledged records of all subscriptions of a shard. Sums contain known values only.",
        ),
        graph(
            "Bytes of backlogs",
            units.BytesIEC,
            highest("backlog_bytes"),
            highest("compacted_bytes", prefix="compacted: "),
            text="Unacknowledged bytes of all subscriptions of a shard, and of all compacted objects.",
        ),
        graph(
            "Ages of shards",
            units.Seconds,
            highest("backlog_oldest_unacknowledged_seconds"),
            highest("backlog_as_of_age_seconds", prefix="count: "),
            text="Age of the oldest unacknowledged record of a shard, and of the oldest count.",
        ),
        graph("Blocked segments", units.Short, summed("segments_blocked", "instance")),
        graph("Longest blocked segment", units.Seconds, highest("segments_blocked_longest_seconds", "instance")),
    ),
    collapsed=False,
)

INGESTION: Final = Row(
    "Ingestion",
    (
        graph(
            "Records stored",
            units.CountsPerSecond,
            Query(f"job_shard:headgate_records_stored:rate5m{{{CLUSTER}}}", "shard {{shard}}"),
            text="Records in durable chunks per second, over five minutes. Recorded by headgate.rules.yml.",
        ),
        graph("Bytes stored", units.BytesPerSecondSI, rate("chunks_stored_bytes_total", "shard")),
        graph("Batches by verdict", units.CountsPerSecond, rate("batches_judged_total", "verdict")),
        graph("Batch commit", units.Seconds, *quantiles("batch_commit_seconds")),
        graph("Chunk commit", units.Seconds, *quantiles("chunk_commit_seconds")),
        graph(
            "Ingest queue",
            units.PercentUnit,
            Query(
                f"max by (instance, shard) (job_instance_shard:headgate_ingest_queue_bytes:ratio{{{CLUSTER}}})",
                "{{instance}} shard {{shard}}",
            ),
            text="Used part of the ingest queue. At 100% a leader rejects batches. Recorded by headgate.rules.yml.",
        ),
    ),
    collapsed=False,
)
