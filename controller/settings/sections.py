"""The sections of the daemon's settings: names, units, limits, defaults and their reasons.

controller.settings.load checks combinations of settings and reads files.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller.access.file import read_access_file
from drain.setting_values import DEFAULT_MASTER
from headgate.errors import ConfigError
from headgate.files.named_file import read_secret
from headgate.model.layout import MAX_SHARDS
from headgate.protocol.codec import MAX_MESSAGE_BYTES
from headgate.settings.arguments import HIGHEST_PORT, SHORTEST_SECONDS
from headgate.transport.connection_options import TlsFiles, TlsOptions
from headgate.transport.loopback import host_port, loopback
from shard.access.rules import OPEN, AccessRules

MAX_QUEUE_BYTES = 256 * 1024 * 1024
"""Half of the largest chunk (headgate.storage.object_store), which contains what waits."""

Seconds = Annotated[float, Meta(ge=SHORTEST_SECONDS, le=31_536_000)]
Port = Annotated[int, Meta(ge=1, le=HIGHEST_PORT)]
PortOrAny = Annotated[int, Meta(ge=0, le=HIGHEST_PORT)]
Text = Annotated[str, Meta(min_length=1)]

LEDGER_SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""


class ClusterSettings(Section, frozen=True, kw_only=True):
    """``[cluster]``: the cluster that this daemon belongs to."""

    name: str = "local"
    """Name of the cluster. It is part of every MQTT topic and ZooKeeper path, so clusters can share servers."""
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)] = 4
    """Number of shards at the first start of the cluster, which stores it in ZooKeeper. Later it counts for nothing:
    ``headgate cluster set-shards`` raises the stored number. Default: 4, a few per daemon, so that they can be spread
    evenly."""


class SpreadSettings(Section, frozen=True, kw_only=True):
    """``[spread]``: the distribution of shards over daemons. It changes at SIGHUP."""

    enabled: bool = True
    """Transfer shards until all daemons lead equally many. Without it, shards move only when a daemon
    stops, is in maintenance, or an operator transfers them. Set the same on all daemons."""
    settle_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    """How long a daemon must be live before it gets shards, and lead a shard before it gives it away.
    Default: 30 s, so that a daemon that starts again and again gets none."""


class StandbySettings(Section, frozen=True, kw_only=True):
    """``[standby]``: the states of shards that this daemon follows and does not lead. It changes at SIGHUP."""

    replicas: Annotated[int, Meta(ge=1, le=100)] = 2
    """How many daemons keep the state of a shard in memory beside its leader: those that would take it over.
    Another one reads the newest snapshot before a shard is transferred to it. Set the same on all daemons. Default: 2,
    so that a second failure finds one too."""
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 44)] = 1 << 30
    """Estimated memory for these states. Shards that this daemon takes over next come first. It follows only the terms
    of the others, and a new term begins with the newest snapshot. Default: 1 GiB, some 700 000 producers."""


class InstanceSettings(Section, frozen=True, kw_only=True):
    """``[instance]``: this daemon."""

    name: str = ""
    """Name in logs, announcements and ZooKeeper. Default: $HEADGATE_INSTANCE, or the host name and the process id."""


class ZooKeeperSettings(Section, TlsFiles, frozen=True, kw_only=True):
    """``[zookeeper]``: elections."""

    hosts: Text = msgspec.field(default_factory=lambda: host_port(loopback(), 2181))
    """Comma-separated ``host:port`` of the servers. A ``/path`` at the end is a prefix of every
    path that is used. Default: port 2181 of 127.0.0.1, or of [::1] where loopback has no IPv4 address."""
    session_timeout_seconds: Annotated[float, Meta(ge=2, le=60)] = 6.0
    """A daemon that is silent for this long loses its locks, in seconds. Default: 6, longer than a
    long garbage collection and shorter than an outage that users notice."""
    username: Text | None = None
    """User of ZooKeeper's scheme ``digest``. Every node of the cluster is then closed to all other
    users. Default: none, and every client of ZooKeeper can change the nodes."""
    password_file: Text | None = None
    """File that contains the password, in ASCII. SIGHUP reads it and the other files again."""

    def password(self) -> str | None:
        """Read the password; None if no user is set. Raises ConfigError if the file is unusable."""
        if self.password_file is None:
            return None
        password = read_secret(self.password_file, "$.zookeeper.password_file")
        if not password.isascii():
            raise ConfigError(
                f"$.zookeeper.password_file: {self.password_file} contains characters beyond ASCII, which each "
                "ZooKeeper server reads in the character set of its machine; choose another password"
            )
        return password


class BrokerSettings(Section, TlsOptions, frozen=True, kw_only=True):
    """``[broker]``: the MQTT broker."""

    host: Text = msgspec.field(default_factory=loopback)
    """Host name or address. Default: 127.0.0.1, or ::1 where loopback has no IPv4 address."""
    port: Port = 1883
    """Port. Default: 1883, the MQTT port."""
    username: str | None = None
    """User name. Default: none."""
    password_file: str | None = None
    """File that contains the password. Only its owner and group may have access. A relative path is
    looked up in systemd's credentials first, then in the folder of the settings file."""
    ping_seconds: Annotated[int, Meta(ge=1, le=60)] = 2
    """A daemon pings the broker when it has received nothing for this long, and reconnects if there is no answer for as
    long, in seconds. Silence is noticed after twice as long and a second; then another daemon takes its shards over
    within seconds. Default: 2; a broker that pauses for longer loses all daemons, which come back at once."""

    def password(self) -> str | None:
        """Read the password; None if no file is set. Raises ConfigError if the file is unusable."""
        return None if self.password_file is None else read_secret(self.password_file, "$.broker.password_file")


