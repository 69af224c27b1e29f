"""Make TLS contexts from the files that settings name, and refuse unusable files before any connection needs them.

* TLS 1.2 is the minimum, in both roles. A client verifies the certificate and the name of the server; no setting
  switches that off. A server that has a CA file for clients requires a certificate of each client.
* An error is one `ConfigError` that names the setting, the file, and what to do. No private key is asked for a
  passphrase: a daemon has no user to ask, and OpenSSL would wait at the terminal.
* A context keeps the certificates it was made with. Make another one to read the files again.
* A CA file may contain outdated certificates beside valid ones, as after a change of the CA.
"""

import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from headgate.errors import ConfigError
from headgate.files.named_file import read_named_file

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
LONG_LENGTH: Final = 0x80


@dataclass(frozen=True, slots=True)
class Validity:
    """When a certificate is valid.

    Python's `ssl` shows the dates of a certificate only during a handshake, and a library for two dates
    would be a large dependency of every client. The dates have a fixed place in the DER encoding: RFC
    5280, sections 4.1 and 4.1.2.5. OpenSSL checks everything else about the certificate.
    """

    not_before: datetime
    not_after: datetime

    def problem(self, now: datetime) -> str | None:
        if now < self.not_before:
            return f"is not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC; is the clock of this machine right?"
        return f"expired at {self.not_after:%Y-%m-%d %H:%M:%S} UTC; renew it" if now > self.not_after else None


def validity_of(der: bytes) -> Validity:
    """Return the validity of the certificate in ``der``. Raises ValueError if it is none."""
    _, certificate = _element(der, SEQUENCE)
    _, body = _element(certificate, SEQUENCE)
    if body[:1] == bytes([VERSION]):
        body, _ = _element(body, VERSION)
    for _ in ("serial number", "signature algorithm", "issuer"):
        body, _ = _element(body)
    _, dates = _element(body, SEQUENCE)
    dates, not_before = _time(dates)
    _, not_after = _time(dates)
    return Validity(not_before, not_after)


def _element(data: bytes, expected_tag: int | None = None) -> tuple[bytes, bytes]:
    """Return what follows the first element of ``data``, and the contents of that element."""
    if len(data) < 2 or expected_tag not in {None, data[0]}:  # noqa: PLR2004 - tag and length
        raise ValueError("not the DER encoding of a certificate")
    length, begin = data[1], 2
    if length & LONG_LENGTH:
        begin += length & ~LONG_LENGTH
        length = int.from_bytes(data[2:begin])
    end = begin + length
    if end > len(data):
        raise ValueError("a certificate that ends early")
    return data[end:], data[begin:end]


