"""Who can reach what the daemon listens on, judged from the settings."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.local.certificates import LocalCertificateAuthority
from controller.settings.files import read_http_access, read_peer_tls
from controller.settings.load import advertised_url, http_problems, http_warnings, load_settings
from controller.settings.sections import HttpSettings
from headgate.errors import ConfigError
from tests.support.samples.secret_files import write_secret

LEDGER = '[access]\nopen = true\n[ledger]\nurl = "file:///var/lib/headgate/ledger"\n'
LINE = b"prometheus sha256:" + b"0" * 64 + b"\n"


@pytest.mark.parametrize(
    ("settings", "field", "problem"),
    [
        ({"host": "10.0.0.1"}, "http.tokens_file", "is not loopback: .*`headgate http token NAME --file FILE`"),
        ({"host": "10.0.0.1", "open_metrics": True}, "http.tokens_file", "is not loopback"),
        (
            {"host": "10.0.0.1", "certificate_file": "c", "key_file": "k"},
            "http.tokens_file",
            "every machine that reaches port 9464",
        ),
        ({"certificate_file": "c"}, "http.key_file", "certificate_file is set, and key_file is not"),
        ({"key_file": "k"}, "http.certificate_file", "key_file is set, and certificate_file is not"),
        ({"client_ca_file": "c"}, "http.client_ca_file", "is set, and certificate_file is not"),
    ],
)
def test_a_server_that_everyone_could_read_or_a_file_without_its_partner_is_refused(
    settings: dict[str, object], field: str, problem: str
) -> None:
    ((found, text),) = http_problems(HttpSettings(**settings))

    assert found == field
    assert re.search(problem, text)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "localhost", "open_metrics": True},
        {"host": "10.0.0.1", "tokens_file": "t"},
        {"host": "10.0.0.1", "certificate_file": "c", "key_file": "k", "client_ca_file": "a"},
    ],
)
def test_other_servers_are_accepted(settings: dict[str, object]) -> None:
    assert list(http_problems(HttpSettings(**settings))) == []


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"host": "10.0.0.1", "tokens_file": "t"}, True),
        ({"host": "10.0.0.1", "tokens_file": "t", "certificate_file": "c", "key_file": "k"}, False),
        ({"tokens_file": "t"}, False),
        ({}, False),
    ],
)
def test_tokens_without_tls_on_a_network_are_warned_about(settings: dict[str, object], warned: bool) -> None:
    assert [
        each.startswith("$.http.certificate_file is not set") for each in http_warnings(HttpSettings(**settings))
    ] == [True] * warned


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the certificate and the tokens of a server."""
    LocalCertificateAuthority(tmp_path).issue("http", hosts=["127.0.0.1"])
    write_secret(tmp_path / "tokens", LINE)
    return tmp_path


def load(folder: Path, text: str, credentials: Path | None = None) -> HttpSettings:
    path = folder / "headgate.toml"
    path.write_text(f"{LEDGER}[http]\n{text}")
    return load_settings(path, credentials=credentials).http


ALL = 'certificate_file = "http.pem"\nkey_file = "http.key"\nclient_ca_file = "ca.pem"\ntokens_file = "tokens"\n'


def test_files_are_beside_the_settings_or_among_the_credentials(folder: Path) -> None:
    settings = load(folder, ALL)
    assert settings.key_file == str(folder / "http.key")
    access = read_http_access(settings)
    assert access.tls is not None
    assert access.tokens is not None

    credentials = folder / "credentials"
    credentials.mkdir()
    write_secret(credentials / "tokens", LINE)
    assert load(folder, ALL, credentials).tokens_file == str(credentials / "tokens")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "http.pem").write_text("x"), r"\$\.http\.certificate_file: .*http\.pem"),
        (lambda folder: (folder / "http.key").chmod(0o644), r"\$\.http\.key_file: .*http\.key"),
        (lambda folder: (folder / "ca.pem").unlink(), r"\$\.http\.client_ca_file: .*ca\.pem"),
        (lambda folder: (folder / "tokens").write_text("hunter2"), r"\$\.http\.tokens_file: .*tokens, line 1"),
        (
            lambda folder: LocalCertificateAuthority(folder).issue(
                "http",
                hosts=["127.0.0.1"],
                not_before=datetime(2020, 1, 1, tzinfo=UTC),
                not_after=datetime(2020, 2, 1, tzinfo=UTC),
            ),
            r"\$\.http\.certificate_file: .*expired",
        ),
    ],
    ids=["damaged certificate", "key for all", "no authority", "a plain token", "expired"],
)
def test_an_unusable_file_is_named(folder: Path, spoil: object, problem: str) -> None:
    spoil(folder)
    settings = load(folder, ALL)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_http_access(settings)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "address", "url"),
    [
        pytest.param({}, "127.0.0.1:9464", "http://127.0.0.1:9464", id="loopback"),
        pytest.param({"host": "localhost"}, "127.0.0.1:1", "http://localhost:1", id="a name: certificates have it"),
        pytest.param({"host": "0.0.0.0"}, "0.0.0.0:9464", "http://machine:9464", id="every address"),
        pytest.param({"host": "::"}, "[::]:1", "http://machine:1", id="every address of both families"),
        pytest.param({"host": "::1"}, "[::1]:1", "http://[::1]:1", id="IPv6"),
        pytest.param({"advertised_host": "node.example"}, "0.0.0.0:1", "http://node.example:1", id="advertised"),
        pytest.param({"advertised_host": "fd00::1"}, "0.0.0.0:1", "http://[fd00::1]:1", id="advertised IPv6"),
        pytest.param({"certificate_file": "a", "key_file": "b"}, "127.0.0.1:1", "https://127.0.0.1:1", id="TLS"),
    ],
)
def test_the_url_that_others_use(given: dict[str, str], address: str, url: str) -> None:
    assert advertised_url(HttpSettings(**given), address, "machine") == url


def test_requests_to_other_daemons_trust_the_named_authority_and_present_the_own_certificate(tmp_path: Path) -> None:
    authority = LocalCertificateAuthority(tmp_path)
    own = authority.issue("http", hosts=["127.0.0.1"])
    files = {"certificate_file": str(own.certificate_file), "key_file": str(own.key_file)}
    ca_file = str(authority.ca_file)

    context = read_peer_tls(HttpSettings(**files, client_ca_file=ca_file, peer_ca_file=ca_file))
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(ConfigError, match=r"\$\.http\.peer_ca_file"):
        read_peer_tls(HttpSettings(**files, peer_ca_file=str(tmp_path / "nothing.pem")))
