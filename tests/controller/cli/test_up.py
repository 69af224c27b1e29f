"""`headgate up`, `run` and `check-config` with a fake daemon and fake servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import structlog

from controller.cli import run as cli_run
from controller.local.broker_access import BrokerAccess
from controller.local.data_folder import DataFolder
from controller.local.server_tls import ServerTls
from controller.settings.load import LedgerSettings, Settings, load_settings
from drain.authentication import read_drain_secret
from headgate.errors import HeadgateError
from metrics import events
from metrics.health import Health
from tests.controller.cli.conftest import Invoke
from tests.support.cli_client import FakeCluster, InProcessContext
from tests.support.recording_observer import RecordingObserver
from tests.support.secret_files import write_secret

LEDGER = '[access]\nopen = true\n[ledger]\nurl = "file:///var/lib/headgate/ledger"\n'


class NodeRecorder:
    """Events in order, and instructions for the fakes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.observer = RecordingObserver()
        self.tls: dict[str, ServerTls | None] = {}
        self.settings: list[Settings] = []
        self.signal: int | None = signal.SIGTERM
        """Sent to this process once the daemon runs; None: the daemon ends, with ``failure`` if that is set."""
        self.failure: Exception | None = None
        self.before_signal: Callable[[], None] = lambda: None
        """Called in the daemon, before it sends the signal."""
        self.reloaded: list[Settings] = []
        self.drain_state = ("starting", "the Spark process is starting")
        self.topic_check: Callable[[], Awaitable[None]]
        """Runs where a client command checks that its topic exists."""


class FakeServer:
    """Replaces the embedded ZooKeeper and broker."""

    host, kind = "127.0.0.1", "mosquitto"

    def __init__(self, recorder: NodeRecorder, name: str, port: int, tls: ServerTls | None) -> None:
        self.recorder, self.name, self.port = recorder, name, port
        recorder.tls[name] = tls
        self.address = f"127.0.0.1:{port}"

    async def __aenter__(self) -> Self:
        self.recorder.events.append(f"{self.name} up")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.recorder.events.append(f"{self.name} down")

    def reload(self) -> None:
        self.recorder.events.append(f"{self.name} reloaded")


class FakeDaemon:
    """Replaces the daemon: runs until it is stopped, and records that."""

    http_address = "127.0.0.1:9464"

    def __init__(self, recorder: NodeRecorder, settings: Settings) -> None:
        self.recorder = recorder
        self.instruments = recorder.observer
        recorder.settings.append(settings)

    @property
    def drain_state(self) -> tuple[str, str]:
        return self.recorder.drain_state

    def health(self) -> Health:
        return Health(True, "", ())

    def reload(self, read: Settings) -> None:
        self.recorder.reloaded.append(read)

    async def run(self, stop: asyncio.Event) -> None:
        self.recorder.events.append("daemon up")
        await asyncio.sleep(0.01)
        if self.recorder.signal is None:
            if self.recorder.failure is not None:
                raise self.recorder.failure
            return
        self.recorder.before_signal()
        os.kill(os.getpid(), self.recorder.signal)
        if self.recorder.signal == signal.SIGHUP:
            # Handlers run in order, so the second one sees the effect of the first.
            os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        # A handover takes a moment, during which the servers must still run.
        await asyncio.sleep(0.01)
        self.recorder.events.append("daemon down")


class NodeContext(InProcessContext):
    """Commands get fakes of the daemon and its servers."""

    def __init__(self, cluster: FakeCluster, recorder: NodeRecorder) -> None:
        super().__init__(cluster)
        self.recorder = recorder

    def new_daemon(self, settings: Settings) -> Any:
        return FakeDaemon(self.recorder, settings)

    def new_zookeeper(self, _: Path, port: int, tls: ServerTls | None) -> Any:
        return FakeServer(self.recorder, "zookeeper", port, tls)

    def new_broker(self, _: Path, port: int, tls: ServerTls | None, access: BrokerAccess | None) -> Any:
        assert (tls is None) == (access is None)
        return FakeServer(self.recorder, "broker", port, tls)

    async def start_daemon(self, config: Path, _: Path) -> Any:
        self.recorder.events.append(f"second daemon up: {config}")
        return FakeProcess(self.recorder)

    async def require_topic(self, _: str) -> None:
        await self.recorder.topic_check()


class FakeProcess:
    """Replaces the process of a further daemon."""

    pid = 7

    def __init__(self, recorder: NodeRecorder) -> None:
        self.recorder = recorder

    async def stop(self, timeout_seconds: float) -> bool:
        self.recorder.events.append("second daemon down")
        return timeout_seconds > 0


