"""`headgate up --tls` with a fake daemon and fake servers."""

import signal
import tomllib
from pathlib import Path

import pytest

from controller.settings.load import load_settings
from headgate import load_client_config
from tests.headgate.cli.conftest import Invoke
from tests.support.fakes.node_recorder import ANY_PORTS, NodeRecorder

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
        assert settings.broker.tls
        assert settings.zookeeper.tls
        assert settings.http.certificate_file
        assert settings.http.tokens_file
        assert not settings.access.open
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
def test_a_user_who_is_added_to_the_access_file_gets_a_configuration(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path, when: str
):
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
        ("access.toml", "users = 1", r"access.toml: Expected `object`"),
        ("access.toml", '[[users.headgate]]\nrole = "administrator"', "user headgate is the daemons' own"),
        ("access.toml", '[[users.shop]]\nrole = "producer"', "no user is an administrator of all topics"),
        ("tls/ca.pem", "x", "ca.pem or its key ca.key is damaged"),
        ("users/producer.password", "", "producer.password"),
    ],
    ids=["no access file", "the daemons' user", "no administrator", "a damaged certificate", "an empty password"],
)
def test_an_unusable_file_is_named_before_anything_starts(
    invoke: Invoke, recorder: NodeRecorder, tmp_path: Path, file: str, text: str, message: str
):
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

    assert f"SIGHUP changed nothing: {tmp_path / 'access.toml'}: Expected `object`" in printed
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