class AccessSettings(Section, frozen=True, kw_only=True):
    """``[access]``: who may do what. One of the two settings is required."""

    file: Text | None = None
    """TOML file with the rights of all users, relative to the folder of the settings file; see
    deploy/access.toml. SIGHUP reads it again."""
    open: bool = False
    """Every client that reaches the broker may do everything. Only for a broker on loopback.
    Default: false; without a file the daemon does not start."""

    def rules(self) -> AccessRules:
        """Read the rules. Raises ConfigError if the file is unusable."""
        return OPEN if self.file is None else read_access_file(Path(self.file))


class LedgerSettings(Section, frozen=True, kw_only=True):
    """``[ledger]``: the object store that holds the ledger."""

    url: Text
    """``file:///absolute/folder``, ``s3://bucket/path``, ``gs://…`` or ``az://…``. Required.
    Credentials come from the environment."""


class DrainSettings(Section, frozen=True, kw_only=True):
    """``[drain]``: the Spark process that counts backlogs."""

    socket: str | None = None
    """Path of the Unix socket of the Spark process. Only the same user, and root, can connect. Default with
    ``spawn``: one in ``folder`` that no other daemon has. Required without."""
    spawn: bool = True
    """Start the Spark process, and restart it when it dies. False: it is started by other means."""
    master: Text = DEFAULT_MASTER
    """Spark master: ``local[*]`` (all cores of this machine), ``spark://host:port``, ``yarn``,
    ``k8s://…``, or ``sc://host:port`` for Spark Connect."""
    results: str | None = None
    """URL of published results (``headgate drain job --out URL``, run by cron or Airflow).
    The daemon polls them and neither starts nor asks a Spark process. Default: none."""
    results_stale_seconds: Seconds = 3600.0
    """While a subscription waits, results older than this make the daemon degraded, in seconds.
    Default: 3600, above the interval of most jobs."""
    spark_conf: dict[str, str] = {}
    """Spark settings, which override headgate's: ``{"spark.executor.memory" = "2g"}``. No secrets:
    they would be visible in the list of processes."""
    folder: Text = "/var/lib/headgate/drain"
    """Folder for scratch files and the log of the Spark process. systemd creates the parent of the default."""
    driver_memory: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[kmg]$")] = "1g"
    """Heap of the Spark process in Spark's notation (``512m``, ``2g``). Default: 1g, enough for
    millions of entries per run."""
    start_timeout_seconds: Seconds = 120.0
    """Longest time without a sign of life (a line in its log, or a second of processor time) while the Spark
    process starts, in seconds. A slower start is ended and repeated with twice the limit. Default: 120; a start takes
    about 8 on an idle machine."""
    poll_min_seconds: Seconds = 2.0
    """First interval of the drain check of a subscription, in seconds. Default: 2, far above the 35
    ms of a warm run and short enough for a user who waits."""
    poll_max_seconds: Seconds = 900.0
    """Longest interval, in seconds. The interval doubles up to it; any progress resets it to the
    shortest. Default: 900."""
    run_timeout_seconds: Seconds = 60.0
    """A drain check that takes longer counts as "not drained yet", in seconds. Default: 60; a cold
    first run takes about 10."""
    external: Text | None = None
    """TOML file that names the tables of external topics (docs/external-topics.md), read when Spark starts; for a
    process that is not spawned, an option of its own. Excludes ``results``, which cover only the ledger."""


