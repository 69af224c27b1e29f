"""Load the daemon's settings from one TOML file, and check all of it before anything starts.

Reads no environment variables (the command line passes in what it needs) and connects to nothing. A `Settings` never
contains a password, only the path of its file.

Rules:

1. An unknown name is an error, so that a misspelled setting does not silently keep its default.
2. Every error names the file, the setting (``$.section.field``), what is wrong and what would be valid.
3. ``[ledger] url`` is the only setting without a default: the operator must choose where data is stored.
4. What the daemon listens on must not be open to other machines without authentication.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from controller.settings import sections
from coordinator.context import CoordinatorSettings
from drain.setting_values import conf_problem, engine_of, is_on_this_machine, own_socket, socket_path
from drain.table_mapping import read_tables
from headgate.errors import ConfigError, InvalidNameError
from headgate.files.named_file import with_located_files
from headgate.protocol.request_fields import require_name
from headgate.settings.arguments import is_port
from headgate.settings.setting_errors import convert_document, explain
from headgate.transport.connection_options import FILES, is_loopback, password_warning, tls_option_problem
from headgate.transport.loopback import host_port

HTTP_FILES: Final = ("certificate_file", "key_file", "client_ca_file", "tokens_file", "peer_ca_file")
EVERY_ADDRESS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared, not listened on
_USERNAME = re.compile(r"[!-9;-~]+")
"""ASCII without space, and without the colon that separates user and password."""

Problem = tuple[str, str]
"""A setting (``section.field``), and what is wrong with it."""


def http_problems(http: sections.HttpSettings) -> Iterator[Problem]:
    """Yield settings that lack their partner, and a server that everyone could read."""
    yield from _partner_problems("http", http, "certificate_file", "key_file")
    if http.client_ca_file is not None and http.certificate_file is None:
        problem = "is set, and certificate_file is not: without TLS, clients present no certificates"
        yield "http.client_ca_file", f"{problem}; set certificate_file and key_file, or remove it"
    if not is_loopback(http.host) and http.tokens_file is None and http.client_ca_file is None:
        problem = (
            f"is not set, and http.host {http.host!r} is not loopback: every machine that reaches port {http.port} "
            "could read status, backlogs and metrics; make a token with `headgate http token NAME --file FILE` and "
            "name FILE here, set client_ca_file, or listen on loopback"
        )
        yield "http.tokens_file", problem


def http_warnings(http: sections.HttpSettings) -> list[str]:
    """Return what is allowed and should not be: tokens that cross a network without TLS."""
    if is_loopback(http.host) or http.tokens_file is None or http.certificate_file is not None:
        return []
    problem = "the network can read the tokens of HTTP clients"
    remedy = "set certificate_file and key_file, or make sure that only a proxy with TLS reaches this port"
    return [f"$.http.certificate_file is not set: {problem}; {remedy}"]


def advertised_url(http: sections.HttpSettings, address: str, machine: str) -> str:
    """Return the URL under which others reach the server; ``address`` is that of its socket, ``machine`` its name."""
    listening, _, port = address.rpartition(":")
    host = http.advertised_host or (machine if listening in EVERY_ADDRESS else http.host)
    return f"{'http' if http.certificate_file is None else 'https'}://{host_port(host, port)}"


def zookeeper_problems(zookeeper: sections.ZooKeeperSettings) -> Iterator[Problem]:
    """Yield everything that the types do not check."""
    yield from _partner_problems("zookeeper", zookeeper, "username", "password_file")
    if (tls_problem := tls_option_problem(zookeeper)) is not None:
        yield f"zookeeper.{tls_problem[0]}", tls_problem[1]
    if problem := _hosts_problem(zookeeper.hosts):
        yield "zookeeper.hosts", problem
    if zookeeper.username is not None and not _USERNAME.fullmatch(zookeeper.username):
        yield (
            "zookeeper.username",
            f"{zookeeper.username!r} is not a user of ZooKeeper; use ASCII letters and signs, but no space and no :",
        )


def zookeeper_warnings(zookeeper: sections.ZooKeeperSettings) -> list[str]:
    """Return what a network between daemons and ZooKeeper makes dangerous. Nothing if every server is on loopback."""
    hosts, _, _ = zookeeper.hosts.partition("/")
    if all(is_loopback(server.strip().rpartition(":")[0]) for server in hosts.split(",")):
        return []
    found: list[str] = []
    if zookeeper.username is None:
        found.append(
            "$.zookeeper.username is not set: every client of ZooKeeper can change and delete the nodes of this "
            "cluster; set username and password_file"
        )
    if not zookeeper.tls:
        secrets = "" if zookeeper.username is None else ", the password included,"
        found.append(f"$.zookeeper.tls is not set: the network can read and change everything{secrets}; set tls")
    return found


def _partner_problems(section: str, settings: sections.Section, *pair: str) -> Iterator[Problem]:
    """Yield the setting that is missing although its partner is set."""
    absent = [name for name in pair if getattr(settings, name) is None]
    if len(absent) == 1:
        (present,) = set(pair) - set(absent)
        yield f"{section}.{absent[0]}", f"{present} is set, and {absent[0]} is not; set both, or neither"


def _hosts_problem(hosts: str) -> str | None:
    servers, _, _ = hosts.partition("/")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not is_port(port) or not set(host).isdisjoint("/; "):
            return f"{server.strip()!r} is not host:port; write for example 127.0.0.1:2181, or a comma-separated list"
    return None


class Settings(sections.Section, frozen=True, kw_only=True):
    """All settings of a daemon."""

    cluster: sections.ClusterSettings = sections.ClusterSettings()
    instance: sections.InstanceSettings = sections.InstanceSettings()
    spread: sections.SpreadSettings = sections.SpreadSettings()
    standby: sections.StandbySettings = sections.StandbySettings()
    zookeeper: sections.ZooKeeperSettings = sections.ZooKeeperSettings()
    broker: sections.BrokerSettings = sections.BrokerSettings()
    access: sections.AccessSettings = sections.AccessSettings()
    ledger: sections.LedgerSettings
    drain: sections.DrainSettings = sections.DrainSettings()
    http: sections.HttpSettings = sections.HttpSettings()
    metrics: sections.MetricsSettings = sections.MetricsSettings()
    ingest: sections.IngestSettings = sections.IngestSettings()
    subscriptions: sections.SubscriptionSettings = sections.SubscriptionSettings()
    snapshots: sections.SnapshotSettings = sections.SnapshotSettings()
    scaling: sections.ScalingSettings = sections.ScalingSettings()
    retention: sections.RetentionSettings = sections.RetentionSettings()
    compaction: sections.CompactionSettings = sections.CompactionSettings()
    log: sections.LogSettings = sections.LogSettings()

    @property
    def drain_socket(self) -> str:
        """Path of the Spark process' socket. Without a setting, no other daemon of this machine has the same."""
        return self.drain.socket or str(own_socket(Path(self.drain.folder), self.cluster.name, self.instance.name))

    def for_coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            grace_seconds=self.subscriptions.grace_seconds,
            revoke_timeout_seconds=self.subscriptions.revoke_timeout_seconds,
            heartbeat_interval_seconds=self.subscriptions.heartbeat_interval_seconds,
            poll_min_seconds=self.drain.poll_min_seconds,
            poll_max_seconds=self.drain.poll_max_seconds,
            # A check waits until its segments' acknowledgements are durable, then for the run.
            poll_check_timeout_seconds=self.drain.run_timeout_seconds + self.ingest.write_timeout_seconds,
        )

    def replace(self, **sections: msgspec.Struct) -> Self:
        return msgspec.structs.replace(self, **sections)

    def rows(self) -> list[tuple[str, str]]:
        """Return every setting as ("section.field", value), in the order of the sections. Contains no secret."""
        return [
            (f"{section}.{field}", "" if value is None else str(value))
            for section in self.__struct_fields__
            for field, value in msgspec.structs.asdict(getattr(self, section)).items()
        ]


