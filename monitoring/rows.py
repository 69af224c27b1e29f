"""The rows of the dashboard: the state of the cluster, its subscriptions and ingestion; folded, details for a cause."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.panels import CLUSTER, LEADS, SUBSCRIPTION, Panel, Row, behind, graph, of, stat, total

NOW: Final = Row(
    "Now",
    (
        stat(
            "Shards without leader",
            f"sum(max by (shard) (headgate_shard_is_leader{{{CLUSTER}}}) == bool 0)",
            1,
            text="Shards that no daemon leads.",
        ),
        stat("Daemons", f"sum(up{{{CLUSTER}}})", text="Daemons that respond."),
        stat(
            "Disconnected brokers",
            f"sum(headgate_broker_connected{{{CLUSTER}}} == bool 0)",
            1,
            text="Daemons without a connection to the MQTT broker.",
        ),
        stat(
            "Drain service not ready",
            f'sum(headgate_drain_service_state{{{CLUSTER}, state="ready"}} == bool 0 and {LEADS})',
            1,
            text="Daemons that lead a shard and whose drain service is not ready.",
        ),
        total("Blocked segments", "segments_blocked"),
        stat("Consumers", f'sum(headgate_consumers{{{CLUSTER}, state="connected"}})', text="Connected consumers."),
        stat(
            "Firing alerts",
            f'count(ALERTS{{{CLUSTER}, alertstate="firing"}}) or vector(0)',
            1,
            text="Alerts of this cluster that fire. Each links to its section of the runbook.",
        ),
        total("Never drained", "backlog_never_drained_subscriptions", 1),
        total("Unknown backlogs", "backlog_unknown_subscriptions", 1),
        stat(
            "Without series",
            f"sum (headgate_subscriptions_without_series{{{CLUSTER}}})",
            text="Subscriptions that the panels below do not show, because others are busier "
            "(metrics.max_subscriptions).",
        ),
        stat(
            "Versions",
            f"count(count by (version, python) (headgate_build_info{{{CLUSTER}}}))",
            2,
            text="Versions of headgate and Python that daemons run. More than one: an upgrade is under way.",
        ),
        total("Open status pages", "http_streams"),
    ),
    collapsed=False,
)

SUBSCRIPTIONS: Final = Row(
    "Subscriptions (the busiest, and those of metrics.backlog_topics)",
    (
        of("subscription_backlog_records"),
        of("subscription_backlog_bytes"),
        of("subscription_oldest_unacknowledged_seconds"),
        graph(
            "Time until drained",
            units.Seconds,
            f"max by (topic, subscription) (headgate_subscription_drained_in_seconds{{{SUBSCRIPTION}}}) < Inf",
            "{{topic}} {{subscription}}",
            "Time until the backlog is empty, at the current rates. No line: unknown, or it does not shrink.",
        ),
        of("backlog_records"),
        of("backlog_bytes"),
        of("backlog_oldest_unacknowledged_seconds"),
        of("segments_blocked"),
        of("segments_blocked_longest_seconds"),
    ),
    collapsed=False,
)

INGESTION: Final = Row(
    "Ingestion",
    (
        graph(
            "Records stored",
            units.CountsPerSecond,
            f"job_shard:headgate_records_stored:rate5m{{{CLUSTER}}}",
            "shard {{shard}}",
            "Records in durable chunks per second, over five minutes. Recorded by headgate.rules.yml.",
        ),
        graph(
            "Bytes stored",
            units.BytesPerSecondSI,
            f"sum by (shard) (rate(headgate_chunks_stored_bytes_total{{{CLUSTER}}}[$__rate_interval]))",
            "shard {{shard}}",
            "Bytes of durable chunks per second.",
        ),
        of("batches_judged_total"),
        of("batch_commit_seconds"),
        of("chunk_commit_seconds"),
        graph(
            "Ingest queue",
            units.PercentUnit,
            f"max by (instance, shard) (job_instance_shard:headgate_ingest_queue_bytes:ratio{{{CLUSTER}}})",
            "{{instance}} shard {{shard}}",
            "Used part of the ingest queue. At 100% a leader rejects batches. Recorded by headgate.rules.yml.",
        ),
    ),
    collapsed=False,
)


def _details(title: str, metrics: str, *others: Panel) -> Row:
    """Return a folded row with a panel for each of ``metrics``, which blanks separate."""
    return Row(title, (*map(of, metrics.split()), *others))


DETAILS: Final = (
    _details(
        "Clients and devices",
        """
        consumers consumers_registered_total consumers_reconnected_total consumers_disconnected_total
        consumers_removed_total producers named_producers batches_in_flight requests_waiting replies_waiting
        device_records_pending device_records_stored_total device_messages_rejected_total device_confirmations_total
        device_sessions
        """,
    ),
    _details(
        "Refusals",
        """
        quota_exceeded_total access_denied_total replies_delayed_total messages_malformed_total
        messages_too_large_total broker_sessions_taken_over_total client_id_conflicts_total
        foreign_announcements_total http_denied_total http_limit_reached_total requests_over_limit_total
        acknowledgements_over_limit_total barriers_delayed_total
        """,
    ),
    _details(
        "Deliveries",
        """
        redeliveries_total redelivery_records redelivery_segments_full parked_keys segments_stalled_total
        chunks_announced_total
        """,
    ),
    _details(
        "Leadership and dependencies",
        """
        shard_load_bytes_per_second shard_loads_reported_total leader_terms_started_total leader_terms_ended_total
        shard_transfers_total transfer_handover_seconds shard_replay_lag_seconds shard_leader_epoch restore_seconds
        chunks_restored_total shard_ledger_unreadable zookeeper_state zookeeper_refused zookeeper_contact_age_seconds
        zookeeper_foreign_nodes_total clock_step_held_seconds ledger_time_ahead_seconds
        """,
        graph(
            "Shards led",
            units.Short,
            f"sum by (instance) (headgate_shard_is_leader{{{CLUSTER}}})",
            "{{instance}}",
            "Shards per leader.",
        ),
        graph(
            "States in memory",
            units.Short,
            f"sum by (instance) (headgate_shard_state_in_memory{{{CLUSTER}}})",
            "{{instance}}",
            "Shards whose state each daemon has in memory, led or followed.",
        ),
    ),
    _details(
        "Segments",
        """
        segments layout_changes_total splits_suppressed_total segments_granted_total segments_revoked_total
        segment_weights_changed_total handover_seconds drain_wait_seconds segments_drained_total segments_pruned_total
        subscription_seeks_total
        """,
    ),
    _details(
        "Drain service",
        """
        drain_service_state drain_service_restarts_total drain_polls_total drain_check_seconds
        drain_check_failures_total external_tables_failing backlog_as_of_age_seconds chunk_size_bytes
        """,
        behind("Uncounted chunks", "drain_watermark_chunk", "Chunks that the drain service has not counted yet."),
    ),
    _details(
        "Storage",
        """
        object_store_errors_total log_lines_lost_total ledger_objects ledger_foreign_objects compacted_bytes
        snapshot_overdue_seconds deletion_overdue_seconds chunks_deleted_total segment_deletions_pending
        segment_deletions_failed_total snapshot_failures_total snapshots_unusable_total trim_failures_total
        """,
        behind("Uncompacted chunks", "compacted_chunk", "Chunks after the last compacted chunk."),
        behind(
            "Chunks since the snapshot",
            "snapshot_newest_chunk",
            "Chunks that a new leader reads: those after the newest snapshot.",
        ),
        graph(
            "Free space",
            units.PercentUnit,
            f"job_instance_use:headgate_file_system_free_bytes:ratio{{{CLUSTER}}}",
            "{{instance}} {{use}}",
            "Free part of the file systems of ledger and Spark. Recorded by headgate.rules.yml.",
        ),
    ),
    _details(
        "Process",
        "loop_lag_seconds garbage_collection_seconds reload_failures_total",
        graph(
            "Loop lag by daemon",
            units.Seconds,
            f"job_instance:headgate_loop_lag_seconds:p99_5m{{{CLUSTER}}}",
            "{{instance}}",
            "How late the event loop of each daemon runs timers, 99th percentile. Recorded by headgate.rules.yml.",
        ),
        graph(
            "Memory",
            units.BytesIEC,
            f"process_resident_memory_bytes{{{CLUSTER}}}",
            "{{instance}}",
            "Resident memory.",
        ),
        graph(
            "CPU",
            units.Short,
            f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])",
            "{{instance}}",
            "CPU seconds per second.",
        ),
        graph(
            "Certificates",
            units.Seconds,
            f"headgate_certificate_expiry_timestamp_seconds{{{CLUSTER}}} - time()",
            "{{instance}} {{use}}",
            "Time until a certificate of a daemon expires.",
        ),
        graph(
            "File descriptors",
            units.PercentUnit,
            f"process_open_fds{{{CLUSTER}}} / process_max_fds{{{CLUSTER}}}",
            "{{instance}}",
            "Open file descriptors, as a part of those allowed.",
        ),
    ),
)
