"""The daemon's settings: one TOML file, checked as a whole before anything starts.

What is decided here: which settings exist, their units, their defaults and why, and which combinations make no sense.
What is not: nothing is looked up in the environment (the command line passes in what it found there), nothing is
connected to, and no password is ever part of a `Settings`: only the file that holds it.

Rules:

1. An unknown name is an error, never ignored: a misspelt setting must not silently be a default.
2. Every error names the file, the setting (``$.section.field``), what is wrong and what would be right.
3. ``[ledger] url`` is the only setting without a default: where the truth is kept must be chosen.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from controller.settings_errors import explain
from headgate.errors import ConfigError, InvalidNameError
from headgate.messages import MAX_MESSAGE_BYTES, require_name

HIGHEST_PORT = 65_535

Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Port = Annotated[int, Meta(ge=1, le=HIGHEST_PORT)]
PortOrAny = Annotated[int, Meta(ge=0, le=HIGHEST_PORT)]
Text = Annotated[str, Meta(min_length=1)]

LEDGER_SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "https")
UNIX_SOCKET_PATH_BYTES = 107
"""Linux takes no longer path for a socket."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""


class ClusterSettings(_Section, frozen=True, kw_only=True):
    """``[cluster]``: which cluster this daemon belongs to."""

    name: str = "local"
    """Part of every broker topic and ZooKeeper path, so that clusters may share servers."""
    shards: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Number of shards. Fixed when the cluster first starts (ZooKeeper holds it); a few per daemon spread the load."""


class InstanceSettings(_Section, frozen=True, kw_only=True):
    """``[instance]``: this daemon."""

    name: str = ""
    """Its name in logs, announcements and ZooKeeper; empty: host name and process number, unique without any care."""


class ZooKeeperSettings(_Section, frozen=True, kw_only=True):
    """``[zookeeper]``: who elects."""

    hosts: Text = "127.0.0.1:2181"
    """``host:port`` of each server, with commas between; a ``/path`` at the end is put before every path we use."""
    session_timeout_seconds: Annotated[float, Meta(ge=2, le=60)] = 6.0
    """How long a silent daemon keeps its locks: above a long garbage collection, below what users call an outage."""


class BrokerSettings(_Section, frozen=True, kw_only=True):
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


class LedgerSettings(_Section, frozen=True, kw_only=True):
    """``[ledger]``: who keeps."""

    url: Text
    """``file:///absolute/folder``, or ``s3://bucket/path``, ``gs://…``, ``az://…``. Credentials: by the environment."""


class DrainSettings(_Section, frozen=True, kw_only=True):
    """``[drain]``: who counts, and how often it is asked."""

    socket: str = "unix:/run/headgate/drain.sock"
    """``unix:/absolute/path`` or ``tcp:127.0.0.1:port`` of the Spark process; systemd owns the default's folder."""
    spawn: bool = True
    """The daemon starts the Spark process and starts it again when it dies. False: somebody else runs it."""
    master: Text = "local[*]"
    """Spark master, or ``sc://host:port`` for Spark Connect; all cores of this machine when nothing is chosen."""
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


class HttpSettings(_Section, frozen=True, kw_only=True):
    """``[http]``: metrics, health and status."""

    host: Text = "127.0.0.1"
    """Address to listen on; loopback, because nothing asks for a password here."""
    port: PortOrAny = 9464
    """Port to listen on; 0: any free one. 9464 is what Prometheus exporters of this kind use."""


