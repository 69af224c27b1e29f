"""The values of the fields of events that become labels of metrics. Each label has a limited number of values. Pure."""

from typing import Literal

from headgate.protocol.replies import BatchRefusal

BatchVerdict = Literal["accept", "duplicate", BatchRefusal]
HandoverReason = Literal["confirmed", "timed_out", "holder_left", "rewound"]
"""How a revoked segment was released before it was granted again."""
BrokerConnectionKind = Literal["daemon", "devices"]
MalformedReason = Literal["too_large", "not_msgpack", "invalid", "protocol", "sender", "other_ledger", "presence"]
DeviceRejectionReason = Literal[
    "unknown_topic", "external_topic", "empty_key", "too_large", "invalid_headers", "retained"
]
DeviceSessionState = Literal["subscribed", "missing", "ending"]
DeviceConfirmationOutcome = Literal["sent", "not_sent", "invalid_topic"]
"""``not_sent``: the broker was unreachable, or did not accept more."""
ZooKeeperState = Literal["connecting", "connected", "suspended", "lost"]
PollOutcome = Literal["drained", "waiting", "contradicted", "failed", "timed_out"]
"""At least one segment is drained; none is; the leader contradicts a claim; the check raised; the
check exceeded its time limit; the previous check is still running although it was cancelled."""
WeightChange = Literal["initial", "increased", "decreased"]
StoreOperation = Literal["create", "read"]
LayoutChangeKind = Literal["split", "merge", "roll"]
LayoutChangeReason = Literal["rate", "bytes", "size", "age", "consumers", "quiet", "command"]
"""``command``: a person or a program asked for it. The others are automatic."""
SplitLimit = Literal["hot_key", "max_segments", "undrained_ancestors", "single_hash", "layout_full", "quota"]
TransferReason = Literal["spread", "maintenance", "shutdown", "operator", "no_broker", "no_store"]
RequestLimit = Literal["cluster_overviews", "operator_commands", "backlogs"]
"""Requests that wait for other daemons (for an overview of the cluster; transfers and maintenance), or for Spark."""
TransferOutcome = Literal["completed", "abandoned"]
DrainState = Literal["off", "starting", "ready", "degraded"]
DrainFailure = Literal["unreachable", "timed_out", "failed", "invalid", "denied", "wrong_ledger"]
CollectionScope = Literal["new", "all"]
FileSystemUse = Literal["ledger", "drain"]
CertificateUse = Literal["http", "broker", "zookeeper"]
HttpLimit = Literal["connections", "descriptors", "streams", "slow_stream"]
HttpDenial = Literal[
    "no_token",
    "wrong_token",
    "plaintext",
    "client_certificate",
    "server_certificate",
    "handshake",
    "slow_handshake",
    "slow_request",
]
"""A page without a token or with an unknown one; no TLS on a port that requires it; no certificate of the
client, or an unusable one; a client that does not trust the daemon's; any other handshake that failed, or
did not end in time; a request that began to arrive, and did not end in time."""
Quota = Literal[
    "topics", "segments", "subscriptions", "consumers", "producers", "requests_per_second", "bytes_per_second"
]
ObjectKind = Literal["chunk", "snapshot", "manifest", "compacted"]
StallOutcome = Literal["moved", "kept"]
DeliveryOutcome = Literal["failed", "delayed", "dead_letter"]
