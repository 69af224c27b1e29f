"""The rows that are folded: details for finding a cause."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.panels import CLUSTER, Query, Row, behind, graph, highest, increase, quantiles, rate, summed

CLIENTS: Final = Row(
    "Clients and devices",
    (
        graph(
            "Consumers",
            "Consumers that are connected, or in their grace period.",
            units.Short,
            summed("consumers", "state"),
        ),
        graph(
            "Coming and going of consumers",
            "Consumers that registered, reconnected, fell silent, or were removed.",
            units.Short,
            increase("consumers_registered_total", prefix="registered"),
            increase("consumers_reconnected_total", prefix="reconnected"),
            increase("consumers_disconnected_total", prefix="disconnected"),
            increase("consumers_removed_total", "reason", "removed: "),
        ),
        graph(
            "Producers",
            "Known producers. Named ones are kept until they are deleted.",
            units.Short,
            highest("producers"),
            highest("named_producers", prefix="named: "),
        ),
        graph(
            "Waiting",
            "What leaders hold: batches and device records that are not durable, large requests, delayed replies.",
            units.Short,
            highest("batches_in_flight", prefix="batches: "),
            highest("requests_waiting", prefix="requests: "),
            highest("replies_waiting", prefix="replies: "),
            highest("device_records_pending", prefix="device records: "),
        ),
        graph(
            "MQTT devices",
            "Durable records of MQTT devices, their rejected messages, and confirmations that devices asked for.",
            units.CountsPerSecond,
            rate("device_records_stored_total", prefix="stored"),
            rate("device_messages_rejected_total", "reason"),
            rate("device_confirmations_total", "outcome"),
        ),
        graph(
            "Sessions of MQTT devices",
            "MQTT sessions for devices, one per topic: subscribed, missing although wanted, or ending.",
            units.Short,
            summed("device_sessions", "state"),
        ),
    ),
)

REFUSALS: Final = Row(
    "Refusals",
    (
        graph(
            "Limits of users",
            "Requests that a quota or missing rights refused, and replies that a rate delayed.",
            units.CountsPerSecond,
            rate("quota_exceeded_total", "quota", "quota: "),
            rate("access_denied_total", prefix="no right"),
            rate("replies_delayed_total", prefix="delayed"),
        ),
        graph(
            "Messages",
            "Messages that do not follow the protocol, lack an epoch, or are too large to send.",
            units.CountsPerSecond,
            rate("messages_malformed_total", "reason", "malformed: "),
            rate("requests_without_epoch_total", prefix="without epoch"),
            rate("messages_too_large_total", prefix="too large"),
        ),
        graph(
            "Client ids and announcements",
            "Client ids that two programs use, and leader announcements that another program replaced.",
            units.Short,
            increase("broker_sessions_taken_over_total", "connection", "taken over: "),
            increase("client_id_conflicts_total", prefix="id used twice"),
            increase("foreign_announcements_total", prefix="announcements"),
        ),
        graph(
            "HTTP",
            "HTTP requests and handshakes that were refused, and limits of connections and pages that were reached.",
            units.CountsPerSecond,
            rate("http_denied_total", "reason"),
            rate("http_limit_reached_total", "limit", "limit: "),
        ),
        graph(
            "Requests over a limit",
            "Requests refused because as many of their kind as the limit permits wait. Clients repeat them.",
            units.CountsPerSecond,
            rate("requests_over_limit_total", "limit"),
        ),
        graph(
            "Redeliveries",
            "Deliveries of QUEUE subscriptions that failed, waited at the limit, or ended in a dead letter.",
            units.CountsPerSecond,
            rate("redeliveries_total", "outcome"),
        ),
        graph(
            "Stalled segments",
            "Segments whose consumer made no progress for too long, by whether another one could take them.",
            units.CountsPerSecond,
            rate("segments_stalled_total", "outcome"),
        ),
        graph(
            "Kept deliveries",
            "Records of QUEUE subscriptions that were begun or have failed, dead ones, those that cannot be stored, "
            "and segments that deliver no further record.",
            units.Short,
            summed("redelivery_records", "state"),
            summed("redelivery_segments_full", prefix="full segments"),
        ),
        graph(
            "Parked keys",
            "Keys of STREAM subscriptions whose records go to the dead-letter topic.",
            units.Short,
            summed("parked_keys", "shard"),
        ),
        graph(
            "Acknowledgements over the limit",
            "Acknowledgements of QUEUE subscriptions that did not count, because they would open too many gaps.",
            units.CountsPerSecond,
            rate("acknowledgements_over_limit_total", prefix="over the limit"),
        ),
        graph(
            "Refusals that waited",
            "Refusals that waited to share an empty chunk.",
            units.CountsPerSecond,
            rate("barriers_delayed_total", "shard"),
        ),
    ),
)

LEADERSHIP: Final = Row(
    "Leadership and dependencies",
    (
        graph("Shards led", "Shards per leader.", units.Short, summed("shard_is_leader", "instance")),
        graph(
            "Loads of shards",
            "What leaders receive, as they report it to the other daemons: bytes, and 16 KiB for each message.",
            units.BytesPerSecondSI,
            highest("shard_load_bytes_per_second"),
        ),
        graph(
            "Reports of loads",
            "Changed loads that were written to ZooKeeper.",
            units.Short,
            increase("shard_loads_reported_total", prefix="reported"),
        ),
        graph(
            "Leader terms",
            "Terms that started, and that ended by reason.",
            units.Short,
            increase("leader_terms_started_total", prefix="started"),
            increase("leader_terms_ended_total", "reason", "ended: "),
        ),
        graph(
            "Transfers",
            "Transfers of shards to other daemons, by reason, and whether they were completed.",
            units.Short,
            increase("shard_transfers_total", "reason"),
            increase("shard_transfers_total", "outcome"),
        ),
        graph(
            "Handovers",
            "Time in which a shard accepted no requests before its lock was passed on.",
            units.Seconds,
            *quantiles("transfer_handover_seconds"),
        ),
        graph(
            "Replay lag",
            "How long daemons have not known the end of the ledgers that they follow.",
            units.Seconds,
            highest("shard_replay_lag_seconds"),
        ),
        graph(
            "States in memory",
            "Shards whose state each daemon has in memory, led or followed.",
            units.Short,
            summed("shard_state_in_memory", "instance"),
        ),
        graph("Leader epoch", "Leader epoch of the newest term.", units.NoUnit, highest("shard_leader_epoch")),
        graph(
            "Restore",
            "Time to read the ledger to its end at the start of a term.",
            units.Seconds,
            *quantiles("restore_seconds"),
        ),
        graph(
            "Chunks restored",
            "Chunks that new leaders read.",
            units.Short,
            increase("chunks_restored_total", prefix="chunks"),
        ),
        graph(
            "Unreadable ledgers",
            "Daemons that cannot read the ledger of a shard.",
            units.Short,
            summed("shard_ledger_unreadable", "shard"),
        ),
        graph(
            "ZooKeeper session",
            "Daemons by the state of their ZooKeeper session.",
            units.Short,
            summed("zookeeper_state", "state"),
            summed("zookeeper_refused", prefix="refused"),
        ),
        graph(
            "Time without ZooKeeper",
            "Time since ZooKeeper was last known to be reachable.",
            units.Seconds,
            highest("zookeeper_contact_age_seconds", "instance"),
        ),
        graph(
            "Clocks",
            "Steps of clocks that daemons do not follow yet, and how far a ledger is ahead of the clock.",
            units.Seconds,
            highest("clock_step_held_seconds", "instance"),
            highest("ledger_time_ahead_seconds", prefix="ahead: "),
        ),
    ),
)

SEGMENTS: Final = Row(
    "Segments",
    (
        graph(
            "Segments",
            "Segments of all topics, by state.",
            units.Short,
            Query(f"sum by (state) (max by (shard, state) (headgate_segments{{{CLUSTER}}}))", "{{state}}"),
        ),
        graph(
            "Splits and merges",
            "Splits and merges, by kind and reason. command: not automatic.",
            units.Short,
            increase("layout_changes_total", "kind, reason"),
            increase("splits_suppressed_total", "limit", "limit: "),
        ),
        graph(
            "Segments granted and revoked",
            "Segments that consumers got and gave back, and changed weights of segments that are balanced by load.",
            units.Short,
            increase("segments_granted_total", prefix="granted"),
            increase("segments_revoked_total", prefix="revoked"),
            increase("segment_weights_changed_total", "change", "weight "),
        ),
        graph(
            "Handovers",
            "Time from a revocation to the next grant, by how the segment was released.",
            units.Seconds,
            *quantiles("handover_seconds", by="reason"),
        ),
        graph(
            "Drain wait",
            "Time from the last acknowledgement in a sealed segment to the release of the blocked segments.",
            units.Seconds,
            *quantiles("drain_wait_seconds"),
        ),
        graph(
            "Ends of segments",
            "Segments that became drained or were pruned, and seeks, which make drained segments read again.",
            units.Short,
            increase("segments_drained_total", prefix="drained"),
            increase("segments_pruned_total", prefix="pruned"),
            increase("subscription_seeks_total", prefix="seeks"),
        ),
    ),
)

DRAIN: Final = Row(
    "Drain service",
    (
        graph(
            "State",
            "Daemons by the state of their drain service, and its restarts.",
            units.Short,
            summed("drain_service_state", "state"),
            increase("drain_service_restarts_total", prefix="restarts"),
        ),
        graph("Drain polls", "Drain polls, by outcome.", units.CountsPerSecond, rate("drain_polls_total", "outcome")),
        graph("Response time", "Response time of the drain service.", units.Seconds, *quantiles("drain_check_seconds")),
        graph(
            "Failures",
            "Queries that the drain service did not answer, by reason, and external topics with a failing table.",
            units.Short,
            increase("drain_check_failures_total", "reason"),
            highest("external_tables_failing", prefix="external tables: "),
        ),
        graph(
            "Uncounted chunks",
            "Chunks that the drain service has not counted yet.",
            units.Short,
            behind("drain_watermark_chunk"),
        ),
        graph(
            "Chunk size",
            "Sizes of chunks. Small ones are costly to count, until they are compacted.",
            units.BytesIEC,
            *quantiles("chunk_size_bytes"),
        ),
    ),
)

STORAGE: Final = Row(
    "Storage",
    (
        graph(
            "Free space",
            "Free part of the file systems of ledger and Spark. Recorded by headgate.rules.yml.",
            units.PercentUnit,
            Query(f"job_instance_use:headgate_file_system_free_bytes:ratio{{{CLUSTER}}}", "{{instance}} {{use}}"),
        ),
        graph(
            "Store errors",
            "Failed operations of the object store.",
            units.CountsPerSecond,
            rate("object_store_errors_total", "operation"),
        ),
        graph(
            "Lost log lines",
            "Lines that the log of a daemon, or of its Spark process, did not accept, as on a full disk.",
            units.CountsPerSecond,
            rate("log_lines_lost_total", "instance"),
        ),
        graph(
            "Objects",
            "Objects in the store, by kind, and those that headgate did not name.",
            units.Short,
            Query(f"sum by (kind) (max by (shard, kind) (headgate_ledger_objects{{{CLUSTER}}}))", "{{kind}}"),
            highest("ledger_foreign_objects", prefix="foreign: "),
        ),
        graph("Uncompacted chunks", "Chunks after the last compacted chunk.", units.Short, behind("compacted_chunk")),
        graph(
            "Chunks since the snapshot",
            "Chunks that a new leader reads: those after the newest snapshot.",
            units.Short,
            behind("snapshot_newest_chunk"),
        ),
        graph(
            "Overdue",
            "How long snapshots and deletions of data have been due; 0 if none is.",
            units.Seconds,
            highest("snapshot_overdue_seconds", prefix="snapshot: "),
            highest("deletion_overdue_seconds", prefix="deletion: "),
        ),
        graph(
            "Deletions",
            "Chunks deleted after compaction, and pruned segments whose data waits for deletion.",
            units.Short,
            increase("chunks_deleted_total", prefix="chunks"),
            highest("segment_deletions_pending", prefix="pending: "),
        ),
        graph(
            "Failures",
            "Failed snapshot jobs, unusable snapshots, failed deletions, and failed searches for deletable chunks.",
            units.Short,
            increase("snapshot_failures_total", prefix="snapshot jobs"),
            increase("snapshots_unusable_total", prefix="unusable snapshots"),
            increase("segment_deletions_failed_total", prefix="deletions"),
            increase("trim_failures_total", prefix="searches"),
        ),
    ),
)

PROCESS: Final = Row(
    "Process",
    (
        graph(
            "Loop lag",
            "How late the event loop runs timers, and the worst percentile by daemon. Recorded by headgate.rules.yml.",
            units.Seconds,
            *quantiles("loop_lag_seconds"),
            Query(f"job_instance:headgate_loop_lag_seconds:p99_5m{{{CLUSTER}}}", "p99 {{instance}}"),
        ),
        graph(
            "Garbage collection",
            "How long collections of cyclic garbage stop the event loop, by what they look at.",
            units.Seconds,
            *quantiles("garbage_collection_seconds", by="scope"),
        ),
        graph(
            "Memory",
            "Resident memory.",
            units.BytesIEC,
            Query(f"process_resident_memory_bytes{{{CLUSTER}}}", "{{instance}}"),
        ),
        graph(
            "CPU",
            "CPU seconds per second.",
            units.Short,
            Query(f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])", "{{instance}}"),
        ),
        graph(
            "Certificates",
            "Time until a certificate of a daemon expires.",
            units.Seconds,
            Query(f"headgate_certificate_expiry_timestamp_seconds{{{CLUSTER}}} - time()", "{{instance}} {{use}}"),
        ),
        graph(
            "Settings and nodes",
            "Settings that could not be read again, and nodes in ZooKeeper that no daemon created.",
            units.Short,
            increase("reload_failures_total", prefix="reloads"),
            increase("zookeeper_foreign_nodes_total", prefix="foreign nodes"),
        ),
        graph(
            "File descriptors",
            "Open file descriptors, as a part of those allowed.",
            units.PercentUnit,
            Query(f"process_open_fds{{{CLUSTER}}} / process_max_fds{{{CLUSTER}}}", "{{instance}}"),
        ),
    ),
)

DETAILS: Final = (CLIENTS, REFUSALS, LEADERSHIP, SEGMENTS, DRAIN, STORAGE, PROCESS)