class HttpSettings(Section, frozen=True, kw_only=True):
    """``[http]``: metrics, health and status."""

    host: Text = msgspec.field(default_factory=loopback)
    """Listen address. Any other than loopback requires tokens_file or client_ca_file. Default:
    127.0.0.1, or ::1 where loopback has no IPv4 address."""
    port: PortOrAny = 9464
    """Listen port; 0: any free port. Default: 9464, the usual port of Prometheus exporters of this kind."""
    certificate_file: Text | None = None
    """Certificate (PEM) of this server, followed by intermediate ones. It switches TLS on, 1.2 or
    later. Relative paths of this and the other files are looked up in systemd's credentials first,
    then in the folder of the settings file. SIGHUP reads all of them again. Default: no TLS."""
    key_file: Text | None = None
    """Private key of that certificate (PEM, not encrypted). Only its owner and group may have access."""
    client_ca_file: Text | None = None
    """Certificates (PEM) of the authorities that may vouch for clients. Every client must then
    present a certificate, probes too. Default: none must."""
    tokens_file: Text | None = None
    """File of the tokens that clients send; `headgate http token` makes it. Only its owner and group
    may have access. Default: no tokens are needed."""
    advertised_host: Text | None = None
    """Name or address under which browsers and the other daemons reach this daemon; the status page links
    to it. Default: host, or the name of the machine if that is every address."""
    peer_ca_file: Text | None = None
    """Certificates (PEM) of the authorities that vouch for the other daemons' HTTP servers: each daemon
    asks them for the status page. Default: those of the system."""
    runbook_url: Text | None = None
    """Where your copy of deploy/prometheus/RUNBOOK.md is; the status page links to its entries. Default:
    none, and the page names them."""
    open_metrics: bool = False
    """Serve /metrics without a token. /livez and the status code of /readyz never need one. Default: false."""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """``[metrics]``: metrics besides the totals."""

    backlog_topics: Annotated[list[str], Meta(max_length=20)] = []
    """Topics whose subscriptions are exported by name however quiet they are, the first 50 of each. At
    most 20, because each subscription adds four series."""
    max_subscriptions: Annotated[int, Meta(ge=0, le=1000)] = 100
    """Subscriptions of the shards led here, besides those of backlog_topics, that are exported by name:
    the busiest. Each has four series. Default: 100, about as many series as the rest of a daemon."""
    backlog_interval_seconds: Annotated[float, Meta(ge=1, le=60)] = 15.0
    """Interval at which Spark counts the backlogs of the shards led here, in seconds; each count costs a warm
    run. At most 60: a drain check reads what was stored since. Default: 15, a usual scrape interval."""