def _time(data: bytes) -> tuple[bytes, datetime]:
    rest, contents = _element(data)
    text = contents.decode("ascii")
    if data[0] == UTC_TIME:
        # Two digits of the year; RFC 5280 defines the century.
        text = ("19" if text >= "50" else "20") + text
    elif data[0] != GENERALIZED_TIME:
        raise ValueError("a certificate without dates")
    return rest, datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Ten times the certificates of all public authorities."""
MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons if a key is of another certificate: of the same type, or of another type."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

File = Path | str


def client_context(
    prefix: str = "", *, ca_file: File | None = None, certificate_file: File | None = None, key_file: File | None = None
) -> ssl.SSLContext:
    """Return the context of a client, e.g. with ``prefix`` ``"$.broker."``, which precedes names of settings.

    Args:
        prefix: where the settings are, for messages.
        ca_file: certificates (PEM) of the authorities that may vouch for the server; None: those of the system.
        certificate_file: the client's certificate (PEM), followed by intermediate ones; None: it presents none.
        key_file: the private key (PEM, not encrypted) of that certificate.

    Raises ConfigError: a file is unusable.
    """
    context = _new_context(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, ca_file, f"{prefix}ca_file")
    if certificate_file is not None and key_file is not None:  # tls_option_problem: both are, or neither
        _present(context, prefix, certificate_file, key_file)
    return context


def server_context(
    prefix: str = "", *, certificate_file: File, key_file: File, client_ca_file: File | None = None
) -> ssl.SSLContext:
    """Return the context of a server; see `client_context`.

    ``client_ca_file``: certificates of the authorities that may vouch for clients; None: clients need no certificate.

    Raises ConfigError: a file is unusable.
    """
    context = _new_context(ssl.PROTOCOL_TLS_SERVER)
    if client_ca_file is not None:
        _trust(context, client_ca_file, f"{prefix}client_ca_file")
        context.verify_mode = ssl.CERT_REQUIRED
    _present(context, prefix, certificate_file, key_file)
    return context


def certificate_expiry(file: File, setting: str) -> datetime:
    """Return when the first certificate of a chain expires, or the last one of a CA file. Raises ConfigError."""
    found = [each.not_after for each in _certificates(file, setting)]
    return max(found) if setting.endswith("ca_file") else min(found)


def _new_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The other side could otherwise demand handshake after handshake on one connection. No write has to wait until
    # something can be read, which the event loop would try again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _trust(context: ssl.SSLContext, file: File, setting: str) -> None:
    now = _now()
    problems = [found.problem(now) for found in _certificates(file, setting)]
    if all(problems):
        raise ConfigError(f"{setting}: {file}: no certificate in it is valid; the first one {problems[0]}")
    try:
        context.load_verify_locations(cafile=file)
    except (ssl.SSLError, OSError) as error:
        _raise_unusable(file, setting, error)


def _present(context: ssl.SSLContext, prefix: str, certificate_file: File, key_file: File) -> None:
    """Load one's own certificate, after it was checked alone: OpenSSL does not say which of the two files is wrong."""
    certificate, key = f"{prefix}certificate_file", f"{prefix}key_file"
    now = _now()
    if (problem := _certificates(certificate_file, certificate)[0].problem(now)) is not None:
        raise ConfigError(f"{certificate}: {certificate_file}: the certificate {problem}")
    text = read_named_file(key_file, key, max_bytes=MAX_FILE_BYTES, private=True)
    if b"PRIVATE KEY-----" not in text:
        raise ConfigError(f"{key}: {key_file} contains no private key in PEM format (-----BEGIN PRIVATE KEY-----)")

    def refuse_to_ask() -> NoReturn:
        raise ConfigError(
            f"{key}: {key_file} is encrypted, and headgate has no passphrase for it: "
            "decrypt it, for example with openssl pkey, and protect the file by its mode"
        )

    try:
        context.load_cert_chain(certificate_file, key_file, password=refuse_to_ask)
    except ssl.SSLError as error:
        if error.reason in MISMATCHES:
            raise ConfigError(f"{key}: {key_file} is not the key of the certificate in {certificate_file}") from None
        # The certificate was read before; what is left to refuse about it is its strength.
        weak = "TOO_SMALL" in (error.reason or "") or "TOO_WEAK" in (error.reason or "")
        _raise_unusable(*((certificate_file, certificate) if weak else (key_file, key)), error)
    except OSError as error:
        _raise_unusable(key_file, key, error)


def _certificates(file: File, setting: str) -> list[Validity]:
    """Return the validity of each certificate in ``file``. Raises ConfigError if there is none, or one is damaged."""
    text = read_named_file(file, setting, max_bytes=MAX_FILE_BYTES, private=False).decode("ascii", "replace")
    parser = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found: list[Validity] = []
    for block in _CERTIFICATE.findall(text):
        try:
            der = ssl.PEM_cert_to_DER_cert(block)
            parser.load_verify_locations(cadata=der)
            found.append(validity_of(der))
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{setting}: {file}: certificate {len(found) + 1} is damaged; copy it again") from None
    if not found:
        raise ConfigError(f"{setting}: {file} contains no certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    return found


def _raise_unusable(file: File, setting: str, error: OSError) -> NoReturn:
    reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
    raise ConfigError(f"{setting}: OpenSSL cannot use {file}: {reason.lower().replace('_', ' ')}") from None


def _now() -> datetime:
    return datetime.fromtimestamp(time.time_ns() // 10**9, UTC)