class IngestSettings(_Section, frozen=True, kw_only=True):
    """``[ingest]``: how batches are taken in."""

    pipelining: bool = True
    """Producers may keep several batches in flight. False: one at a time, should a client get it wrong. SIGHUP applies
    a change at once."""
    queue_bytes: Annotated[int, Meta(ge=MAX_MESSAGE_BYTES, le=2**40)] = 64 * 1024 * 1024
    """Per shard: accepted bytes that may wait for the store; beyond, batches are refused as "unavailable"."""
    write_timeout_seconds: Seconds = 10.0
    """Longest wait for the store to take a chunk; then its outcome is unknown and the reign ends."""
    unreachable_seconds: Seconds = 15.0
    """A leader without broker or store for this long lets another try: above a restart, below an outage."""
    refuse_epochless_after_seconds: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """How long the refusal of a batch without leader epoch is held back, so that an old client's retries are slow."""
    producer_idle_seconds: Annotated[float, Meta(ge=60, le=31_536_000)] = 7 * 86_400.0
    """A producer that sent nothing for this long is forgotten: a week covers the longest holiday of a device."""
    max_producers: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    """Per shard: producers remembered; beyond, the longest idle are forgotten first. About 1 kB each when quiet."""
    devices: bool = True
    """Take in what plain MQTT clients publish to ``headgate/<cluster>/publish/…``, at least once each."""


class SubscriptionSettings(_Section, frozen=True, kw_only=True):
    """``[subscriptions]``: how consumers are kept track of."""

    grace_seconds: Seconds = 60.0
    """A silent consumer keeps its segments for this long, so that a restart or a short loss moves nothing."""
    revoke_timeout_seconds: Seconds = 30.0
    """A consumer that does not confirm a revocation for this long is fenced by the next generation."""
    heartbeat_interval_seconds: Seconds = 5.0
    """How often consumers say that they live; three missed ones must fit into the grace period."""


class LogSettings(_Section, frozen=True, kw_only=True):
    """``[log]``: what is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written; ``info`` is some lines per change of leader, none per record. SIGHUP applies
    a change at once."""
    format: Literal["auto", "json", "text"] = "auto"
    """``auto``: text on a terminal, one JSON object a line anywhere else."""


class Settings(_Section, frozen=True, kw_only=True):
    """Everything that a daemon is told."""

    cluster: ClusterSettings = ClusterSettings()
    """Which cluster."""
    instance: InstanceSettings = InstanceSettings()
    """Which daemon."""
    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    """Elections."""
    broker: BrokerSettings = BrokerSettings()
    """Messages."""
    ledger: LedgerSettings
    """Objects."""
    drain: DrainSettings = DrainSettings()
    """Spark."""
    http: HttpSettings = HttpSettings()
    """Metrics and health."""
    ingest: IngestSettings = IngestSettings()
    """Batches."""
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    """Consumers."""
    log: LogSettings = LogSettings()
    """Logs."""

    def replace(self, **sections: msgspec.Struct) -> Self:
        """Return a copy with some sections exchanged."""
        return msgspec.structs.replace(self, **sections)

    def rows(self) -> list[tuple[str, str]]:
        """Return every setting as ("section.field", value), in the order of this file. Holds no secret."""
        return [
            (f"{section}.{field}", "" if value is None else str(value))
            for section in self.__struct_fields__
            for field, value in msgspec.structs.asdict(getattr(self, section)).items()
        ]