class IngestSettings(Section, frozen=True, kw_only=True):
    """``[ingest]``: how batches are ingested."""

    queue_bytes: Annotated[int, Meta(ge=MAX_MESSAGE_BYTES, le=MAX_QUEUE_BYTES)] = 64 * 1024 * 1024
    """Bytes of accepted batches per shard that may wait for the store; above it, batches are
    rejected as "unavailable". Default: 64 MiB."""
    commit_interval_ms: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Shortest time between the beginnings of two commits of a shard, in milliseconds. On a bucket each
    commit is a request that is billed: 100 allows ten a second, and lets a record wait for up to
    100 ms. What waits counts against ``queue_bytes``. Default: 0, no pause."""
    announce_bytes: Annotated[int, Meta(ge=0, le=512 * 1024)] = 128 * 1024
    """A chunk is sent to the consumers at the end of its shard, which need not read it from the store then, if the
    broker sends at most so many bytes for it to all clients together. Every user who may consume can receive such
    chunks. Default: 128 KiB, a chunk of 1 MB/s on a bucket; 0: none."""
    write_timeout_seconds: Seconds = 10.0
    """Longest wait for the store to write a chunk, in seconds. After it the outcome is unknown and
    the leader term ends. Default: 10."""
    unreachable_seconds: Seconds = 15.0
    """A leader that cannot reach broker or store for this long gives up its shards, in seconds.
    Default: 15, longer than a restart and shorter than an outage."""
    producer_idle_seconds: Annotated[float, Meta(ge=60, le=31_536_000)] = 7 * 86_400.0
    """An anonymous producer that has sent nothing for this long is forgotten, in seconds; time
    without a leader counts as an hour at most. A named producer only loses its deduplication
    window: its name and source position stay. Default: a week, longer than most devices are switched off."""
    max_producers: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Maximum number of anonymous producers remembered per shard; above it, the longest idle are
    forgotten first. Default: 100 000, at about 1 kB per quiet producer."""
    max_named_producers: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Maximum number of named producers per shard; above it, opening a new name is rejected. Names
    stay until ``headgate producer delete`` removes them. Default: 10 000, at about 1 kB per quiet
    producer and up to 20 kB per busy one."""
    mqtt_devices: bool = True
    """Ingest messages that MQTT devices publish to ``headgate/<cluster>/publish/…``, at least once each. SIGHUP
    applies a change at once: after switching it off, messages that wait at the broker are still stored, later ones are
    not."""


class SubscriptionSettings(Section, frozen=True, kw_only=True):
    """``[subscriptions]``: consumer sessions."""

    grace_seconds: Seconds = 60.0
    """A disconnected consumer keeps its segments for this long, in seconds. Default: 60, so that a
    restart or a short network failure moves nothing."""
    revoke_timeout_seconds: Seconds = 30.0
    """A consumer that does not confirm a revocation within this time is fenced by the next
    generation, in seconds, but not before three heartbeats. Default: 30."""
    heartbeat_interval_seconds: Seconds = 5.0
    """Interval of the consumers' heartbeats, in seconds. The grace period must cover three of them. Default: 5."""


class SnapshotSettings(Section, frozen=True, kw_only=True):
    """``[snapshots]``: how much of the ledger a new leader has to read."""

    min_chunks: Annotated[int, Meta(ge=1, le=10_000_000)] = 2000
    """Number of new chunks after which a shard's state is written as a snapshot. Default: 2000,
    about 0.3 s of reading for a leader without the state on a local disk, and 6 s on a store with 40 ms."""
    min_interval_seconds: Annotated[float, Meta(ge=0.5, le=86_400)] = 60.0
    """Shortest interval between two snapshot jobs, in seconds. Each job uses one core for about a
    second. Default: 60; a leader without the state reads what was written meanwhile in seconds."""


