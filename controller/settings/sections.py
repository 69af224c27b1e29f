"""The sections of the daemon's settings: what exists, in which unit, with which default, and why that one.

Limits of single fields stand here. Which combinations make no sense, and where a file of settings comes from, is for
controller.settings.load; import from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from drain.spark.master import DEFAULT_MASTER
from headgate.errors import ConfigError
from headgate.protocol.messages import MAX_MESSAGE_BYTES

MAX_PORT = 65_535

Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]
PortOrAny = Annotated[int, Meta(ge=0, le=MAX_PORT)]
Text = Annotated[str, Meta(min_length=1)]

LEDGER_SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https")
UNIX_SOCKET_PATH_BYTES = 107
"""Linux takes no longer path for a socket."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""


class ClusterSettings(Section, frozen=True, kw_only=True):
    """``[cluster]``: which cluster this daemon belongs to."""

    name: str = "local"
    """Part of every broker topic and ZooKeeper path, so that clusters may share servers."""
    shards: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Number of shards. Fixed when the cluster first starts (ZooKeeper holds it); a few per daemon spread the load."""


class InstanceSettings(Section, frozen=True, kw_only=True):
    """``[instance]``: this daemon."""

    name: str = ""
    """Its name in logs, announcements and ZooKeeper; empty: host name and process number, unique without any care."""


class ZooKeeperSettings(Section, frozen=True, kw_only=True):
    """``[zookeeper]``: who elects."""

    hosts: Text = "127.0.0.1:2181"
    """``host:port`` of each server, with commas between; a ``/path`` at the end is put before every path we use."""
    session_timeout_seconds: Annotated[float, Meta(ge=2, le=60)] = 6.0
    """How long a silent daemon keeps its locks: above a long garbage collection, below what users call an outage."""


class BrokerSettings(Section, frozen=True, kw_only=True):
    """``[broker]``: who carries."""

    host: Text = "127.0.0.1"
    """Host name or address of the MQTT broker."""
    port: Port = 1883
    """Its port; 1883 is MQTT's own."""
    username: str | None = None
    """User name, where the broker asks for one."""
    password_file: str | None = None
    """File that holds the password. A relative name: systemd's credentials first, then beside this file."""

    def password(self) -> str | None:
        """Return the password, read now, or None where none is set. Raises ConfigError if its file is of no use."""
        if self.password_file is None:
            return None
        try:
            password = Path(self.password_file).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(f"$.broker.password_file: cannot read {self.password_file}: {reason}") from None
        if not password:
            raise ConfigError(f"$.broker.password_file: {self.password_file} is empty; write the password into it")
        return password


class LedgerSettings(Section, frozen=True, kw_only=True):
    """``[ledger]``: who keeps."""

    url: Text
    """``file:///absolute/folder``, or ``s3://bucket/path``, ``gs://…``, ``az://…``. Credentials: by the environment."""


class DrainSettings(Section, frozen=True, kw_only=True):
    """``[drain]``: who counts, and how often it is asked."""

    socket: str = "unix:/run/headgate/drain.sock"
    """``unix:/absolute/path`` or ``tcp:127.0.0.1:port`` of the Spark process; systemd owns the default's folder."""
    spawn: bool = True
    """The daemon starts the Spark process and starts it again when it dies. False: somebody else runs it."""
    master: Text = DEFAULT_MASTER
    """Where Spark counts: ``local[*]`` (all cores of this machine), ``spark://host:port``, ``yarn``, ``k8s://…``, or
    ``sc://host:port`` for Spark Connect."""
    reader: Literal["auto", "spark"] = "auto"
    """``auto``: Spark reads a folder by itself, and a bucket through obstore, which needs no jars; ``spark``: a
    bucket by itself too, with Hadoop's jars for that store, which ``spark_conf`` or the cluster must name."""
    results: str | None = None
    """Where somebody else publishes results (``python -m drain.backlog.job --out URL``, by cron or Airflow): they are
    polled, and no Spark process is started or asked. None: Spark is asked."""
    results_stale_seconds: Seconds = 3600.0
    """Without a newer result for so long, while somebody waits for one, the daemon says that it is degraded: above the
    interval of most jobs."""
    spark_conf: dict[str, str] = {}
    """Further settings of Spark, which win over ours: ``{"spark.executor.memory" = "2g"}``. No secrets: they would show
    in the list of processes."""
    folder: Text = "/var/lib/headgate/drain"
    """Where the Spark process keeps its scratch files and its log; systemd owns the default's parent."""
    driver_memory: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[kmg]$")] = "1g"
    """Heap of the Spark process, as Spark writes it (``512m``, ``2g``); enough for millions of entries a run."""
    poll_min_seconds: Seconds = 2.0
    """First pause between two questions for a subscription: far above a warm run's 35 ms, short for a person."""
    poll_max_seconds: Seconds = 900.0
    """The pause doubles up to this; whatever shows progress begins again at the shortest."""
    run_timeout_seconds: Seconds = 60.0
    """A question that takes longer counts as "not drained yet"; a cold first run takes about 10 s."""
    external: Text | None = None
    """TOML file that names the tables of external topics (drain.external.table_mapping); read when Spark starts. Not
    together with ``results``, which are of the ledger alone."""


