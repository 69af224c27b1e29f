"""`headgate up`: a complete node on this machine, without any configuration.

It starts ZooKeeper and the broker, writes the files that clients and further daemons read, and runs a daemon in this
process. The daemon stops first, so that it can hand over and commit while its servers still run.

The daemon logs to a file in the data folder. Standard error shows the steps of the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from controller.cli import run as cli_run
from controller.cli.context import DaemonContext, pass_daemon_context
from controller.cli.readiness_report import ReadinessReport
from controller.local.data_folder import DataFolder, NodeState, reserve_port
from controller.local.security import LocalSecurity
from controller.local.servers import LocalServers
from controller.local.supervised_process import outcome
from controller.settings.files import toml_document
from controller.settings.load import Settings, ledger_problem, load_settings
from controller.settings.sections import ClusterSettings, DrainSettings, InstanceSettings, LogSettings
from drain.setting_values import own_socket
from drain.table_mapping import read_tables
from headgate.cli.exit_codes import InterruptedBySignalError
from headgate.cli.terminal.option_types import FilePath, Url
from headgate.cli.terminal.output import examples
from headgate.errors import ConfigError
from headgate.process.background import cancel_and_wait

if TYPE_CHECKING:
    from controller.daemon import Daemon
    from headgate.process.child_process import ChildProcess
    from metrics.label_values import DrainState

READY_POLL_INTERVAL_SECONDS = 0.1
READINESS_POLL_INTERVAL_SECONDS = 1.0
STOP_TIMEOUT_SECONDS = 15.0
"""Longest wait for a further daemon to hand over; then it is killed."""
SETTINGS_FILE = "headgate.toml"
CLIENT_FILE = "client.toml"
DEFAULT_PORTS = NodeState(mqtt_port=1883, zookeeper_port=2181, http_port=9464, shards=4)

_PORT = click.IntRange(0, 65_535)


@dataclass(frozen=True, slots=True)
class _UpOptions:
    """The options of the command. None: the value of the last start, or the default."""

    shards: int | None
    mqtt_port: int | None
    zookeeper_port: int | None
    http_port: int | None
    daemons: int
    tls: bool = False
    ledger: str | None = None
    results: str | None = None
    external: Path | None = None


@click.command(
    epilog=examples(
        "headgate up",
        "headgate up --tls --data ./secure",
        "headgate up --ledger s3://bucket/headgate",
        "headgate up --data ./other --mqtt-port 0 --zookeeper-port 0 --http-port 0",
        "headgate --config ./other/client.toml topic list",
    )
)
@click.option(
    "--data",
    type=FilePath(file_okay=False),
    default=Path("headgate-data"),
    show_default=True,
    help="Data folder: ledger, ZooKeeper, logs, client.toml. Created if missing.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    help="Number of shards at the first start; then see cluster set-shards. [default: the ledger's, or 4]",
)
@click.option("--mqtt-port", type=_PORT, help="MQTT port; 0: any free port. [default: as last time, or 1883 if free]")
@click.option(
    "--zookeeper-port", type=_PORT, help="ZooKeeper port; 0: any free port. [default: as last time, or 2181 if free]"
)
@click.option("--http-port", type=_PORT, help="HTTP port; 0: any free port. [default: as last time, or 9464 if free]")
@click.option("--daemons", type=click.IntRange(1, 9), default=1, show_default=True, help="Number of daemons.")
@click.option(
    "--tls",
    is_flag=True,
    help="Encrypt all connections with a throwaway authority, and give each role a user with a random password. "
    "Fixed by the first start.",
)
@click.option(
    "--ledger",
    type=Url(),
    metavar="URL",
    help="Object store of the ledger, such as s3://bucket/path; endpoint and credentials are in the environment. "
    "Fixed by the first start.  [default: a folder in the data folder]",
)
@click.option("--results", type=Url(), metavar="URL", help="Poll drain results from this URL instead of running Spark.")
@click.option(
    "--external",
    type=FilePath(dir_okay=False),
    help="TOML file that names the tables of external topics (see docs/external-topics.md).",
)
@click.option("--verbose", "-v", is_flag=True, help="Log to standard error instead of a file.")
@pass_daemon_context
def up(context: DaemonContext, *, data: Path, verbose: bool, **given: Any) -> None:
    """Start a complete node on loopback: ZooKeeper, an MQTT broker, Spark and a daemon.

    Needs no server and no configuration. Ctrl-C or SIGTERM stops everything without losing data; the next start with
    the same folder continues from there, also if it was moved. Clients find the node through client.toml in the folder;
    by default they look in ./headgate-data. SIGHUP reads headgate.toml in the folder again, as with `headgate run`.
    """
    options = _UpOptions(**given)
    if options.results is not None and options.external is not None:
        raise click.UsageError(
            "--results and --external exclude each other: with --results, no Spark process reads the tables"
        )
    with DataFolder(data) as folder, _log_stream(folder, verbose) as stream, contextlib.ExitStack() as reserved_ports:
        context.require_machine(folder.path)
        instance = cli_run.instance_name()
        # Before anything starts: an invalid option must not leave servers behind.
        node = _Node(context, folder, options, instance, reserved_ports)
        try:
            context.serve(
                node.run(), log=LogSettings(format="auto" if verbose else "json"), stream=stream, instance=instance
            )
        except InterruptedBySignalError:
            _print_status("everything has stopped; no data is lost")


def _print_status(text: str) -> None:
    click.echo(text, err=True)


@contextlib.contextmanager
def _log_stream(folder: DataFolder, verbose: bool) -> Iterator[TextIO]:
    if verbose:
        yield sys.stderr
        return
    path = folder.log_path("daemon.log")
    try:
        stream = path.open("a")
    except OSError as error:
        _print_status(f"logs: standard error, because {path} cannot be written: {error.strerror}")
        yield sys.stderr
        return
    with stream:
        _print_status(f"logs: {path.parent}")
        yield stream


class _Node:
    def __init__(
        self,
        context: DaemonContext,
        folder: DataFolder,
        options: _UpOptions,
        instance: str,
        reserved_ports: contextlib.ExitStack,
    ) -> None:
        """Choose shards and ports; reserve the ports until ``reserved_ports`` ends. Raises ConfigError."""
        previous = folder.load_state()
        if previous.shards and options.tls and not previous.tls:
            raise ConfigError(
                f"--tls: the first start of {folder.path} was without TLS, so its producers and consumers have no "
                "users; leave the option out, or choose another folder with --data"
            )
        ledger = previous.ledger or (folder.path / "ledger").as_uri()
        for option, given, fixed in (("shards", options.shards, previous.shards), ("ledger", options.ledger, ledger)):
            if previous.shards and given not in (None, fixed):
                more = "; `headgate cluster set-shards` raises the number" if option == "shards" else ""
                raise ConfigError(
                    f"--{option} {given}: the first start of {folder.path} fixed {fixed}; leave the option out, or "
                    f"choose another folder with --data{more}"
                )
        self._context = context
        self._folder = folder
        self._instance = instance
        self._daemons = options.daemons
        self._further: list[ChildProcess] = []
        """The processes of the daemons 2, 3, … of this node."""
        self._results = options.results
        if self._results is not None and (wrong := ledger_problem(self._results)):
            raise ConfigError(f"--results {self._results}: {wrong}")
        self._external = None if options.external is None else options.external.absolute()
        if self._external is not None:
            read_tables(self._external)
        ports: dict[str, int] = {}
        names = ("mqtt_port", "zookeeper_port", "http_port")
        for name in sorted(names, key=lambda name: not getattr(options, name)):  # Defaults avoid what is requested.
            choice = *(getattr(each, name) for each in (options, previous, DEFAULT_PORTS)), ports.values()
            port = reserved_ports.enter_context(reserve_port(f"--{name.replace('_', '-')}", *choice))
            ports[name] = port.number
        self._node_state = NodeState(
            **ports,
            shards=previous.shards or options.shards or 0,
            tls=previous.tls or options.tls,
            ledger=previous.ledger or options.ledger or "",
            folder=str(folder.path),
        )
        moved = previous.folder not in ("", str(folder.path)) and not previous.ledger
        self._moved_from = (Path(previous.folder) / "ledger").as_uri() if moved else None
        self._ledger_url = self._node_state.ledger or ledger
        self._cluster = ClusterSettings()
        self._security = LocalSecurity(folder.path, self._cluster.name) if self._node_state.tls else None

    async def run(self) -> None:
        """Start everything, print the addresses, and serve until cancelled."""
        folder, state, security = self._folder, self._node_state, self._security
        _print_status(f"headgate on Python {platform.python_version()}, data in {folder.path}")
        found = await self._context.require_ledger(state.ledger) if state.ledger else 0
        if found and not state.shards:  # Its ZooKeeper is not this one, so neither node knows of the other.
            both = "if that still runs, stop it: both would take the shards from each other"
            _print_status(f"another node began the ledger at {state.ledger}; {both}")
        # A node whose machine is lost continues in a new folder, with the shards that its ledger has.
        state = self._node_state = msgspec.structs.replace(state, shards=state.shards or found or DEFAULT_PORTS.shards)
        self._cluster = ClusterSettings(shards=state.shards)
        async with contextlib.AsyncExitStack() as stack:
            tls = None if security is None else security.zookeeper_tls()
            zookeeper = await stack.enter_async_context(
                self._context.new_zookeeper(folder.path / "zookeeper", state.zookeeper_port, tls)
            )
            _print_status(f"ZooKeeper at {zookeeper.address}")
            broker_tls, access = (None, None) if security is None else (security.broker_tls(), security.broker_access)
            broker = await stack.enter_async_context(
                self._context.new_broker(folder.path / "broker", state.mqtt_port, broker_tls, access)
            )
            _print_status(f"MQTT broker ({broker.kind}) at {broker.address}")
            servers = LocalServers(
                cluster=self._cluster,
                ledger_url=self._ledger_url,
                zookeepers=[zookeeper],
                broker=broker,
                security=security,
            )
            settings = self._settings(servers)
            if self._moved_from is not None:
                await self._context.move_ledger(settings, self._moved_from)
            folder.save_state(state)
            self._write_files(servers, settings)
            _print_status(f"ledger at {settings.ledger.url}")
            daemon = self._context.new_daemon(settings)
            reporting = asyncio.create_task(self._report(daemon), name="report")
            stack.push_async_callback(cancel_and_wait, reporting)
            if self._daemons > 1:
                await stack.enter_async_context(self._further_daemons(settings))
            await cli_run.run_daemon(
                daemon, lambda: self._reload(servers, settings), _print_status, on_stop=reporting.cancel
            )

    def _settings(self, servers: LocalServers) -> Settings:
        path = self._folder.path
        (path / "drain").mkdir(exist_ok=True)
        if not self._node_state.ledger:
            (path / "ledger").mkdir(exist_ok=True)
        return servers.settings(
            instance=self._instance,
            drain=DrainSettings(
                socket=None if self._results else str(own_socket(path / "drain", self._cluster.name, self._instance)),
                folder=str(path / "drain"),
                results=self._results,
                external=None if self._external is None else str(self._external),
            ),
            http_port=self._node_state.http_port,
        )

    def _reload(self, servers: LocalServers, running: Settings) -> Settings:
        """Read the users and settings again, and let the further daemons do so. Raises ConfigError."""
        if self._security is not None:
            self._security.reload()
            self._security.write_client_files(servers.plain_client_config())
            servers.broker.reload()
        settings = _reload_settings(self._folder.path / SETTINGS_FILE, running)
        for number, process in enumerate(self._further, 2):
            self._write_further(number, settings)
            process.send_signal(signal.SIGHUP)
        return settings

    def _write_files(self, servers: LocalServers, settings: Settings) -> None:
        self._folder.write(
            SETTINGS_FILE,
            toml_document(
                "Written by `headgate up` at each start, for a further daemon (`headgate run`). Read again on SIGHUP.",
                _of_further_daemon(settings, ""),
            ),
        )
        self._folder.write(
            CLIENT_FILE, toml_document("Written by `headgate up` at each start, for clients.", servers.client_config())
        )
        if self._security is not None:
            self._security.write_client_files(servers.plain_client_config())

    def _write_further(self, number: int, settings: Settings) -> Path:
        own = _of_further_daemon(settings, f"{settings.instance.name}-{number}")
        return self._folder.write(f"headgate-{number}.toml", toml_document("Written by `headgate up`.", own))

    @contextlib.asynccontextmanager
    async def _further_daemons(self, settings: Settings) -> AsyncIterator[None]:
        """Run the further daemons as separate processes; stop them on leaving."""

        async def report_end(number: int, process: ChildProcess) -> None:
            end = outcome(await process.wait())
            _print_status(f"daemon {number} has ended with {end}, see its log; the next start starts it again")

        reports: list[asyncio.Task[None]] = []
        # They inherit this: SIGHUP does not end one that has not read its settings yet.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            for number in range(2, self._daemons + 1):
                log_path = self._folder.log_path(f"daemon-{number}.log")
                process = await self._context.start_daemon(self._write_further(number, settings), log_path)
                self._further.append(process)
                _print_status(f"daemon {number}: process id {process.pid}, log {log_path}")
                reports.append(asyncio.create_task(report_end(number, process), name=f"daemon-{number}"))
            signal.signal(signal.SIGHUP, before)
            yield
        finally:
            await cancel_and_wait(*reports)
            await asyncio.gather(*(process.stop(STOP_TIMEOUT_SECONDS) for process in self._further))

    async def _report(self, daemon: Daemon) -> None:
        """Print the addresses once the node is ready, and then what changes about its readiness and that of Spark."""
        loop = asyncio.get_running_loop()
        spark = ReadinessReport("Spark" if self._results is None else "drain results", loop.time())
        node = ReadinessReport("node", loop.time())
        _print_status(f"the daemon is starting{'; Spark starts in the background' if self._results is None else ''}")
        was_ready = False
        while True:
            health, now = daemon.health(), loop.time()
            failed = [f"{each.component} failed: {each.reason}" for each in health.components if each.state == "failed"]
            state: DrainState = "ready" if health.ready else "degraded" if was_ready else "starting"
            lines = [node.line(state, "; ".join(failed), now)]
            if health.ready and not was_ready:
                was_ready, lines = True, [_welcome(daemon.http.address, self._folder.path, self._security)]
            if was_ready:
                lines.append(spark.line(*daemon.drain.state, now))
            for line in lines:
                if line is not None:
                    _print_status(line)
            await asyncio.sleep(READINESS_POLL_INTERVAL_SECONDS if was_ready else READY_POLL_INTERVAL_SECONDS)


def _welcome(http: str, folder: Path, security: LocalSecurity | None) -> str:
    client_file = folder / CLIENT_FILE
    default = folder == Path("headgate-data").absolute()
    command = "headgate" if default else f"headgate --config {quote(str(client_file))}"
    scheme = "http" if security is None else "https"
    return "\n".join(
        (
            "ready",
            "",
            f"  clients  {client_file}",
            f"  status   {scheme}://{http}/",
            f"  metrics  {scheme}://{http}/metrics",
            *([] if security is None else _created(folder, security)),
            "",
            "in another terminal:",
            "",
            f"  {command} topic create orders --segments 4",
            f"  {command} produce orders --key-field id events.ndjson",
            f"  {command} consume orders billing --type stream --from earliest",
            "",
            "Ctrl-C stops everything; no data is lost.",
        )
    )


def _created(folder: Path, security: LocalSecurity) -> list[str]:
    """Describe what `--tls` has created, for a user who has never seen it."""
    return [
        "",
        f"  users    {folder / 'users'}: {', '.join(f'{user}.toml' for user in security.users)}",
        f"           client.toml is for {security.administrator}; rights are in {security.access_file}",
        f"  token    {security.http_token_file}: the password for status and metrics, with any user name",
        f"  trust    {security.ca_file}: made for this folder only",
    ]


def _of_further_daemon(settings: Settings, name: str) -> Settings:
    """Return the settings of another daemon: it uses the Spark process of the first one, and another HTTP port."""
    return settings.replace(
        instance=InstanceSettings(name=name),
        drain=msgspec.structs.replace(settings.drain, spawn=False, external=None),
        http=msgspec.structs.replace(settings.http, port=0),
    )


def _reload_settings(path: Path, running: Settings) -> Settings:
    """Return the settings in ``path`` for this node's own daemon. Raises ConfigError.

    The file is for a further daemon, so the settings in which the two daemons must differ are kept.
    """
    read = load_settings(path, default_instance=running.instance.name)
    own = msgspec.structs.replace(read.drain, spawn=running.drain.spawn, external=running.drain.external)
    return read.replace(drain=own, http=running.http)
