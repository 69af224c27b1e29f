"""A certificate authority for one folder, so that a node or a test on this machine can use TLS.

It signs certificates for servers and clients on this machine. Other machines must not trust it: its key lies beside
them. A real deployment has its own authority.

The next start uses the same authority, so that clients can keep their copy of its certificate. A certificate that
expires soon, has other hosts, or belongs to another authority is replaced, with a new key.
"""

import ipaddress
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.local.private_file import OWNER_ONLY_FOLDER, write_private_file
from headgate.errors import ConfigError
from headgate.files.tls import client_context

AUTHORITY_DAYS: Final = 3650
"""The authority is replaced a year earlier, so that it outlives everything that it signs."""
CERTIFICATE_DAYS: Final = 365
RENEWAL_DAYS: Final = 30
"""A certificate is replaced if it expires earlier. A node that runs for longer must be restarted in between."""
CLOCK_TOLERANCE: Final = timedelta(hours=1)
"""Certificates are valid from a little earlier, for clocks that are set back after the start."""
_NAME: Final = "headgate's throwaway authority"


def _now() -> datetime:
    return datetime.fromtimestamp(time.time_ns() / 1e9, UTC).replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its private key, as PEM."""

    certificate_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class ServerTls:
    server: CertificateFiles
    ca_file: Path
    """The authority that signed ``server`` and ``client``."""
    client: CertificateFiles | None = None
    """A client's certificate; None: the server asks for none."""

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client that trusts only this server's authority."""
        own = {} if self.client is None else asdict(self.client)
        return client_context(ca_file=self.ca_file, **own)


class LocalCertificateAuthority:
    def __init__(self, folder: Path, *, now: Callable[[], datetime] = _now) -> None:
        """Read the authority in ``folder``, or create it; only the owner of the folder may read it.

        Raises ConfigError: the folder cannot be used, or a file in it is damaged.
        """
        self.folder = folder.absolute()
        self.ca_file = self.folder / "ca.pem"
        self._now = now
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(OWNER_ONLY_FOLDER)
        except OSError as error:
            raise ConfigError(f"certificates in {self.folder}: {error.strerror}") from None
        files = CertificateFiles(self.ca_file, self.folder / "ca.key")
        self._certificate, self._key = self._stored(files, CERTIFICATE_DAYS + RENEWAL_DAYS) or self._create(files)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        client: bool = False,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> CertificateFiles:
        """Return a certificate for a server with these ``hosts``, for a client with this ``name``, or for both.

        The files are ``<name>.pem`` and ``<name>.key``. Those of an earlier start are used again while they fit. With
        ``not_before`` or ``not_after`` they are always replaced.

        Raises ConfigError: a file cannot be read or written, or is damaged.
        """
        if not hosts and not client:
            raise ValueError("a certificate is for hosts, for a client, or for both")
        files = CertificateFiles(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        wanted = self._extensions(hosts, client)
        if not_before is None and not_after is None:
            stored = self._stored(files, RENEWAL_DAYS)
            if stored is not None and self._fits(stored[0], wanted):
                return files
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, key, not_before or self._now() - CLOCK_TOLERANCE, not_after or self._days(CERTIFICATE_DAYS))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in wanted:
            builder = builder.add_extension(extension, critical=False)
        _write(files, builder.sign(self._key, hashes.SHA256()), key)
        return files

    def _create(self, files: CertificateFiles) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_NAME, key, self._now() - CLOCK_TOLERANCE, self._days(AUTHORITY_DAYS))
        certificate = (
            builder.issuer_name(_subject(_NAME))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(files, certificate, key)
        return certificate, key

    def _stored(self, files: CertificateFiles, days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
        """Return what an earlier start wrote; None if there is nothing, only a part, or it expires within ``days``."""
        try:
            certificate = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
            key = serialization.load_pem_private_key(files.key_file.read_bytes(), password=None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise ConfigError(
                f"{files.certificate_file} or its key {files.key_file.name} is damaged: "
                "delete both, and the next start makes others"
            ) from None
        valid = certificate.not_valid_before_utc <= self._now() and certificate.not_valid_after_utc > self._days(days)
        if valid and isinstance(key, ec.EllipticCurvePrivateKey) and certificate.public_key() == key.public_key():
            return certificate, key
        return None

    def _fits(self, certificate: x509.Certificate, wanted: Sequence[x509.ExtensionType]) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError):
            return False
        found = [extension.value for extension in certificate.extensions]
        return all(extension in found for extension in wanted) and len(found) == len(wanted) + _COMMON_EXTENSIONS

    def _extensions(self, hosts: Sequence[str], client: bool) -> list[x509.ExtensionType]:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] * bool(hosts) + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
        names = [x509.SubjectAlternativeName([_general_name(host) for host in hosts])] if hosts else []
        return [x509.ExtendedKeyUsage(usages), *names]

    def _days(self, count: int) -> datetime:
        return self._now() + timedelta(days=count)


_COMMON_EXTENSIONS: Final = 4
"""Basic constraints, key usage, and the identifiers of both keys."""


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(files: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private_file(files.key_file, private.decode())
    write_private_file(files.certificate_file, certificate.public_bytes(pem).decode())