class HttpSettings(Section, frozen=True, kw_only=True):
    """``[http]``: metrics, health and status."""

    host: Text = "127.0.0.1"
    """Address to listen on; loopback, because nothing asks for a password here."""
    port: PortOrAny = 9464
    """Port to listen on; 0: any free one. 9464 is what Prometheus exporters of this kind use."""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """``[metrics]``: what is exported beside the totals."""

    backlog_topics: Annotated[list[str], Meta(max_length=20)] = []
    """Topics whose backlogs are exported under their names and those of their subscriptions; at most 20, because each
    makes four series a subscription."""
    backlog_interval_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    """How often Spark is asked for the backlogs of the shards led: a usual scrape interval; each costs a warm run."""


class IngestSettings(Section, frozen=True, kw_only=True):
    """``[ingest]``: how batches are taken in."""

    pipelining: bool = True
    """Producers may keep several batches in flight. False: one at a time, should a client get it wrong. SIGHUP applies
    a change at once."""
    queue_bytes: Annotated[int, Meta(ge=MAX_MESSAGE_BYTES, le=2**40)] = 64 * 1024 * 1024
    """Per shard: accepted bytes that may wait for the store; beyond, batches are rejected as "unavailable"."""
    write_timeout_seconds: Seconds = 10.0
    """Longest wait for the store to take a chunk; then its outcome is unknown and the reign ends."""
    unreachable_seconds: Seconds = 15.0
    """A leader without broker or store for this long lets another try: above a restart, below an outage."""
    missing_epoch_rejection_delay_seconds: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """How long the refusal of a batch without leader epoch is held back, so that an old client's retries are slow."""
    producer_idle_seconds: Annotated[float, Meta(ge=60, le=31_536_000)] = 7 * 86_400.0
    """A producer that sent nothing for this long is forgotten: a week covers the longest holiday of a device."""
    max_producers: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Per shard: producers remembered; beyond, the longest idle are forgotten first. About 1 kB each when quiet."""
    mqtt_devices: bool = True
    """Take in what plain MQTT clients publish to ``headgate/<cluster>/publish/…``, at least once each. SIGHUP applies
    a change at once: off, what waits at the broker is still stored, and what is published from then on is nobody's."""


class SubscriptionSettings(Section, frozen=True, kw_only=True):
    """``[subscriptions]``: how consumers are kept track of."""

    grace_seconds: Seconds = 60.0
    """A silent consumer keeps its segments for this long, so that a restart or a short loss moves nothing."""
    revoke_timeout_seconds: Seconds = 30.0
    """A consumer that does not confirm a revocation for this long is fenced by the next generation."""
    heartbeat_interval_seconds: Seconds = 5.0
    """How often consumers say that they live; three missed ones must fit into the grace period."""


class SnapshotSettings(Section, frozen=True, kw_only=True):
    """``[snapshots]``: how much of the ledger a new leader has to read."""

    min_chunks: Annotated[int, Meta(ge=1, le=10_000_000)] = 2000
    """New chunks after which the shard's state is written down: some 0.6 s of reading for whoever restores."""
    min_interval_seconds: Annotated[float, Meta(ge=0.5, le=86_400)] = 30.0
    """Shortest time between two rounds of snapshots, each a process of its own on one core for about a second."""