class ScalingSettings(Section, frozen=True, kw_only=True):
    """``[scaling]``: automatic splits and merges. A topic can override them: `headgate topic set`.

    SIGHUP applies changes of all of these at once.
    """

    split: bool = False
    """Split busy segments. Default: off, so that topics never change unasked."""
    merge: bool = False
    """Merge idle adjacent segments. Default: off."""
    min_segments: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Never merge below this number of active segments. A topic that was created with more keeps
    those unless its own policy says otherwise. Default: 1."""
    max_segments: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Never split beyond this number of active segments. Default: 64; with more than some dozens,
    consumers are the bottleneck, not segments."""
    split_records_per_second: Annotated[float, Meta(gt=0, le=1e12)] = 10_000.0
    """A segment that receives more records per second is split. Default: 10 000, about what one
    consumer processes with little work per record."""
    split_bytes_per_second: Annotated[float, Meta(gt=0, le=1e15)] = 10_000_000.0
    """A segment that receives more bytes of keys and values per second is split. Default: 10 MB, a
    tenth of a gigabit network for one reader."""
    split_for_consumers: bool = True
    """Also split if a subscription has more consumers than the topic has segments, so that none of them is idle."""
    split_window_seconds: Annotated[float, Meta(ge=10, le=600)] = 60.0
    """Rates are averages over this time, in seconds, a multiple of 10. Default: 60, longer than a
    burst and shorter than users wait."""
    merge_window_seconds: Annotated[float, Meta(ge=10, le=600)] = 300.0
    """Adjacent segments are merged if they were idle for all of this time, including its busiest
    split window, in seconds. Default: 300."""
    segment_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 60.0
    """A segment is not split before it has this age, in seconds, and never before a full split window. Default: 60."""
    topic_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 10.0
    """Shortest interval between two changes of a topic, in seconds. Default: 10, so that a topic
    can double within two windows."""
    merge_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 300.0
    """No segments of a topic are merged within this time after a split, in seconds. Default: 300."""


class RetentionSettings(Section, frozen=True, kw_only=True):
    """``[retention]``: how much of each topic is kept. SIGHUP applies changes at once."""

    max_age_seconds: Annotated[float, Meta(ge=-1, le=3_153_600_000)] = -1.0
    """Records older than this, in seconds, are deleted once every STREAM and QUEUE subscription has
    acknowledged them. Whole segments are deleted, and active ones are rolled at an eighth of this age,
    so records may stay an eighth longer. Default: -1, nothing is too old, because deleted records
    cannot be restored. A topic can override this and the next two."""
    max_bytes: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    """A topic that holds more bytes of keys and values loses its oldest ones, once they are
    acknowledged, likewise by segments. Default: -1, no topic is too large."""
    ignore_subscriptions: bool = False
    """Delete also what subscriptions have not acknowledged. What each loses is counted
    (`headgate subscription describe`). Default: off."""
    checkpoint_retention_seconds: Annotated[float, Meta(ge=0, le=3_153_600_000)] = 86_400.0
    """How long a sealed segment is kept for CHECKPOINT subscriptions, which acknowledge nothing, in
    seconds. Default: a day, far older than the checkpoint from which a program restarts."""
    subscription_expiry_seconds: Annotated[float, Meta(ge=0, le=3_153_600_000)] = 0.0
    """A subscription without any consumer for this long no longer retains data and loses what it
    has not read, in seconds. Default: 0, it retains unread data forever."""
    delete_delay_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Time between the pruning of a segment and the deletion of its data, in seconds. Default: 60,
    so that readers learn of it well before."""


class CompactionSettings(Section, frozen=True, kw_only=True):
    """``[compaction]``: rewrite old chunks as large objects, and delete the chunks."""

    enabled: bool = True
    """Compact in the Spark process that this daemon starts, and delete chunks of the shards led
    here. False: neither; then disk usage and the reading of new consumers grow by one object per commit."""
    min_chunks: Annotated[int, Meta(ge=1, le=100_000)] = 8192
    """Number of chunks that are compacted together; up to eight times as many if they are small. Default: 8192, two
    seconds of Spark and one object per segment. 1024 took one second."""
    delay_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 300.0
    """Minimum age of a compacted chunk, in seconds. Default: 300, so that consumers at the tail
    have passed it and read each record once."""
    delete_delay_seconds: Annotated[float, Meta(ge=60, le=31_536_000)] = 21_600.0
    """How long chunks are kept after compaction, in seconds, for readers of other tools and as a
    safeguard. A compaction that takes longer than half of it is discarded. Default: six hours."""


class LogSettings(Section, frozen=True, kw_only=True):
    """``[log]``: what is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Default: ``info``, a few lines per leader change and none per
    record. SIGHUP applies a change at once."""
    format: Literal["auto", "json", "text"] = "auto"
    """``auto``: text on a terminal, one JSON object per line elsewhere."""
