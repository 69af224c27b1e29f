"""`headgate run` and `check-config` with a fake daemon: settings, signals and reloads."""

import json
import signal
from pathlib import Path

import pytest

from controller.cli import run as cli_run
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.node_recorder import LEDGER, NodeRecorder
from tests.support.samples.secret_files import write_secret


def test_run_serves_until_sigterm_and_exits_with_0(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER)

    result = invoke("run", "--config", str(path))

    assert (result.exit_code, result.output) == (0, "")
    assert recorder.events == ["daemon up", "daemon down"]
    assert recorder.settings[0].instance.name == cli_run.instance_name()


def test_run_reads_passwords_and_its_name_from_what_systemd_gives(invoke, recorder, tmp_path, monkeypatch):
    path, credentials = tmp_path / "headgate.toml", tmp_path / "credentials"
    credentials.mkdir()
    write_secret(credentials / "broker", b"hunter2\n")
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "broker"\n')
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    monkeypatch.setenv("HEADGATE_INSTANCE", "node-1.second")

    invoke("run", "--config", str(path))

    assert recorder.settings[0].broker.password() == "hunter2"
    assert recorder.settings[0].instance.name == "node-1.second"


def test_check_config_prints_every_setting_and_no_secret(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    path = tmp_path / "headgate.toml"
    path.write_text(LEDGER + '[broker]\nusername = "u"\npassword_file = "secret"\n')
    write_secret(tmp_path / "secret", b"hunter2")

    table = invoke("check-config", "--config", str(path))
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


@pytest.mark.parametrize("command", ["check-config", "run"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nport = 70000\n", "{settings}: $.http.port: "),
        (
            '[zookeeper]\nusername = "u"\npassword_file = "/nowhere"',
            "{settings}: $.zookeeper.password_file: cannot read /nowhere",
        ),
        ('[zookeeper]\ntls = true\nca_file = "/nowhere"', "{settings}: $.zookeeper.ca_file: cannot read /nowhere"),
        (
            '[broker]\ntls = true\nca_file = "ca"',
            "{settings}: $.broker.ca_file: {ca} contains no certificate in PEM format (----",
        ),
    ],
    ids=["a number", "a password", "a missing certificate", "an unusable certificate"],
)
def test_an_unusable_setting_is_named_before_anything_starts(invoke, recorder, tmp_path, command, text, said):
    path, ca = tmp_path / "headgate.toml", tmp_path / "ca"
    path.write_text(LEDGER + text)
    ca.write_text("-----BEGIN")

    result = invoke(command, "--config", str(path))

    assert result.exit_code == 1
    assert result.stderr.startswith("headgate: " + said.format(settings=path, ca=ca))
    assert recorder.events == []


def test_sighup_makes_run_read_its_settings_again(invoke: Invoke, recorder: NodeRecorder, tmp_path: Path):
    file = tmp_path / "headgate.toml"
    file.write_text(LEDGER)
    recorder.signal = signal.SIGHUP
    recorder.before_signal = lambda: file.write_text(LEDGER + "[ingest]\nmqtt_devices = false\n") and None

    result = invoke("run", "--config", str(file))

    assert result.exit_code == 0, result.stderr
    (read,) = recorder.reloaded
    (running,) = recorder.settings
    assert (running.ingest.mqtt_devices, read.ingest.mqtt_devices) == (True, False)
    assert read.instance == running.instance
