"""A throwaway certificate authority: what it signs works in a TLS handshake, and the next start uses it again."""

import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.local.certificates import CERTIFICATE_DAYS, RENEWAL_DAYS, CertificateFiles, LocalCertificateAuthority
from headgate.errors import ConfigError

HOSTS = ("localhost", "127.0.0.1")
TODAY = datetime.fromtimestamp(time.time_ns() // 1_000_000_000, UTC)


def shake_hands(ca_file: Path, server: CertificateFiles, host: str, client: CertificateFiles | None = None) -> None:
    """Perform a handshake in memory in which both sides verify. Raises ssl.SSLError."""
    client_context = ssl.create_default_context(cafile=ca_file)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.certificate_file, server.key_file)
    if client is not None:
        client_context.load_cert_chain(client.certificate_file, client.key_file)
        server_context.load_verify_locations(ca_file)
        server_context.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server_context.wrap_bio(to_server, to_client, server_side=True),
        client_context.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("host", HOSTS)
def test_server_and_client_verify_each_other(tmp_path: Path, host: str):
    authority = LocalCertificateAuthority(tmp_path)
    client = authority.issue("headgate", client=True)
    shake_hands(authority.ca_file, authority.issue("broker", hosts=HOSTS), host, client)


@pytest.mark.parametrize("usage", ["server", "client"])
def test_a_certificate_serves_one_purpose(tmp_path: Path, usage: str):
    """A client must not be able to pose as a server, nor the other way around."""
    authority = LocalCertificateAuthority(tmp_path)
    server, client = authority.issue("broker", hosts=HOSTS), authority.issue("localhost", client=True)

    arguments = (client, "localhost") if usage == "server" else (server, "localhost", server)
    with pytest.raises(ssl.SSLError, match=r"[Hh]ostname|(?i:purpose|unsupported certificate)"):
        shake_hands(authority.ca_file, *arguments)


def test_only_the_owner_can_read_the_folder_and_its_files(tmp_path: Path):
    (tmp_path / "tls").mkdir(mode=0o755)
    LocalCertificateAuthority(tmp_path / "tls").issue("broker", hosts=HOSTS)

    assert 0o700 == stat.S_IMODE((tmp_path / "tls").stat().st_mode)
    assert {"ca.pem", "ca.key", "broker.pem", "broker.key"} == {path.name for path in (tmp_path / "tls").iterdir()}
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "change", ["expires soon", "other hosts", "other purpose", "other authority", "other key", "no key"]
)
def test_a_certificate_that_does_not_fit_any_more_is_replaced(tmp_path: Path, change: str):
    LocalCertificateAuthority(tmp_path).issue("broker", hosts=HOSTS)
    before = contents(tmp_path)
    days = CERTIFICATE_DAYS - RENEWAL_DAYS + 1 if change == "expires soon" else 0
    if change == "other authority":
        (tmp_path / "ca.key").unlink()
    if change == "other key":
        (tmp_path / "broker.key").write_bytes(before["ca.key"])
    if change == "no key":
        (tmp_path / "broker.key").unlink()

    authority = LocalCertificateAuthority(tmp_path, now=lambda: TODAY + timedelta(days=days))
    hosts = ("localhost",) if change == "other hosts" else HOSTS
    authority.issue("broker", hosts=hosts, client=change == "other purpose")

    after = contents(tmp_path)
    assert before["broker.pem"] != after["broker.pem"]
    assert before["broker.key"] != after["broker.key"]
    assert (before["ca.pem"] == after["ca.pem"]) == (change != "other authority")


def test_an_authority_outlives_all_that_it_signs(tmp_path: Path):
    late = TODAY + timedelta(days=3600)
    LocalCertificateAuthority(tmp_path)
    before = contents(tmp_path)
    LocalCertificateAuthority(tmp_path, now=lambda: late).issue("broker", hosts=HOSTS)

    assert before["ca.pem"] != contents(tmp_path)["ca.pem"]


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "broker.pem", "broker.key"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str):
    LocalCertificateAuthority(tmp_path).issue("broker", hosts=HOSTS)
    (tmp_path / name).write_text("no PEM")
    with pytest.raises(ConfigError, match=rf"{name} .*is damaged: delete both"):
        LocalCertificateAuthority(tmp_path).issue("broker", hosts=HOSTS)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"certificates in .*/file/tls: Not a directory"):
        LocalCertificateAuthority(tmp_path / "file" / "tls")


def test_a_certificate_for_no_host_and_no_client_is_a_mistake(tmp_path: Path):
    with pytest.raises(ValueError, match="for hosts, for a client, or for both"):
        LocalCertificateAuthority(tmp_path).issue("none")