def load_settings(path: Path, *, default_instance: str = "headgate", credentials: Path | None = None) -> Settings:
    """Return the settings in the TOML file ``path``.

    ``default_instance`` names the daemon where the file does not. ``credentials`` is the folder of systemd's
    credentials, if there is one. Relative names of files count from the settings' own folder; those returned are
    absolute.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.

    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the settings: {error.strerror}; name another file with --config"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); settings are a TOML file") from None
    settings = parse_settings(text, str(path))
    if not settings.instance.name:
        settings = settings.replace(instance=InstanceSettings(name=default_instance))
    if settings.broker.password_file is not None:
        found = _password_path(settings.broker.password_file, path.parent, credentials)
        settings = settings.replace(broker=msgspec.structs.replace(settings.broker, password_file=str(found)))
    folder = str((path.parent / settings.drain.folder).absolute())
    return settings.replace(drain=msgspec.structs.replace(settings.drain, folder=folder))


def parse_settings(text: str, source: str) -> Settings:
    """Return the settings in ``text``; ``source`` names it in errors. Raises ConfigError."""
    try:
        settings = msgspec.convert(tomllib.loads(text), Settings)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {explain(str(error), Settings)}") from None
    for field, problem in _senseless(settings):
        raise ConfigError(f"{source}: $.{field}: {problem}")
    return settings


def _password_path(name: str, folder: Path, credentials: Path | None) -> Path:
    if not Path(name).is_absolute() and credentials is not None and (credentials / name).is_file():
        return (credentials / name).absolute()
    return (folder / name).absolute()


def _senseless(settings: Settings) -> list[tuple[str, str]]:
    """Return (field, problem) of everything that each field alone cannot show."""
    drain, subscriptions = settings.drain, settings.subscriptions
    found = _names(settings)
    if problem := _hosts_problem(settings.zookeeper.hosts):
        found.append(("zookeeper.hosts", problem))
    if problem := _ledger_problem(settings.ledger.url):
        found.append(("ledger.url", problem))
    if problem := socket_problem(drain.socket):
        found.append(("drain.socket", problem))
    if settings.broker.password_file is not None and settings.broker.username is None:
        found.append(("broker.username", "a password_file is set, but no username; MQTT takes no password without one"))
    if settings.broker.password_file == "":
        found.append(("broker.password_file", "is empty; name a file, or leave it out"))
    if drain.poll_min_seconds > drain.poll_max_seconds:
        found.append(
            (
                "drain.poll_min_seconds",
                f"{drain.poll_min_seconds:g} is above poll_max_seconds {drain.poll_max_seconds:g}",
            ),
        )
    if subscriptions.heartbeat_interval_seconds * 3 > subscriptions.grace_seconds:
        found.append(
            (
                "subscriptions.heartbeat_interval_seconds",
                (
                    f"{subscriptions.heartbeat_interval_seconds:g} is more than a third of grace_seconds "
                    f"{subscriptions.grace_seconds:g}: one lost heartbeat would look like a lost consumer"
                ),
            ),
        )
    return found


def _names(settings: Settings) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for field, kind, name in (
        ("cluster.name", "cluster", settings.cluster.name),
        ("instance.name", "instance", settings.instance.name),
    ):
        if name or field == "cluster.name":
            try:
                require_name(kind, name)
            except InvalidNameError as error:
                found.append((field, str(error)))
    return found


def _hosts_problem(hosts: str) -> str | None:
    servers, _, _ = hosts.partition("/")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not _is_port(port):
            return f"{server.strip()!r} is not host:port; write 127.0.0.1:2181, or several with commas between"
    return None


def _ledger_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    if parts.scheme not in LEDGER_SCHEMES:
        return (
            f"{url!r} has none of the schemes {', '.join(LEDGER_SCHEMES)}; write file:///absolute/folder or s3://bucket"
        )
    if parts.username or parts.password:
        return "credentials do not belong into the URL; give them by the environment (AWS_ACCESS_KEY_ID, …)"
    if parts.scheme == "file":
        if parts.netloc or parts.path == "/" or not parts.path.startswith("/"):
            return f"{url!r}: write file:///absolute/folder"
    elif not parts.netloc:
        return f"{url!r} names no bucket; write {parts.scheme}://bucket/path"
    return None


def socket_problem(address: str) -> str | None:
    """Return what is wrong with the address of the drain process, or None."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        if rest == "/" or not rest.startswith("/"):
            return f"{address!r}: write unix:/absolute/path"
        length = len(rest.encode())
        if length > UNIX_SOCKET_PATH_BYTES:
            return (
                f"the path has {length} bytes, and a socket may have {UNIX_SOCKET_PATH_BYTES}; "
                "use a shorter path or tcp:127.0.0.1:port"
            )
        return None
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and _is_port(port):
        return None
    return f"{address!r}: write unix:/absolute/path or tcp:127.0.0.1:port with a port from 1 to 65535"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= HIGHEST_PORT
