"""The client's configuration: its location, and the errors of an invalid one."""

from pathlib import Path

import pytest

from controller.local.certificates import LocalCertificateAuthority
from headgate.errors import ConfigError
from headgate.settings.config import CREDENTIALS_VARIABLE, ENVIRONMENT_VARIABLE, ClientConfig, load_client_config
from tests.support.samples.secret_files import write_secret

GOOD = 'cluster = "local"\nbroker_host = "127.0.0.1"\nbroker_port = 1883\nledger_url = "file:///srv/ledger"\n'


def test_a_named_file_is_read(tmp_path: Path):
    file = tmp_path / "client.toml"
    file.write_text(GOOD, "utf-8-sig")
    found = load_client_config(file)
    assert ClientConfig("local", "127.0.0.1", 1883, "file:///srv/ledger", file=str(file)) == found
    assert f"127.0.0.1:1883 (from {file})" == found.broker
    assert "h:1" == ClientConfig("local", "h", 1, "file:///x").broker


def test_an_argument_precedes_the_environment_variable(tmp_path: Path, monkeypatch):
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD.replace("local", "other"))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "a.toml"))
    assert "local" == load_client_config().cluster
    assert "other" == load_client_config(tmp_path / "b.toml").cluster


def test_the_default_path_is_below_the_working_directory(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"headgate-data/client\.toml does not exist.*headgate up"):
        load_client_config()
    (tmp_path / "headgate-data").mkdir()
    (tmp_path / "headgate-data" / "client.toml").write_text(GOOD)
    assert "local" == load_client_config().cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster = ", "is not TOML"),
        (GOOD.replace("broker_port", "broker_prot"), "broker_prot"),
        (GOOD.replace("1883", '"1883"'), r"\$\.broker_port"),
        (GOOD.replace("1883", "99999"), r"\$\.broker_port"),
        (GOOD.replace('cluster = "local"\n', ""), "cluster"),
        (GOOD.replace("127.0.0.1", ""), "broker_host: expected `str` of length >= 1; use text in quotes"),
        (GOOD.replace("file:///srv/ledger", ""), "ledger_url: expected `str` of length >= 1"),
        (GOOD.replace("127.0.0.1", "mqtt://here"), "broker_host 'mqtt://here' is no host"),
        (GOOD.replace("127.0.0.1", "here:1883"), "broker_host 'here:1883' is no host"),
        (GOOD.replace("local", "no/slash"), "cluster name 'no/slash'"),
        (GOOD + 'file = "other"\n', r"\$\.file: unknown setting; "),
        (GOOD + "[broker]\n", r"\$\.broker: unknown setting; did you mean broker_port"),
        (GOOD + 'password_file = "secret"\n', "username"),
    ],
)
def test_an_error_names_the_file_and_the_field(tmp_path: Path, text: str, said: str):
    file = tmp_path / "client.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_client_config(file)
    assert str(file) in str(caught.value)


def test_the_password_is_read_from_its_file_and_never_shown(tmp_path: Path):
    file = write_secret(tmp_path / "password", b"s3cret\n")
    config = ClientConfig("local", "h", 1, "file:///x", username="me", password_file=str(file))
    assert "s3cret" == config.password()
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize(
    ("user", "problem"), [("me", ": cannot read /none: No such"), (None, " is set and username is")]
)
def test_the_error_of_an_unusable_password_file_names_the_setting(user: str | None, problem: str):
    config = ClientConfig("local", "h", 1, "file:///x", username=user, password_file="/none", file="c.toml")
    with pytest.raises(ConfigError, match=rf"^c\.toml: password_file{problem}"):
        config.password()


def test_files_beside_the_configuration_are_found_and_checked_when_it_is_loaded(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(CREDENTIALS_VARIABLE, raising=False)
    ca_file = LocalCertificateAuthority(tmp_path / "ca").ca_file
    file = tmp_path / "client.toml"
    file.write_text(GOOD + 'tls = true\nca_file = "ca/ca.pem"\nusername = "me"\npassword_file = "secret"\n')
    write_secret(tmp_path / "secret", b"s3cret")

    config = load_client_config(file)
    assert ("s3cret", str(ca_file)) == (config.password(), config.ca_file)
    tls = config.broker_tls()
    assert ("127.0.0.1", f"an authority in {ca_file}") == (tls.server_name, tls.authorities)

    ca_file.write_text("")
    with pytest.raises(ConfigError, match=rf"^{file}: ca_file: {ca_file} is empty"):
        load_client_config(file)


def test_a_credential_of_systemd_precedes_a_file_beside_the_configuration(tmp_path: Path, monkeypatch):
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(credentials))
    write_secret(credentials / "secret", b"credential")
    write_secret(tmp_path / "secret", b"beside")
    file = tmp_path / "client.toml"
    file.write_text(GOOD + 'username = "me"\npassword_file = "secret"\n')

    assert "credential" == load_client_config(file).password()
