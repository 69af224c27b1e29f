"""TLS contexts from files: what a handshake with them accepts, and how an unusable file is refused."""

import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from controller.local.certificates import CertificateFiles, LocalCertificateAuthority
from headgate.errors import ConfigError
from headgate.files.tls import Validity, certificate_expiry, client_context, server_context, validity_of

NOW = datetime.fromtimestamp(time.time_ns() // 10**9, UTC)
HOUR = timedelta(hours=1)
HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalCertificateAuthority:
    return LocalCertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: LocalCertificateAuthority) -> CertificateFiles:
    return authority.issue("server", hosts=HOSTS)


@pytest.fixture(scope="module")
def till(authority: LocalCertificateAuthority) -> CertificateFiles:
    return authority.issue("till", client=True)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> tuple[str | None, str | None]:
    """Connect both in memory; return the version of TLS, and the CN of the client's certificate. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    peer = ends[1].getpeercert() or {}
    names = dict(pair for part in peer.get("subject", ()) for pair in part)
    return ends[0].version(), names.get("commonName")


def files_of(pair: CertificateFiles) -> dict[str, Path]:
    return {"certificate_file": pair.certificate_file, "key_file": pair.key_file}


def of_server(pair: CertificateFiles, **more: Path) -> ssl.SSLContext:
    return server_context(**files_of(pair), **more)


def of_client(pair: CertificateFiles, **more: Path) -> ssl.SSLContext:
    return client_context(**files_of(pair), **more)


def test_a_client_verifies_certificate_and_name(authority, server, tmp_path):
    client = client_context(ca_file=authority.ca_file)

    assert ("TLSv1.3", None) == handshake(client, of_server(server))
    for host in ("127.0.0.2", "example.org"):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
            handshake(client, of_server(server), host)
    for stranger in (client_context(ca_file=LocalCertificateAuthority(tmp_path).ca_file), client_context()):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
            handshake(stranger, of_server(server))


def test_a_server_with_a_ca_for_clients_requires_their_certificates(authority, server, till, tmp_path):
    strict = of_server(server, client_ca_file=authority.ca_file)

    assert ("TLSv1.3", "till") == handshake(of_client(till, ca_file=authority.ca_file), strict)
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        handshake(client_context(ca_file=authority.ca_file), strict)
    stranger = LocalCertificateAuthority(tmp_path).issue("till", client=True)
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(of_client(stranger, ca_file=authority.ca_file), strict)


@pytest.mark.parametrize("outdated", [True, False], ids=["server", "client"])
def test_versions_before_1_2_are_refused_in_both_roles(authority, server, outdated):
    client, served = client_context(ca_file=authority.ca_file), of_server(server)
    older = served if outdated else client
    for context in (client, served):  # OpenSSL itself would refuse the old versions' signatures.
        context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(client, served)

    older.maximum_version = ssl.TLSVersion.TLSv1_2
    assert ("TLSv1.2", None) == handshake(client, served)


def write(text: str | bytes) -> Callable[[Path, Path], None]:
    def damage(path: Path, _: Path) -> None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return damage


def make_folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def copy_other(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


ANY_FILE = [
    pytest.param(lambda path, _: path.unlink(), "cannot read {path}: No such file or directory", id="missing"),
    pytest.param(make_folder, "{path} is not a file; name a file", id="folder"),
    pytest.param(write(""), "{path} is empty", id="empty"),
    pytest.param(write("x" * (4 * 1024 * 1024 + 1)), "{path} has more than 4194304 bytes", id="huge"),
]
CERTIFICATES = [
    *ANY_FILE,
    pytest.param(write("hello"), "{path} contains no certificate in PEM format", id="text"),
    pytest.param(write(b"\x30\x82\xff\x00"), "{path} contains no certificate in PEM format", id="binary"),
    pytest.param(copy_other, "{path} contains no certificate in PEM format", id="key"),
    pytest.param(
        lambda path, _: path.write_text(path.read_text().replace("MII", "MIJ")),
        "{path}: certificate 1 is damaged; copy it again",
        id="damaged",
    ),
]


def refused(setting: str, path: Path, problem: str, make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(f"$.http.{setting}: {problem.format(path=path)}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["ca_file", "client_ca_file"])
@pytest.mark.parametrize(("damage", "problem"), CERTIFICATES)
def test_an_unusable_ca_file_is_one_clear_error(tmp_path, server, setting, damage, problem):
    path = LocalCertificateAuthority(tmp_path).ca_file
    damage(path, server.key_file)
    if setting == "ca_file":
        refused(setting, path, problem, lambda: client_context("$.http.", ca_file=path))
    else:
        refused(setting, path, problem, lambda: server_context("$.http.", **files_of(server), client_ca_file=path))


@pytest.mark.parametrize(("damage", "problem"), CERTIFICATES)
def test_an_unusable_certificate_is_one_clear_error(tmp_path: Path, damage: Callable[[Path, Path], None], problem: str):
    pair = LocalCertificateAuthority(tmp_path).issue("till", hosts=HOSTS, client=True)
    damage(pair.certificate_file, pair.key_file)
    refused("certificate_file", pair.certificate_file, problem, lambda: server_context("$.http.", **files_of(pair)))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        *ANY_FILE,
        pytest.param(write("hello"), "{path} contains no private key in PEM format", id="text"),
        pytest.param(copy_other, "{path} contains no private key in PEM format", id="certificate"),
        pytest.param(
            write("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
            "OpenSSL cannot use {path}: ",
            id="damaged",
        ),
    ],
)
def test_an_unusable_key_is_one_clear_error(tmp_path: Path, damage: Callable[[Path, Path], None], problem: str) -> None:
    pair = LocalCertificateAuthority(tmp_path).issue("till", hosts=HOSTS, client=True)
    damage(pair.key_file, pair.certificate_file)
    refused("key_file", pair.key_file, problem, lambda: client_context("$.http.", **files_of(pair)))


@pytest.mark.parametrize("kind", ["same type", "other type"])
def test_the_key_of_another_certificate_is_refused(authority, tmp_path, till, kind):
    key = authority.issue("other", client=True).key_file
    if kind == "other type":
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key = tmp_path / "rsa.key"
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key.chmod(0o600)
    problem = f"{{path}} is not the key of the certificate in {till.certificate_file}"
    refused(
        "key_file",
        key,
        problem,
        lambda: client_context("$.http.", certificate_file=till.certificate_file, key_file=key),
    )


def test_a_key_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    pair = LocalCertificateAuthority(tmp_path).issue("till", hosts=HOSTS, client=True)
    pair.key_file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"key_file: every user may access .*till.key \(mode 0644\)"):
        of_client(pair)
    pair.key_file.chmod(0o640)
    of_client(pair)


def test_an_encrypted_key_is_refused_and_no_passphrase_is_asked_for(tmp_path: Path) -> None:
    """In a process with a terminal, because OpenSSL asks there and not on stdin."""
    pair = LocalCertificateAuthority(tmp_path).issue("till", client=True)
    key = load_pem_private_key(pair.key_file.read_bytes(), password=None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush"))
    pair.key_file.write_bytes(encrypted)
    program = (
        "import sys; from headgate.errors import ConfigError; from headgate.files.tls import client_context\n"
        "try: client_context('$.broker.', certificate_file=sys.argv[1], key_file=sys.argv[2])\n"
        "except ConfigError as error: print(error, end='')\n"
    )
    command = [sys.executable, "-c", program, str(pair.certificate_file), str(pair.key_file)]
    terminal, terminal_of_child = os.openpty()
    try:
        run = subprocess.run(
            # `setsid --ctty` makes the terminal that of the process: /dev/tty, where OpenSSL asks.
            ["setsid", "--ctty", *command],
            stdin=terminal_of_child,
            stdout=subprocess.PIPE,
            stderr=terminal_of_child,
            timeout=60,
            check=True,
            text=True,
        )
    finally:
        os.close(terminal_of_child)
        os.close(terminal)

    assert run.stdout.startswith(f"$.broker.key_file: {pair.key_file} is encrypted, and headgate has no passphrase")


@pytest.mark.parametrize(
    ("since", "until", "problem"),
    [
        (NOW - 2 * HOUR, NOW - HOUR, f"the certificate expired at {NOW - HOUR:%Y-%m-%d %H:%M:%S} UTC; renew it"),
        (
            NOW + HOUR,
            NOW + 2 * HOUR,
            f"the certificate is not valid before {NOW + HOUR:%Y-%m-%d %H:%M:%S} UTC; is the clock",
        ),
    ],
    ids=["expired", "not yet valid"],
)
@pytest.mark.parametrize("role", [client_context, server_context], ids=["client", "server"])
def test_a_certificate_outside_its_validity_is_refused(authority, since, until, problem, role):
    pair = authority.issue("old", client=True, not_before=since, not_after=until)
    refused(
        "certificate_file", pair.certificate_file, f"{{path}}: {problem}", lambda: role("$.http.", **files_of(pair))
    )


def test_a_ca_file_is_refused_when_none_of_its_certificates_is_valid(authority, server, tmp_path):
    """After a change of the CA its file contains the old and the new certificate."""
    old = LocalCertificateAuthority(tmp_path / "old", now=lambda: NOW - timedelta(days=9999)).ca_file
    bundle = tmp_path / "bundle.pem"
    refused(
        "ca_file",
        old,
        "{path}: no certificate in it is valid; the first one expired at",
        lambda: client_context("$.http.", ca_file=old),
    )

    bundle.write_text("the new one:\n" + authority.ca_file.read_text() + "the old one:\n" + old.read_text())
    assert ("TLSv1.3", None) == handshake(client_context(ca_file=bundle), of_server(server))
    assert certificate_expiry(bundle, "ca_file") > NOW > certificate_expiry(bundle, "certificate_file")


def test_the_second_certificate_of_a_file_is_checked_too(authority: LocalCertificateAuthority, tmp_path: Path) -> None:
    bundle, text = tmp_path / "bundle.pem", authority.ca_file.read_text()
    bundle.write_text(text + text.replace("MII", "MIJ"))
    refused("ca_file", bundle, "{path}: certificate 2 is damaged", lambda: client_context("$.http.", ca_file=bundle))


# The dates of certificates, as another library wrote them.


BEGIN, END = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2021, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)
VERSION_1: Final = """\
-----BEGIN CERTIFICATE-----
MIIBIzCByQIUJRfg6CLQLxy2vItOEcv9EKM50YUwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJdmVyc2lvbi0xMB4XDTI2MTEyMjE5MjA1MFoXDTI2MTIxMjE5MjA1MFow
FDESMBAGA1UEAwwJdmVyc2lvbi0xMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
eBdgXh1WqzuAlSWGeWwbbLxy0pYtLHH3zINk6UQ2mfEKIBSLMN0dGGSERX5nz4+R
dXlfwIcIJDEt7FxsbPWACzAKBggqhkjOPQQDAgNJADBGAiEAvL7jYff+eryXqwaZ
2efaPff1uh0BqCJdePxI653sOEMCIQDtGhhiCJg2gsw7mJrLd71+UkY7wVKzArjV
iKp0xRSBig==
-----END CERTIFICATE-----
"""
"""Made with ``openssl x509 -req``, which adds no extensions. This version has no field of the version."""


@pytest.mark.parametrize(
    ("not_before", "not_after"),
    [
        (BEGIN, END),
        (datetime(1950, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(1999, 12, 31, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)),
        (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
    ids=["usual", "two-digit years", "four-digit year", "no end"],
)
def test_the_dates_are_those_of_the_certificate(tmp_path: Path, not_before: datetime, not_after: datetime) -> None:
    files = LocalCertificateAuthority(tmp_path).issue("a", client=True, not_before=not_before, not_after=not_after)
    der = ssl.PEM_cert_to_DER_cert(files.certificate_file.read_text())

    assert Validity(not_before, not_after) == validity_of(der)


def test_a_certificate_of_version_1_has_dates_too() -> None:
    expected = x509.load_pem_x509_certificate(VERSION_1.encode())
    assert x509.Version.v1 == expected.version

    found = validity_of(ssl.PEM_cert_to_DER_cert(VERSION_1))

    assert Validity(expected.not_valid_before_utc, expected.not_valid_after_utc) == found


def test_every_truncated_certificate_is_an_error(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(LocalCertificateAuthority(tmp_path).ca_file.read_text())
    for length in range(len(der)):
        with pytest.raises(ValueError):
            validity_of(der[:length])


@pytest.mark.parametrize("der", [b"\x02\x01\x00", b"\x30\x80", b"\x30\xff\x01"], ids=["number", "endless", "huge"])
def test_other_data_is_an_error(der: bytes) -> None:
    with pytest.raises(ValueError):
        validity_of(der)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (BEGIN - SECOND, "is not valid before 2020-01-02 03:04:05 UTC; is the clock of this machine right?"),
        (BEGIN, None),
        (END, None),
        (END + SECOND, "expired at 2021-01-02 03:04:05 UTC; renew it"),
    ],
    ids=["before", "first second", "last second", "after"],
)
def test_both_dates_belong_to_the_validity(now: datetime, problem: str | None) -> None:
    assert problem == Validity(BEGIN, END).problem(now)