@pytest.fixture
def recorder() -> NodeRecorder:
    """The events of the fakes."""
    return NodeRecorder()


@pytest.fixture
def context(cluster: FakeCluster, recorder: NodeRecorder) -> NodeContext:
    return NodeContext(cluster, recorder)


ANY_PORTS = ("--mqtt-port", "0", "--zookeeper-port", "0", "--http-port", "0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_daemon_broker_and_zookeeper_in_this_order(
    number: int, invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    recorder.signal = number

    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert result.exit_code == 0, result.stderr
    assert recorder.events == ["zookeeper up", "broker up", "daemon up", "daemon down", "broker down", "zookeeper down"]


def test_the_start_prints_addresses_and_commands(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert f"logs: {tmp_path / 'logs'}" in result.stderr
    assert f"ZooKeeper at {recorder.settings[0].zookeeper.hosts}" in result.stderr
    assert f"MQTT broker (mosquitto) at 127.0.0.1:{recorder.settings[0].broker.port}" in result.stderr
    assert "http://127.0.0.1:9464/metrics" in result.stderr
    assert f"headgate --config {tmp_path / 'client.toml'} topic create orders" in result.stderr


def test_the_state_of_spark_is_printed(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    recorder.drain_state = ("degraded", "the Spark process ended with code 1; next start in 8 s")
    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)
    assert "Spark: not ready: the Spark process ended with code 1; next start in 8 s\n" in result.stderr

    recorder.drain_state = ("ready", "")
    result = invoke("up", "--data", str(tmp_path), "--results", "s3://bucket/results", *ANY_PORTS)
    assert "drain results: ready after 0.0 s\n" in result.stderr


def test_the_written_files_match_the_running_settings(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    invoke("up", "--data", str(tmp_path), "--shards", "2", *ANY_PORTS)

    (running,) = recorder.settings
    client = tomllib.loads((tmp_path / "client.toml").read_text())
    shared = load_settings(tmp_path / "headgate.toml", default_instance=running.instance.name)
    assert client == {
        "cluster": "local",
        "broker_host": "127.0.0.1",
        "broker_port": running.broker.port,
        "ledger_url": f"file://{tmp_path}/ledger",
        "tls": False,
    }
    assert running.cluster.shards == 2
    assert shared == running.replace(drain=shared.drain, http=shared.http)
    assert shared.http.port == 0
    assert (running.drain.spawn, shared.drain.spawn) == (True, False)


def test_published_results_replace_spark_for_every_daemon(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    """tests/system/test_buckets_and_jobs.py polls results with a real daemon and a real job."""
    invoke("up", "--data", str(tmp_path), "--results", "s3://bucket/results", *ANY_PORTS)

    shared = load_settings(tmp_path / "headgate.toml", default_instance="other")
    assert [each.drain.results for each in (*recorder.settings, shared)] == ["s3://bucket/results"] * 2


def test_tables_of_external_topics_are_configured_for_every_daemon(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    tables = tmp_path / "tables.toml"
    tables.write_text("[external.orders]\n")
    invoke("up", "--data", str(tmp_path / "data"), "--external", str(tables), *ANY_PORTS)

    shared = load_settings(tmp_path / "data" / "headgate.toml", default_instance="other")
    assert [each.drain.external for each in (*recorder.settings, shared)] == [str(tables)] * 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("[external.orders.entrys]\n", (), "entrys"),
        ("[external.orders]\n", ("--results", "file:///r"), "exclude each other"),
    ],
    ids=["an invalid description", "no process to read them"],
)
def test_invalid_tables_are_rejected_before_anything_starts(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path, text: str, options: tuple[str, ...], message: str
):
    tables = tmp_path / "tables.toml"
    tables.write_text(text)
    result = invoke("up", "--data", str(tmp_path / "data"), "--external", str(tables), *options, *ANY_PORTS)

    assert result.exit_code != 0
    assert message in result.stderr
    assert recorder.events == []


def test_a_second_start_has_the_same_ports_and_shards(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    invoke("up", "--data", str(tmp_path), "--shards", "2", *ANY_PORTS)
    invoke("up", "--data", str(tmp_path))

    first, second = recorder.settings
    assert second == first


def test_another_number_of_shards_is_rejected_before_anything_starts(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    invoke("up", "--data", str(tmp_path), "--shards", "2", *ANY_PORTS)
    recorder.events.clear()

    result = invoke("up", "--data", str(tmp_path), "--shards", "3")

    assert result.exit_code == 1
    assert "the first start of" in result.stderr.splitlines()[-1]
    assert "fixed 2 shards" in result.stderr
    assert recorder.events == []


def test_a_second_node_on_one_folder_is_rejected(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    with DataFolder(tmp_path):
        result = invoke("up", "--data", str(tmp_path))

    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"process id {os.getpid()}" in result.stderr
    assert recorder.events == []


def test_a_failed_daemon_stops_the_servers_and_the_command(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    recorder.signal, recorder.failure = None, HeadgateError("the ledger cannot be read")

    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert result.exit_code == 1
    assert result.stderr.endswith("headgate: the ledger cannot be read\n")
    assert recorder.events[-2:] == ["broker down", "zookeeper down"]


def test_a_folder_with_a_long_name_uses_a_tcp_socket(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    deep = tmp_path / ("x" * 100)

    invoke("up", "--data", str(deep), *ANY_PORTS)

    drain = recorder.settings[0].drain
    assert drain.socket.startswith("tcp:127.0.0.1:")
    assert drain.secret_file is not None
    assert len(read_drain_secret(drain.secret_file, "x")) == 64


def test_further_daemons_get_their_own_configuration_and_stop_before_the_servers(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    invoke("up", "--data", str(tmp_path), "--daemons", "2", *ANY_PORTS)

    path = tmp_path / "headgate-2.toml"
    own = load_settings(path)
    assert f"second daemon up: {path}" in recorder.events
    assert recorder.events[-3:] == ["second daemon down", "broker down", "zookeeper down"]
    assert own.instance.name == f"{recorder.settings[0].instance.name}-2"
    assert (own.http.port, own.drain.spawn) == (0, False)
    assert own.drain.socket == recorder.settings[0].drain.socket


@pytest.mark.parametrize(
    ("failure", "logged"),
    [
        (ZeroDivisionError("oops"), 1),
        (HeadgateError("no"), 0),
        (ExceptionGroup("", [ExceptionGroup("", [HeadgateError("no")])]), 0),
        (ExceptionGroup("", [HeadgateError("no"), ZeroDivisionError("oops")]), 1),
    ],
    ids=["a bug", "an expected error", "an expected error inside task groups", "both"],
)
def test_a_bug_in_the_daemon_logs_its_traceback(
    failure: Exception, logged: int, invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    recorder.signal, recorder.failure = None, failure
    (tmp_path / "headgate.toml").write_text(LEDGER)

    with structlog.testing.capture_logs() as logs:
        result = invoke("run", "--config", str(tmp_path / "headgate.toml"))

    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert [entry["event"] for entry in logs] == ["daemon.failed"] * logged
    assert all(entry["exc_info"] is failure for entry in logs)


# run and check-config


def test_run_serves_until_sigterm_and_exits_with_0(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER)

    result = invoke("run", "--config", str(path))

    assert (result.exit_code, result.output) == (0, "")
    assert recorder.events == ["daemon up", "daemon down"]
    assert recorder.settings[0].instance.name == cli_run.instance_name()


def test_run_with_an_invalid_setting_starts_nothing(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + "[http]\nport = 70000\n")

    result = invoke("run", "--config", str(path))

    assert result.exit_code == 1
    assert result.stderr.startswith(f"headgate: {path}: $.http.port: ")
    assert recorder.events == []


def test_run_reads_passwords_from_systemd_credentials(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, credentials = tmp_path / "headgate.toml", tmp_path / "credentials"
    credentials.mkdir()
    write_secret(credentials / "broker", b"hunter2\n")
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "broker"\n')
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))

    invoke("run", "--config", str(path))

    assert recorder.settings[0].broker.password() == "hunter2"


def test_check_config_prints_every_setting_and_no_secret(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "secret"\n')
    write_secret(tmp_path / "secret", b"hunter2")

    table = invoke("check-config", str(path))
    document = invoke("check-config", "--config", str(path), "--json")

    assert (table.exit_code, document.exit_code) == (0, 0)
    lines = [line.split(maxsplit=1) for line in table.stdout.splitlines() if "." in line]
    rows = dict(line if len(line) > 1 else (line[0], "") for line in lines)
    assert rows["ledger.url"].strip() == "file:///var/lib/headgate/ledger"
    assert rows["subscriptions.grace_seconds"].strip() == "60.0"
    http = json.loads(document.stdout)["http"]
    assert (http["host"], http["port"], http["tokens_file"]) == ("127.0.0.1", 9464, None)
    assert "hunter2" not in table.output + document.output
    assert recorder.events == []


def test_check_config_reports_an_invalid_setting(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[log]\nlevel = "loud"\n')

    result = invoke("check-config", str(path))

    assert result.exit_code == 1
    assert result.stderr.startswith(f"headgate: {path}: $.log.level: ")


@pytest.mark.parametrize("command", ["check-config", "run"])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('username = "u"\npassword_file = "/nowhere/secret"\n', "password_file"),
        ('tls = true\nca_file = "/nowhere/ca.pem"\n', "ca_file"),
    ],
)
def test_an_unusable_file_of_zookeeper_is_named_before_anything_starts(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path, command: str, text: str, named: str
):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + f"[zookeeper]\n{text}")

    result = invoke(command, "--config", str(path))

    assert result.exit_code == 1
    assert f"$.zookeeper.{named}: cannot read /nowhere/" in result.stderr
    assert recorder.events == []


def test_check_config_warns_of_an_open_zookeeper(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[zookeeper]\nhosts = "zk1:2181"\n')

    result = invoke("check-config", str(path))

    assert result.exit_code == 0
    assert f"warning: {path}: $.zookeeper.username is not set" in result.stderr


def test_check_config_reports_a_missing_password_file(invoke: Invoke, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "/nowhere/secret"\n')

    result = invoke("check-config", str(path))

    assert result.exit_code == 1
    assert "$.broker.password_file: cannot read /nowhere/secret" in result.stderr


def test_check_config_and_run_report_an_unusable_certificate(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[broker]\ntls = true\nca_file = "ca.pem"\n')
    (tmp_path / "ca.pem").write_text("-----BEGIN")

    for command in (("check-config", str(path)), ("run", "--config", str(path))):
        result = invoke(*command)
        assert result.exit_code == 1
        assert result.stderr == (
            f"headgate: $.broker.ca_file: {tmp_path / 'ca.pem'} contains no certificate in PEM format "
            "(-----BEGIN CERTIFICATE-----)\n"
        )
    assert recorder.events == []


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_client_command_cleans_up_without_a_message(
    number: int, code: int, invoke: Invoke, recorder: NodeRecorder
):
    cleaned = []

    async def wait() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    recorder.topic_check = wait

    result = invoke("consume", "orders", "-s", "billing")

    assert (result.exit_code, result.output) == (code, "")
    assert cleaned == [True]


def test_signal_handlers_are_restored(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    (tmp_path / "headgate.toml").write_text(LEDGER)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    own = {number: signal.getsignal(number) for number in before}
    try:
        invoke("run", "--config", str(tmp_path / "headgate.toml"))

        assert {number: signal.getsignal(number) for number in own} == own
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# SIGHUP


def test_sighup_makes_run_read_its_settings_again(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    file = tmp_path / "headgate.toml"
    file.write_text(LEDGER)
    recorder.signal = signal.SIGHUP
    recorder.before_signal = lambda: file.write_text(LEDGER + "[ingest]\npipelining = false\n") and None

    result = invoke("run", "--config", str(file))

    assert result.exit_code == 0, result.stderr
    (read,) = recorder.reloaded
    (running,) = recorder.settings
    assert (running.ingest.pipelining, read.ingest.pipelining) == (True, False)
    assert read.instance == running.instance


def test_sighup_makes_up_read_the_settings_in_its_folder_again(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    """The file is for a further daemon; the settings in which daemons must differ do not count as changed."""
    recorder.signal = signal.SIGHUP

    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert result.exit_code == 0, result.stderr
    assert recorder.settings == recorder.reloaded


def test_invalid_settings_change_nothing_and_are_logged(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    file = tmp_path / "headgate.toml"
    file.write_text(LEDGER)
    recorder.signal = signal.SIGHUP
    recorder.before_signal = lambda: file.write_text(LEDGER + "[ingest]\npipelinig = false\n") and None

    with structlog.testing.capture_logs() as logs:
        result = invoke("run", "--config", str(file))

    assert result.exit_code == 0, result.stderr
    assert [] == recorder.reloaded
    assert ["settings.invalid"] == [entry["event"] for entry in logs]
    assert "pipelinig" in logs[0]["error"]
    assert len(recorder.observer.of(events.ReloadFailed)) == 1


@pytest.mark.parametrize("terminal_closed", [True, False])
def test_a_closed_terminal_stops_the_daemon_and_any_other_hangup_reloads(terminal_closed: bool):
    """Otherwise a node would keep running after its terminal window is closed, with no way to stop it."""
    signals: list[int] = []
    settings = Settings(ledger=LedgerSettings(url="file:///x"))
    recorder = NodeRecorder()
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        cli_run.reload_or_stop(FakeDaemon(recorder, settings), lambda: settings, terminal_closed=terminal_closed)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (signals, recorder.reloaded) == (([signal.SIGTERM], []) if terminal_closed else ([], [settings]))
