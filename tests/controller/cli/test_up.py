"""`headgate up` with a fake daemon and fake servers."""

import signal
import tomllib
from pathlib import Path

import pytest
import structlog
from click.testing import Result

from controller.cli.up import READINESS_POLL_INTERVAL_SECONDS, _reload_settings
from controller.settings.load import load_settings
from drain.setting_values import socket_path
from headgate import load_client_config
from headgate.errors import HeadgateError
from headgate.ledger.objects import chunk_folder
from metrics.health import ComponentInfo, ComponentState, Health
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.node_recorder import ANY_PORTS, LEDGER, NodeRecorder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_daemon_broker_and_zookeeper_in_this_order(number, invoke, recorder, tmp_path):
    recorder.signal = number

    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert result.exit_code == 0, result.stderr
    assert recorder.events == ["zookeeper up", "broker up", "daemon up", "daemon down", "broker down", "zookeeper down"]
    assert ["stopping the", "everything h"] == [line[:12] for line in result.stderr.splitlines()[-2:]]


def test_a_folder_that_was_moved_keeps_its_ledger(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    invoke("up", "--data", str(tmp_path / "a"), *ANY_PORTS)
    (tmp_path / "a").rename(tmp_path / "b")
    recorder.events.clear()
    for _ in range(2):
        invoke("up", "--data", str(tmp_path / "b"), *ANY_PORTS)

    moved = f"{(tmp_path / 'a' / 'ledger').as_uri()} is now {(tmp_path / 'b' / 'ledger').as_uri()}"
    assert recorder.events[:3] == ["zookeeper up", "broker up", moved]
    assert recorder.events.count(moved) == 1


def test_a_requested_port_is_not_that_of_another_server(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    up(invoke, tmp_path, *ANY_PORTS)
    port = str(recorder.settings[0].broker.port)
    up(invoke, tmp_path, "--http-port", port)
    refused = invoke("up", "--data", str(tmp_path), "--http-port", port, "--mqtt-port", port)

    assert recorder.settings[1].http.port == int(port) != recorder.settings[1].broker.port
    assert f"--http-port {port}: the port is in use" in refused.stderr


def test_the_end_of_a_further_daemon_is_printed(invoke: Invoke, tmp_path: Path):
    result = invoke("up", "--data", str(tmp_path), "--daemons", "2", *ANY_PORTS)

    assert "daemon 2 has ended with exit code 1, see its log" in result.stderr


def test_a_node_that_stops_being_ready_says_so_and_when_it_is_again(invoke, recorder, tmp_path):
    """Its log is in a file: who looks at the terminal would see nothing of a full disk."""
    parts = [
        ComponentInfo(component=part, state=ComponentState.FAILED, reason="no space") for part in ("store", "broker")
    ]
    ready = recorder.healths[0]
    recorder.health_at_stop = Health(True, "", tuple(parts))
    recorder.healths = [ready, recorder.health_at_stop, ready, ready]
    recorder.stop_seconds = 2 * READINESS_POLL_INTERVAL_SECONDS
    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    about_the_node = [line for line in result.stderr.splitlines() if line.startswith("node: ")]
    assert about_the_node[0] == "node: not ready: store failed: no space; broker failed: no space"
    assert about_the_node[1].startswith("node: ready again after ")
    assert len(about_the_node) == 2, "it loses its broker while it stops, and nothing is wrong"


def test_a_log_that_cannot_be_written_is_replaced_by_standard_error(invoke, recorder, tmp_path):
    (log := tmp_path / "logs" / "daemon.log").mkdir(parents=True)
    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert recorder.settings
    assert f"logs: standard error, because {log} cannot be written: Is a directory" in result.stderr


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


def test_a_new_folder_has_the_shards_of_the_ledger_that_it_continues(invoke, recorder, tmp_path):
    for shard in range(16):
        (tmp_path / "l" / chunk_folder(shard)).mkdir(parents=True)
        (tmp_path / "l" / chunk_folder(shard) / "000000000001.parquet").touch()
    url = f"file://{tmp_path}/l"
    new = ("up", "--data", str(tmp_path / "new"), *ANY_PORTS)
    first, again = (invoke(*new, *options) for options in (("--ledger", url), ()))

    warning = f"another node began the ledger at {url}; if that still runs, stop it"
    assert [True, False] == [warning in result.stderr for result in (first, again)]
    assert [each.cluster.shards for each in recorder.settings] == [16, 16]


def test_published_results_replace_spark_for_every_daemon(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    """tests/system/test_buckets_and_jobs.py polls results with a real daemon and a real job."""
    invoke("up", "--data", str(tmp_path), "--results", "s3://bucket/results", *ANY_PORTS)

    shared = load_settings(tmp_path / "headgate.toml", default_instance="other")
    assert [each.drain.results for each in (*recorder.settings, shared)] == ["s3://bucket/results"] * 2


def test_only_the_daemon_that_starts_spark_reads_tables(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    tables = tmp_path / "tables.toml"
    tables.write_text('[external.orders.entries]\npath = "rows"\nsegment = "s"\noffset = "o"\ntimestamp = "t"\n')
    invoke("up", "--data", str(tmp_path), "--external", str(tables), *ANY_PORTS)

    shared = load_settings(tmp_path / "headgate.toml", default_instance="other")
    assert [each.drain.external for each in (*recorder.settings, shared)] == [str(tables), None]
    assert _reload_settings(tmp_path / "headgate.toml", *recorder.settings).drain == recorder.settings[0].drain


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


@pytest.mark.parametrize(
    ("first", "second", "fixed"),
    [
        (("--shards", "2"), ("--shards", "3"), "2;"),
        (("--ledger", "file:///{0}/first"), ("--ledger", "file:///{0}/second"), "file:///{0}/first"),
        ((), ("--ledger", "file:///{0}/second"), "file://{0}/ledger"),
    ],
)
def test_what_the_first_start_fixed_is_not_changed(
    first: tuple[str, ...], second: tuple[str, ...], fixed: str, invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    def up(options: tuple[str, ...]) -> Result:
        return invoke("up", "--data", str(tmp_path), *ANY_PORTS, *(option.format(tmp_path) for option in options))

    assert up(first).exit_code == up(()).exit_code == 0
    recorder.events.clear()
    result = up(second)

    assert result.exit_code == 1
    assert f"the first start of {tmp_path} fixed {fixed.format(tmp_path)}" in result.stderr.splitlines()[-1]
    assert recorder.events == []


@pytest.mark.parametrize(
    ("option", "url", "reason"),
    [
        ("--ledger", "s3:/bucket", "names no bucket; write s3://bucket/path"),
        ("--ledger", "file:///dev/null/ledger", "cannot write /dev/null/ledger/write-probe"),
        ("--results", "lake", "--results lake: 'lake' has none of the schemes"),
    ],
)
def test_a_store_that_no_leader_can_use_is_refused_before_anything_starts(
    option: str, url: str, reason: str, invoke: Invoke, recorder: NodeRecorder, tmp_path: Path
):
    result = invoke("up", "--data", str(tmp_path), option, url, *ANY_PORTS)

    assert result.exit_code == 1
    assert reason in result.stderr.splitlines()[-1]
    assert recorder.events == []


def test_a_failed_daemon_stops_the_servers_and_the_command(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    recorder.signal, recorder.failure = None, HeadgateError("the ledger cannot be read")

    result = invoke("up", "--data", str(tmp_path), *ANY_PORTS)

    assert result.exit_code == 1
    assert result.stderr.endswith("headgate: the ledger cannot be read\n")
    assert recorder.events[-2:] == ["broker down", "zookeeper down"]


def test_a_folder_with_a_long_name_has_a_socket_elsewhere(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    deep = tmp_path / ("x" * 100)

    invoke("up", "--data", str(deep), *ANY_PORTS)

    drain = recorder.settings[0].drain
    assert drain.socket is not None
    assert not socket_path(drain.socket).is_relative_to(deep)


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
def test_a_bug_in_the_daemon_logs_its_traceback(failure, logged, invoke, recorder, tmp_path):
    recorder.signal, recorder.failure = None, failure
    (tmp_path / "headgate.toml").write_text(LEDGER)

    with structlog.testing.capture_logs() as logs:
        result = invoke("run", "--config", str(tmp_path / "headgate.toml"))

    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert [entry["event"] for entry in logs] == ["daemon.failed"] * logged
    assert all(entry["exc_info"] is failure for entry in logs)


# `headgate up --tls` with a fake daemon and fake servers.

ROLES = ("administrator", "consumer", "device", "observer", "producer")


def up(invoke: Invoke, folder: Path, *options: str) -> str:
    result = invoke("up", "--data", str(folder), *options)
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_every_connection_of_the_daemon_uses_tls_and_a_secret(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    up(invoke, tmp_path, "--tls", *ANY_PORTS)

    (running,) = recorder.settings
    shared = load_settings(tmp_path / "headgate.toml", default_instance=running.instance.name)
    for settings in (running, shared):
        assert (settings.broker.tls, settings.zookeeper.tls, settings.access.open) == (True, True, False)
        assert None not in (settings.http.certificate_file, settings.http.tokens_file)
        assert settings.broker.password() not in {None, settings.zookeeper.password()}
    assert None not in recorder.tls.values()
    assert recorder.tls["zookeeper"].client, "ZooKeeper admits only the daemons"
    assert recorder.tls["broker"].client is None, "clients of the broker have passwords"


def test_no_secret_is_printed_and_others_can_read_no_file(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    output = up(invoke, tmp_path / "data", "--tls", *ANY_PORTS)

    secrets = [path for path in (tmp_path / "data").rglob("*") if path.suffix in {".password", ".token"}]
    assert len(secrets) == len(ROLES) + 3
    assert not [path for path in secrets if path.read_text().strip() in output]
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        if path.name not in {"daemon.log", "logs", "ledger", "drain"}:
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_later_start_keeps_tls_and_every_secret(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    up(invoke, tmp_path, "--tls", *ANY_PORTS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in {".password", ".token", ".pem"}}
    up(invoke, tmp_path)

    first, second = recorder.settings
    assert first == second
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("when", ["at the next start", "on SIGHUP"])
def test_a_user_who_is_added_to_the_access_file_gets_a_configuration(invoke, recorder, tmp_path, when):
    def add_user() -> None:
        with (tmp_path / "access.toml").open("a") as file:
            file.write('[[users.shop]]\nrole = "producer"\ntopics = ["orders"]\n')

    if when == "on SIGHUP":
        recorder.signal, recorder.before_signal = signal.SIGHUP, add_user
        assert "SIGHUP: the settings were read again" in up(invoke, tmp_path, "--tls", *ANY_PORTS)
        assert "broker reloaded" in recorder.events
        assert len(recorder.reloaded) == 1
    else:
        up(invoke, tmp_path, "--tls", *ANY_PORTS)
        add_user()
        up(invoke, tmp_path)

    assert load_client_config(tmp_path / "users" / "shop.toml").username == "shop"
    assert "\nuser shop\n" in (tmp_path / "broker" / "access.acl").read_text()
    assert "\nshop:" in (tmp_path / "broker" / "passwords").read_text()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("access.toml", "users = 1", r"access.toml: $.users: expected `object`"),
        ("access.toml", '[[users.headgate]]\nrole = "administrator"', "user headgate is the daemons' own"),
        ("access.toml", '[[users.shop]]\nrole = "producer"', "no user is an administrator of all topics"),
        ("tls/ca.pem", "x", "ca.pem or its key ca.key is damaged"),
        ("users/producer.password", "", "producer.password"),
    ],
    ids=["no access file", "the daemons' user", "no administrator", "a damaged certificate", "an empty password"],
)
def test_an_unusable_file_is_named_before_anything_starts(invoke, recorder, tmp_path, file, text, message):
    up(invoke, tmp_path, "--tls", *ANY_PORTS)
    (tmp_path / file).write_text(text)
    recorder.events.clear()

    result = invoke("up", "--data", str(tmp_path))

    assert result.exit_code == 1
    assert message in result.stderr.splitlines()[-1]
    assert recorder.events == []


def test_an_unusable_access_file_changes_nothing_on_sighup(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    recorder.signal = signal.SIGHUP
    recorder.before_signal = lambda: (tmp_path / "access.toml").write_text("users = 1") and None
    printed = up(invoke, tmp_path, "--tls", *ANY_PORTS)

    assert f"SIGHUP changed nothing: {tmp_path / 'access.toml'}: $.users: expected `object`" in printed
    assert recorder.reloaded == []
    assert "broker reloaded" not in recorder.events
    assert "user producer" in (tmp_path / "broker" / "access.acl").read_text()


def test_further_daemons_have_the_same_security(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    def change() -> None:
        path = tmp_path / "headgate.toml"
        path.write_text(path.read_text().replace("mqtt_devices = true", "mqtt_devices = false"))

    recorder.signal, recorder.before_signal = signal.SIGHUP, change
    up(invoke, tmp_path, "--tls", "--daemons", "2", *ANY_PORTS)
    assert "second daemon gets SIGHUP" in recorder.events

    second = tomllib.loads((tmp_path / "headgate-2.toml").read_text())
    assert second["http"]["certificate_file"]
    assert (second["http"]["port"], second["ingest"]["mqtt_devices"]) == (0, False), "it read the settings again, too"
    assert second["broker"]["tls"]