def load_settings(path: Path, *, default_instance: str = "headgate", credentials: Path | None = None) -> Settings:
    """Return the settings in the TOML file ``path``.

    Relative paths in the file are relative to its folder; the returned settings contain absolute paths.

    Args:
        path: the file.
        default_instance: name of the daemon if the file does not set one.
        credentials: folder of systemd's credentials, if there is one.

    Raises ConfigError: the file cannot be read, or is invalid.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the settings: {error.strerror}; name another file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); a settings file is TOML") from None
    settings = parse_settings(text, str(path))
    if not settings.instance.name:
        settings = settings.replace(instance=sections.InstanceSettings(name=default_instance))
    settings = settings.replace(
        broker=with_located_files(settings.broker, ("password_file", *FILES), path.parent, credentials),
        access=_checked_access(settings.access, path),
        zookeeper=with_located_files(settings.zookeeper, ("password_file", *FILES), path.parent, credentials),
        http=with_located_files(settings.http, HTTP_FILES, path.parent, credentials),
    )
    drain = settings.drain
    drain = msgspec.structs.replace(drain, folder=str((path.parent / drain.folder).absolute()))
    if drain.external is not None:
        tables = (path.parent / drain.external).absolute()
        # Report errors in this file with the settings, not from a Spark process that restarts again and again.
        read_tables(tables)
        drain = msgspec.structs.replace(drain, external=str(tables))
    return settings.replace(drain=drain)


def _checked_access(access: sections.AccessSettings, path: Path) -> sections.AccessSettings:
    """Return ``access`` with an absolute path. Errors in the access file are reported with the settings."""
    if access.file is None:
        if not access.open:
            raise ConfigError(
                f"{path}: $.access.file is not set: name a file with the rights of all users (deploy/access.toml is an "
                "example), or write open = true if every client that reaches the broker may do everything"
            )
        return access
    if access.open:
        raise ConfigError(f"{path}: $.access.open excludes access.file; remove one of the two")
    found = msgspec.structs.replace(access, file=str((path.parent / access.file).absolute()))
    found.rules()
    return found


def parse_settings(text: str, source: str) -> Settings:
    """Return the settings in ``text``; errors name ``source``. Raises ConfigError."""
    try:
        settings = convert_document(tomllib.loads(text), Settings)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {explain(str(error), Settings)}") from None
    for field, problem in _problems(settings):
        raise ConfigError(f"{source}: $.{field}: {problem}")
    return settings


def _problems(settings: Settings) -> Iterator[Problem]:
    """Yield everything that the types do not check."""
    yield from _name_problems(settings)
    yield from zookeeper_problems(settings.zookeeper)
    if problem := ledger_problem(settings.ledger.url):
        yield "ledger.url", problem
    yield from _drain_problems(settings.drain)
    yield from http_problems(settings.http)
    broker = settings.broker
    if "/" in broker.host or broker.host.count(":") == 1:
        yield "broker.host", f"{broker.host!r} is no host name or address; broker.port is the port"
    if broker.password_file is not None and broker.username is None:
        problem = "password_file is set, but username is not; MQTT requires a user name with a password"
        yield "broker.username", problem
    if broker.password_file == "":
        yield "broker.password_file", "is empty; name a file, or remove the setting"
    if (tls_problem := tls_option_problem(broker)) is not None:
        yield f"broker.{tls_problem[0]}", tls_problem[1]
    yield from _scaling_problems(settings.scaling)
    heartbeat, grace = settings.subscriptions.heartbeat_interval_seconds, settings.subscriptions.grace_seconds
    if heartbeat * 3 > grace:
        problem = f"{heartbeat:g} is more than a third of grace_seconds {grace:g}"
        yield "subscriptions.heartbeat_interval_seconds", f"{problem}: a lost heartbeat would evict consumers"


def security_warnings(settings: Settings) -> list[str]:
    """Return what is allowed and should not be: secrets that cross a network without TLS, and servers without users."""
    broker = settings.broker
    advice = password_warning(broker, broker.host, broker.password_file)
    found = [] if advice is None else [f"$.broker.{advice}"]
    return [*found, *http_warnings(settings.http), *zookeeper_warnings(settings.zookeeper)]


def _scaling_problems(scaling: sections.ScalingSettings) -> Iterator[Problem]:
    if scaling.min_segments > scaling.max_segments:
        yield "scaling.min_segments", f"{scaling.min_segments} is above max_segments {scaling.max_segments}"
    if scaling.merge_window_seconds < scaling.split_window_seconds:
        problem = (
            f"{scaling.merge_window_seconds:g} is below split_window_seconds {scaling.split_window_seconds:g}: "
            "idle segments must be observed for at least one split window"
        )
        yield "scaling.merge_window_seconds", problem


def _drain_problems(drain: sections.DrainSettings) -> Iterator[Problem]:
    try:
        if drain.socket is not None:
            socket_path(drain.socket)
        elif not drain.spawn and drain.results is None:
            yield "drain.socket", "is not set; with spawn = false, name the one on which the Spark process listens"
    except ConfigError as error:
        yield "drain.socket", str(error)
    try:
        engine_of(drain.master)
    except ConfigError as error:
        yield "drain.master", str(error)
    if drain.results is not None and (problem := ledger_problem(drain.results)):
        yield "drain.results", problem
    if drain.results is not None and drain.external is not None:
        problem = "excludes drain.results: where results are polled, no process reads tables; remove one of the two"
        yield "drain.external", problem
    yield from _drain_settings_without_effect(drain)
    for name in drain.spark_conf:
        if problem := conf_problem(name):
            yield "drain.spark_conf", problem
    if drain.poll_min_seconds > drain.poll_max_seconds:
        problem = f"{drain.poll_min_seconds:g} is above poll_max_seconds {drain.poll_max_seconds:g}"
        yield "drain.poll_min_seconds", problem


def _drain_settings_without_effect(drain: sections.DrainSettings) -> Iterator[Problem]:
    problems = {}
    if drain.results is None:
        problems["results_stale_seconds"] = "has no effect without drain.results"
    else:
        problems["socket"] = "has no effect with drain.results: no Spark process is asked; remove one of the two"
    if drain.results is not None or not drain.spawn:
        what = "drain.spawn = false" if drain.results is None else "drain.results"
        started = f"has no effect with {what}: this daemon starts no Spark process; set it where that is started"
        for name in ("master", "external", "spark_conf", "driver_memory", "start_timeout_seconds"):
            problems[name] = started
    for name, problem in problems.items():
        if getattr(drain, name) != getattr(sections.DrainSettings(), name):
            yield f"drain.{name}", problem


def ledger_unreachable_from_executors(settings: Settings) -> bool:
    """Whether Spark's executors may run on machines without the ledger's folder."""
    return urlsplit(settings.ledger.url).scheme == "file" and not is_on_this_machine(settings.drain.master)


def _name_problems(settings: Settings) -> Iterator[Problem]:
    named = [
        (f"metrics.backlog_topics[{at}]", "topic", name) for at, name in enumerate(settings.metrics.backlog_topics)
    ]
    named.append(("cluster.name", "cluster", settings.cluster.name))
    if settings.instance.name:
        named.append(("instance.name", "instance", settings.instance.name))
    for field, kind, name in named:
        try:
            require_name(kind, name)
        except InvalidNameError as error:
            yield field, str(error)


def ledger_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    if parts.scheme not in sections.LEDGER_SCHEMES:
        return f"{url!r} has none of the schemes {', '.join(sections.LEDGER_SCHEMES)}; write file:///absolute/folder or s3://bucket"
    if parts.username or parts.password:
        return "must not contain credentials; set them in the environment (AWS_ACCESS_KEY_ID, …)"
    if parts.scheme == "file":
        if parts.netloc or parts.path == "/" or not parts.path.startswith("/"):
            return f"{url!r}: write file:///absolute/folder"
    elif not parts.netloc:
        return f"{url!r} names no bucket; write {parts.scheme}://bucket/path"
    return None
