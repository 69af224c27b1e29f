"""Settings of TLS that need each other, the same for daemons and clients."""

from pathlib import Path

import pytest

from controller.settings.load import load_settings, parse_settings
from headgate.client.connection import Client
from headgate.errors import ConfigError
from headgate.log.event_log import LogEvent
from headgate.settings.config import load_client_config
from headgate.transport.connection_options import is_loopback, password_warning, tls_option_problem
from tests.support.samples.client_configs import client_config
from tests.support.samples.secret_files import write_secret

PAIR = {"certificate_file": "a.pem", "key_file": "a.key"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tls": True},
        {"tls": True, "ca_file": "ca.pem"},
        {"tls": True, **PAIR},
        *({"tls": True, "server_name": name} for name in ("broker.example", "a_b-c", "10.0.0.1", "fe80::1", "a" * 63)),
    ],
    ids=str,
)
def test_settings_with_their_partners_are_right(fields: dict[str, object]) -> None:
    assert tls_option_problem(client_config(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"ca_file": "ca.pem"}, "ca_file", "ca_file is set, and tls is not; set tls = true, or remove ca_file"),
        ({"server_name": "b"}, "server_name", "server_name is set, and tls is not"),
        (PAIR, "certificate_file", "certificate_file is set, and tls is not"),
        ({"tls": True, "key_file": "a.key"}, "certificate_file", "key_file is set, and certificate_file is not"),
        ({"tls": True, "certificate_file": "a"}, "key_file", "certificate_file is set, and key_file is not; set both"),
        ({"tls": True, "ca_file": ""}, "ca_file", "is empty; write a value, or remove the setting"),
        ({"tls": True, "server_name": ""}, "server_name", "is empty"),
        *(
            ({"tls": True, "server_name": name}, "server_name", "is neither the name nor the address of a server")
            for name in (".b", "a..b", "a.", "a b", "b\n", "ä", "a/b", "a" * 64, "a." * 126 + "ab")
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_error_names_both_settings(fields: dict[str, object], field: str, problem: str, tmp_path: Path) -> None:
    found = tls_option_problem(client_config(**fields))
    assert field == found[0]
    assert problem in found[1]


@pytest.mark.parametrize("settings", ["daemon", "client"])
def test_both_kinds_of_settings_are_checked_when_they_are_loaded(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    if settings == "daemon":
        text = '[ledger]\nurl = "file:///l"\n[broker]\nca_file = "ca.pem"\n'
        with pytest.raises(ConfigError, match=r"^settings: \$\.broker\.ca_file: ca_file is set, and tls is not"):
            parse_settings(text, "settings")
        return
    file.write_text('cluster = "c"\nbroker_host = "h"\nbroker_port = 1\nledger_url = "x"\nca_file = "ca.pem"\n')
    with pytest.raises(ConfigError, match=rf"^{file}: ca_file: ca_file is set, and tls is not"):
        load_client_config(file)


def test_relative_paths_of_the_daemon_are_credentials_or_beside_the_settings(tmp_path: Path) -> None:
    file, credentials = tmp_path / "headgate.toml", tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "own.key").touch()
    file.write_text(
        '[ledger]\nurl = "file:///l"\n[access]\nopen = true\n'
        '[broker]\ntls = true\nca_file = "ca.pem"\ncertificate_file = "/etc/own.pem"\nkey_file = "own.key"\n'
    )

    broker = load_settings(file, credentials=credentials).broker

    assert [str(tmp_path / "ca.pem"), "/etc/own.pem", str(credentials / "own.key")] == [
        broker.ca_file,
        broker.certificate_file,
        broker.key_file,
    ]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("headgate.example", False),
        ("localhost.example", False),
        ("127.1", False),
    ],
)
def test_loopback_is_an_address_of_this_machine_or_localhost(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "password_file", "tls", "warns"),
    [
        ("broker.example", "secret", False, True),
        ("10.0.0.1", "secret", False, True),
        ("broker.example", None, False, False),
        ("broker.example", "secret", True, False),
        ("localhost", "secret", False, False),
        ("127.1.2.3", "secret", False, False),
    ],
)
def test_a_password_that_crosses_a_network_without_tls_is_worth_a_warning(
    host: str, password_file: str | None, tls: bool, warns: bool
) -> None:
    warning = password_warning(client_config(tls=tls), host, password_file)
    assert warns == (warning is not None)
    assert not warns or host in (warning or "")


def test_a_client_logs_the_warning_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = write_secret(tmp_path / "secret", b"hush")
    fields = {"username": "till", "password_file": str(secret)}
    Client.from_config(client_config(broker_host="broker.example", **fields), "consumer")
    events = [(record.msg.event, record.levelname) for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert [("broker.insecure", "WARNING")] == events
    assert "hush" not in caplog.text