class ScalingSettings(Section, frozen=True, kw_only=True):
    """``[scaling]``: when segments split and merge by themselves. A topic may say otherwise: `headgate topic set`.

    SIGHUP applies changes of all of these at once.
    """

    split: bool = False
    """Split what is too busy. Off: who has not asked for it would wonder who changed the topic."""
    merge: bool = False
    """Merge what has become quiet."""
    min_segments: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Fewest active segments to merge down to; a topic created with more keeps those unless its own policy says."""
    max_segments: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Most active segments to split up to; beyond some dozens consumers rather than segments are what is missing."""
    split_records_per_second: Annotated[float, Meta(gt=0, le=1e12)] = 10_000.0
    """A segment that takes in more splits: about what one consumer gets through while it does little per record."""
    split_bytes_per_second: Annotated[float, Meta(gt=0, le=1e15)] = 10_000_000.0
    """The same in bytes of keys and values: a tenth of a gigabit network for one reader."""
    split_size_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0
    """An active segment that holds more splits, so that nothing which is kept or deleted as a whole grows without
    end; 0: size alone splits nothing."""
    merge_load_ratio: Annotated[float, Meta(gt=0, le=0.5)] = 0.25
    """Two neighbours merge if together they stay below this share of the split thresholds. At a quarter, traffic has to
    grow fourfold before what was merged splits again."""
    split_for_consumers: bool = True
    """Split also where a subscription has more consumers than the topic has segments, so that none of them idles."""
    consumer_split_load_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """… but only a segment above this share of the split thresholds: idle consumers of an idle topic are no loss."""
    split_window_seconds: Annotated[float, Meta(ge=10, le=600)] = 60.0
    """Rates are means over this long: above a burst, below what makes people wait. Whole tens of seconds."""
    merge_window_seconds: Annotated[float, Meta(ge=10, le=600)] = 300.0
    """Neighbours merge if they have been quiet for all of this long, the busiest split window in it included."""
    segment_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 60.0
    """A segment is not split before it has existed for this long, and never before a whole split window."""
    topic_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 10.0
    """Between two changes of one topic: one after another, so that a topic may double within two windows."""
    merge_cooldown_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 300.0
    """After a split nothing of the topic merges for this long."""
    max_undrained_depth: Annotated[int, Meta(ge=1, le=64)] = 8
    """A segment behind more generations of segments that some STREAM subscription has still to drain changes no more:
    each costs a reader that catches up one more handover. Eight doublings are 256 segments."""


class RetentionSettings(Section, frozen=True, kw_only=True):
    """``[retention]``: how long data is kept that everybody has read. SIGHUP applies changes at once."""

    retention_seconds: Annotated[float, Meta(ge=-1, le=3_153_600_000)] = -1.0
    """A sealed segment goes this long after it was sealed, once every STREAM and QUEUE subscription has drained it and
    its ancestors are gone; -1: never, because what is gone cannot be brought back. A topic may differ."""
    checkpoint_retention_seconds: Annotated[float, Meta(ge=0, le=3_153_600_000)] = 86_400.0
    """CHECKPOINT subscriptions acknowledge nothing; a sealed segment waits so long for them, and no longer: a day is
    far above the age of the checkpoint that a program restarts from."""
    subscription_expiry_seconds: Annotated[float, Meta(ge=0, le=3_153_600_000)] = 0.0
    """A subscription without any consumer for this long keeps nothing any more, and loses what it has not read; 0: it
    keeps for ever what it has not read."""
    delete_delay_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 60.0
    """Between the moment at which a segment goes and the deletion of its data: who reads it hears of it long before."""


class CompactionSettings(Section, frozen=True, kw_only=True):
    """``[compaction]``: old chunks become large objects, and are deleted."""

    enabled: bool = True
    """Roll up in the Spark process that this daemon starts, and delete chunks of shards that it leads. False: neither;
    disk use and a fresh consumer's reading then grow by an object a commit."""
    min_chunks: Annotated[int, Meta(ge=1, le=100_000)] = 1024
    """Chunks that are rolled up at once: a second of Spark's time, and one object a segment in place of them."""
    delay_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] = 300.0
    """Least age of a chunk that is rolled up: consumers at the tail are past it, and read each record once."""
    delete_delay_seconds: Annotated[float, Meta(ge=1, le=31_536_000)] = 21_600.0
    """How long chunks stay after they were rolled up: six hours, for readers of other tools and a second thought. No
    promise of ours needs it."""


class LogSettings(Section, frozen=True, kw_only=True):
    """``[log]``: what is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written; ``info`` is some lines per change of leader, none per record. SIGHUP applies
    a change at once."""
    format: Literal["auto", "json", "text"] = "auto"
    """``auto``: text on a terminal, one JSON object a line anywhere else."""
