"""`headgate run` and `check-config` with a fake daemon: settings, signals and reloads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import structlog

from controller.cli import run as cli_run
from controller.settings.load import LedgerSettings, Settings
from metrics import events
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.node_recorder import LEDGER, FakeDaemon, NodeRecorder
from tests.support.samples.secret_files import write_secret


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

    result = invoke("consume", "orders", "billing")

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
