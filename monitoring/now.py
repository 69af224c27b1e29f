"""The rows that are open: the state of the cluster, its subscriptions, and ingestion."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.panels import CLUSTER, Query, Row, graph, highest, quantiles, rate, stat, subscription, summed

NOW: Final = Row(
    "Now",
    (
        stat(
            "Shards without leader",
            "Shards that no daemon leads.",
            Query(f"sum(max by (shard) (headgate_shard_is_leader{{{CLUSTER}}}) == bool 0)"),
            1,
        ),
        stat("Daemons", "Daemons that respond.", Query(f"sum(up{{{CLUSTER}}})")),
        stat(
            "Disconnected brokers",
            "Daemons without a connection to the MQTT broker.",
            Query(f"sum(headgate_broker_connected{{{CLUSTER}}} == bool 0)"),
            1,
        ),
        stat(
            "Drain service not ready",
            "Daemons whose drain service is not ready.",
            Query(f'sum(headgate_drain_service_state{{{CLUSTER}, state="ready"}} == bool 0)'),
            1,
        ),
        stat("Blocked segments", "Segments that an ancestor blocks.", summed("segments_blocked")),
        stat("Consumers", "Connected consumers.", Query(f'sum(headgate_consumers{{{CLUSTER}, state="connected"}})')),
        stat(
            "Firing alerts",
            "Alerts of this cluster that fire. Each links to its section of the runbook.",
            Query(f'count(ALERTS{{{CLUSTER}, alertstate="firing"}}) or vector(0)'),
            1,
        ),
        stat(
            "Never drained",
            "Subscriptions whose backlog does not shrink.",
            summed("backlog_never_drained_subscriptions"),
            1,
        ),
        stat(
            "Unknown backlogs",
            "Subscriptions of external topics whose backlog is not fully known.",
            summed("backlog_unknown_subscriptions"),
            1,
        ),
        stat(
            "Without series",
            "Subscriptions that the panels below do not show, because others are busier (metrics.max_subscriptions).",
            summed("subscriptions_without_series"),
        ),
        stat(
            "Versions",
            "Versions of headgate and Python that daemons run. More than one: an upgrade is under way.",
            Query(f"count(count by (version, python) (headgate_build_info{{{CLUSTER}}}))"),
            2,
        ),
        stat("Open status pages", "Status pages that browsers keep open.", summed("http_streams")),
    ),
    collapsed=False,
)

SUBSCRIPTIONS: Final = Row(
    "Subscriptions (the busiest, and those of metrics.backlog_topics)",
    (
        graph(
            "Unacknowledged records",
            "Records that the subscription has not acknowledged.",
            units.Short,
            subscription("backlog_records"),
        ),
        graph(
            "Unacknowledged bytes",
            "Bytes that the subscription has not acknowledged. No line: the size is unknown.",
            units.BytesIEC,
            subscription("backlog_bytes"),
        ),
        graph(
            "Oldest unacknowledged record",
            "Age of the oldest record that the subscription has not acknowledged.",
            units.Seconds,
            subscription("oldest_unacknowledged_seconds"),
        ),
        graph(
            "Time until drained",
            "Time until the backlog is empty, at the current rates. No line: unknown, or it does not shrink.",
            units.Seconds,
            Query(f"{subscription('drained_in_seconds').expression} < Inf", "{{topic}} {{subscription}}"),
        ),
        graph(
            "Backlog of shards",
            "Unacknowledged records of all subscriptions of a shard. Sums contain known values only.",
            units.Short,
            highest("backlog_records"),
        ),
        graph(
            "Bytes of backlogs",
            "Unacknowledged bytes of all subscriptions of a shard, and of all compacted objects.",
            units.BytesIEC,
            highest("backlog_bytes"),
            highest("compacted_bytes", prefix="compacted: "),
        ),
        graph(
            "Ages of shards",
            "Age of the oldest unacknowledged record of a shard, and of the oldest count.",
            units.Seconds,
            highest("backlog_oldest_unacknowledged_seconds"),
            highest("backlog_as_of_age_seconds", prefix="count: "),
        ),
        graph(
            "Blocked segments",
            "Segments that an ancestor blocks, by daemon.",
            units.Short,
            summed("segments_blocked", "instance"),
        ),
        graph(
            "Longest blocked segment",
            "How long the longest blocked segment has been blocked.",
            units.Seconds,
            highest("segments_blocked_longest_seconds", "instance"),
        ),
    ),
    collapsed=False,
)

INGESTION: Final = Row(
    "Ingestion",
    (
        graph(
            "Records stored",
            "Records in durable chunks per second, over five minutes. Recorded by headgate.rules.yml.",
            units.CountsPerSecond,
            Query(f"job_shard:headgate_records_stored:rate5m{{{CLUSTER}}}", "shard {{shard}}"),
        ),
        graph(
            "Bytes stored",
            "Bytes of durable chunks per second.",
            units.BytesPerSecondSI,
            rate("chunks_stored_bytes_total", "shard"),
        ),
        graph(
            "Batches by verdict",
            "Verdicts of leaders on batches.",
            units.CountsPerSecond,
            rate("batches_judged_total", "verdict"),
        ),
        graph(
            "Batch commit",
            "Time from a batch's verdict to its durable chunk.",
            units.Seconds,
            *quantiles("batch_commit_seconds"),
        ),
        graph(
            "Chunk commit",
            "Time to create a chunk in the object store.",
            units.Seconds,
            *quantiles("chunk_commit_seconds"),
        ),
        graph(
            "Ingest queue",
            "Used part of the ingest queue. At 100% a leader rejects batches. Recorded by headgate.rules.yml.",
            units.PercentUnit,
            Query(
                f"max by (instance, shard) (job_instance_shard:headgate_ingest_queue_bytes:ratio{{{CLUSTER}}})",
                "{{instance}} shard {{shard}}",
            ),
        ),
    ),
    collapsed=False,
)
