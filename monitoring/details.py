"""The rows that are folded: details for finding a cause."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.panels import CLUSTER, Query, Row, behind, graph, highest, increase, quantiles, rate, summed

CLIENTS: Final = Row(
    "Clients and devices",
    (
        graph("Consumers", units.Short, summed("consumers", "state")),
        graph(
            "Coming and going of consumers",
            units.Short,
            increase("consumers_registered_total", prefix="registered"),
            increase("consumers_reconnected_total", prefix="reconnected"),
            increase("consumers_disconnected_total", prefix="disconnected"),
            increase("consumers_removed_total", "reason", "removed: "),
            text="Consumers that registered, reconnected, fell silent, or were removed.",
        ),
        graph(
            "Producers",
            units.Short,
            highest("producers"),
            highest("named_producers", prefix="named: "),
            text="Known producers. Named ones are kept until they are deleted.",
        ),
        graph(
            "Waiting",
            units.Short,
            highest("batches_in_flight", prefix="batches: "),
            highest("requests_waiting", prefix="requests: "),
            highest("replies_waiting", prefix="replies: "),
            highest("device_records_pending", prefix="device records: "),
            text="What leaders hold: batches and device records that are not durable, large requests, delayed replies.",
        ),
        graph(
            "MQTT devices",
            units.CountsPerSecond,
            rate("device_records_stored_total", prefix="stored"),
            rate("device_messages_rejected_total", "reason"),
            rate("device_confirmations_total", "outcome"),
            text="Durable records of MQTT devices, their rejected messages, and confirmations that devices asked for.",
        ),
        graph("Sessions of MQTT devices", units.Short, summed("device_sessions", "state")),
    ),
)

REFUSALS: Final = Row(
    "Refusals",
    (
        graph(
            "Limits of users",
            units.CountsPerSecond,
            rate("quota_exceeded_total", "quota", "quota: "),
            rate("access_denied_total", prefix="no right"),
            rate("replies_delayed_total", prefix="delayed"),
            text="Requests that a quota or missing rights refused, and replies that a rate delayed.",
        ),
        graph(
            "Messages",
            units.CountsPerSecond,
            rate("messages_malformed_total", "reason", "malformed: "),
            rate("messages_too_large_total", prefix="too large"),
            text="Messages that do not follow the protocol, or are too large to send.",
        ),
        graph(
            "Client ids and announcements",
            units.Short,
            increase("broker_sessions_taken_over_total", "connection", "taken over: "),
            increase("client_id_conflicts_total", prefix="id used twice"),
            increase("foreign_announcements_total", prefix="announcements"),
            text="Client ids that two programs use, and leader announcements that another program replaced.",
        ),
        graph(
            "HTTP",
            units.CountsPerSecond,
            rate("http_denied_total", "reason"),
            rate("http_limit_reached_total", "limit", "limit: "),
            text="HTTP requests and handshakes that were refused, and limits of connections and pages that were "
            "reached.",
        ),
        graph("Requests over a limit", units.CountsPerSecond, rate("requests_over_limit_total", "limit")),
        graph("Redeliveries", units.CountsPerSecond, rate("redeliveries_total", "outcome")),
        graph("Stalled segments", units.CountsPerSecond, rate("segments_stalled_total", "outcome")),
        graph(
            "Kept deliveries",
            units.Short,
            summed("redelivery_records", "state"),
            summed("redelivery_segments_full", prefix="full segments"),
            text="Records of QUEUE subscriptions that were begun or have failed, dead ones, those that cannot be "
            "stored, and segments that deliver no further record.",
        ),
        graph("Parked keys", units.Short, summed("parked_keys", "shard")),
        graph(
            "Acknowledgements over the limit",
            units.CountsPerSecond,
            rate("acknowledgements_over_limit_total", prefix="over the limit"),
        ),
        graph("Refusals that waited", units.CountsPerSecond, rate("barriers_delayed_total", "shard")),
        graph("Chunks sent to consumers", units.CountsPerSecond, rate("chunks_announced_total", "shard")),
    ),
)

LEADERSHIP: Final = Row(
    "Leadership and dependencies",
    (
        graph("Shards led", units.Short, summed("shard_is_leader", "instance"), text="Shards per leader."),
        graph("Loads of shards", units.BytesPerSecondSI, highest("shard_load_bytes_per_second")),
        graph("Reports of loads", units.Short, increase("shard_loads_reported_total", prefix="reported")),
        graph(
            "Leader terms",
            units.Short,
            increase("leader_terms_started_total", prefix="started"),
            increase("leader_terms_ended_total", "reason", "ended: "),
            text="Terms that started, and that ended by reason.",
        ),
        graph(
            "Transfers",
            units.Short,
            increase("shard_transfers_total", "reason"),
            increase("shard_transfers_total", "outcome"),
            text="Transfers of shards to other daemons, by reason, and whether they were completed.",
        ),
        graph("Handovers", units.Seconds, *quantiles("transfer_handover_seconds")),
        graph("Replay lag", units.Seconds, highest("shard_replay_lag_seconds")),
        graph(
            "States in memory",
            units.Short,
            summed("shard_state_in_memory", "instance"),
            text="Shards whose state each daemon has in memory, led or followed.",
        ),
        graph("Leader epoch", units.NoUnit, highest("shard_leader_epoch")),
        graph("Restore", units.Seconds, *quantiles("restore_seconds")),
        graph("Chunks restored", units.Short, increase("chunks_restored_total", prefix="chunks")),
        graph(
            "Unreadable ledgers",
            units.Short,
            summed("shard_ledger_unreadable", "shard"),
            text="Daemons that cannot read the ledger of a shard.",
        ),
        graph(
            "ZooKeeper session",
            units.Short,
            summed("zookeeper_state", "state"),
            summed("zookeeper_refused", prefix="refused"),
            text="Daemons by the state of their ZooKeeper session.",
        ),
        graph("Time without ZooKeeper", units.Seconds, highest("zookeeper_contact_age_seconds", "instance")),
        graph(
            "Clocks",
            units.Seconds,
            highest("clock_step_held_seconds", "instance"),
            highest("ledger_time_ahead_seconds", prefix="ahead: "),
            text="Steps of clocks that daemons do not follow yet, and how far a ledger is ahead of the clock.",
        ),
    ),
)

SEGMENTS: Final = Row(
    "Segments",
    (
        graph(
            "Segments",
            units.Short,
            Query(f"sum by (state) (max by (shard, state) (headgate_segments{{{CLUSTER}}}))", "{{state}}"),
            text="Segments of all topics, by state.",
        ),
        graph(
            "Splits and merges",
            units.Short,
            increase("layout_changes_total", "kind, reason"),
            increase("splits_suppressed_total", "limit", "limit: "),
            text="Splits and merges, by kind and reason. command: not automatic.",
        ),
        graph(
            "Segments granted and revoked",
            units.Short,
            increase("segments_granted_total", prefix="granted"),
            increase("segments_revoked_total", prefix="revoked"),
            increase("segment_weights_changed_total", "change", "weight "),
            text="Segments that consumers got and gave back, and changed weights of segments that are balanced "
            "by load.",
        ),
        graph("Handovers", units.Seconds, *quantiles("handover_seconds", by="reason")),
        graph("Drain wait", units.Seconds, *quantiles("drain_wait_seconds")),
        graph(
            "Ends of segments",
            units.Short,
            increase("segments_drained_total", prefix="drained"),
            increase("segments_pruned_total", prefix="pruned"),
            increase("subscription_seeks_total", prefix="seeks"),
            text="Segments that became drained or were pruned, and seeks, which make drained segments read again.",
        ),
    ),
)

DRAIN: Final = Row(
    "Drain service",
    (
        graph(
            "State",
            units.Short,
            summed("drain_service_state", "state"),
            increase("drain_service_restarts_total", prefix="restarts"),
            text="Daemons by the state of their drain service, and its restarts.",
        ),
        graph("Drain polls", units.CountsPerSecond, rate("drain_polls_total", "outcome")),
        graph("Response time", units.Seconds, *quantiles("drain_check_seconds")),
        graph(
            "Failures",
            units.Short,
            increase("drain_check_failures_total", "reason"),
            highest("external_tables_failing", prefix="external tables: "),
            text="Queries that the drain service did not answer, by reason, and external topics with a failing table.",
        ),
        graph(
            "Uncounted chunks",
            units.Short,
            behind("drain_watermark_chunk"),
            text="Chunks that the drain service has not counted yet.",
        ),
        graph(
            "Chunk size",
            units.BytesIEC,
            *quantiles("chunk_size_bytes"),
            text="Sizes of chunks. Small ones are costly to count, until they are compacted.",
        ),
    ),
)

STORAGE: Final = Row(
    "Storage",
    (
        graph(
            "Free space",
            units.PercentUnit,
            Query(f"job_instance_use:headgate_file_system_free_bytes:ratio{{{CLUSTER}}}", "{{instance}} {{use}}"),
            text="Free part of the file systems of ledger and Spark. Recorded by headgate.rules.yml.",
        ),
        graph("Store errors", units.CountsPerSecond, rate("object_store_errors_total", "operation")),
        graph("Lost log lines", units.CountsPerSecond, rate("log_lines_lost_total", "instance")),
        graph(
            "Objects",
            units.Short,
            Query(f"sum by (kind) (max by (shard, kind) (headgate_ledger_objects{{{CLUSTER}}}))", "{{kind}}"),
            highest("ledger_foreign_objects", prefix="foreign: "),
            text="Objects in the store, by kind, and those that headgate did not name.",
        ),
        graph(
            "Uncompacted chunks", units.Short, behind("compacted_chunk"), text="Chunks after the last compacted chunk."
        ),
        graph(
            "Chunks since the snapshot",
            units.Short,
            behind("snapshot_newest_chunk"),
            text="Chunks that a new leader reads: those after the newest snapshot.",
        ),
        graph(
            "Overdue",
            units.Seconds,
            highest("snapshot_overdue_seconds", prefix="snapshot: "),
            highest("deletion_overdue_seconds", prefix="deletion: "),
            text="How long snapshots and deletions of data have been due; 0 if none is.",
        ),
        graph(
            "Deletions",
            units.Short,
            increase("chunks_deleted_total", prefix="chunks"),
            highest("segment_deletions_pending", prefix="pending: "),
            text="Chunks deleted after compaction, and pruned segments whose data waits for deletion.",
        ),
        graph(
            "Failures",
            units.Short,
            increase("snapshot_failures_total", prefix="snapshot jobs"),
            increase("snapshots_unusable_total", prefix="unusable snapshots"),
            increase("segment_deletions_failed_total", prefix="deletions"),
            increase("trim_failures_total", prefix="searches"),
            text="Failed snapshot jobs, unusable snapshots, failed deletions, and failed searches for deletable "
            "chunks.",
        ),
    ),
)

PROCESS: Final = Row(
    "Process",
    (
        graph(
            "Loop lag",
            units.Seconds,
            *quantiles("loop_lag_seconds"),
            Query(f"job_instance:headgate_loop_lag_seconds:p99_5m{{{CLUSTER}}}", "p99 {{instance}}"),
            text="How late the event loop runs timers, and the worst percentile by daemon. Recorded by "
            "headgate.rules.yml.",
        ),
        graph("Garbage collection", units.Seconds, *quantiles("garbage_collection_seconds", by="scope")),
        graph(
            "Memory",
            units.BytesIEC,
            Query(f"process_resident_memory_bytes{{{CLUSTER}}}", "{{instance}}"),
            text="Resident memory.",
        ),
        graph(
            "CPU",
            units.Short,
            Query(f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])", "{{instance}}"),
            text="CPU seconds per second.",
        ),
        graph(
            "Certificates",
            units.Seconds,
            Query(f"headgate_certificate_expiry_timestamp_seconds{{{CLUSTER}}} - time()", "{{instance}} {{use}}"),
            text="Time until a certificate of a daemon expires.",
        ),
        graph(
            "Settings and nodes",
            units.Short,
            increase("reload_failures_total", prefix="reloads"),
            increase("zookeeper_foreign_nodes_total", prefix="foreign nodes"),
            text="Settings that could not be read again, and nodes in ZooKeeper that no daemon created.",
        ),
        graph(
            "File descriptors",
            units.PercentUnit,
            Query(f"process_open_fds{{{CLUSTER}}} / process_max_fds{{{CLUSTER}}}", "{{instance}}"),
            text="Open file descriptors, as a part of those allowed.",
        ),
    ),
)

DETAILS: Final = (CLIENTS, REFUSALS, LEADERSHIP, SEGMENTS, DRAIN, STORAGE, PROCESS)
