"""TLS towards the broker: the name to verify, and why a handshake failed.

paho knows no server name but the host that it connects to, and reports an alert that follows the
handshake as a lost connection. In TLS 1.3 a broker refuses a client's certificate with such an alert.
"""

import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.files.tls import client_context
from headgate.transport.connection_options import TlsFiles, TlsOptions
from headgate.transport.tls_socket import TlsSocket

EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
OTHER_NAME: Final = (62, 64)
"""OpenSSL's codes (X509_V_ERR_…) of a certificate for another name, and for another address."""
UNKNOWN_AUTHORITY: Final = (2, 7, 18, 19, 20, 21)
"""No issuer, a wrong signature (another authority of the same name), or a certificate that signed itself."""
NO_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
BAD_CERTIFICATE: Final = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_", "ACCESS_DENIED", "DECRYPT_ERROR")
OLD_VERSION: Final = ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION")
NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


@dataclass(frozen=True, slots=True)
class BrokerTls:
    context: Callable[[], ssl.SSLContext]
    """Called in a thread before each connection. Raises ConfigError: its files are unusable."""
    server_name: str
    """The name or address that the broker's certificate must contain."""
    authorities: str = "the authorities of the system"
    has_certificate: bool = False


def broker_tls(options: TlsOptions, host: str, prefix: str) -> BrokerTls | None:
    """Return how to encrypt connections to ``host``, reading the files again for each; None: not at all.

    ``prefix`` precedes the names of settings in messages.
    """
    if not options.tls:
        return None
    authorities = {} if options.ca_file is None else {"authorities": f"an authority in {options.ca_file}"}
    return BrokerTls(
        partial(context_of, options, prefix),
        options.server_name or host,
        has_certificate=options.certificate_file is not None,
        **authorities,
    )


def context_of(options: TlsFiles, prefix: str) -> ssl.SSLContext:
    return client_context(
        prefix, ca_file=options.ca_file, certificate_file=options.certificate_file, key_file=options.key_file
    )


class TlsSockets:
    """The encrypted sockets of one connection. paho uses it as its `ssl.SSLContext`."""

    check_hostname = True
    """The handshake verifies the name, so that paho does not do it once more."""

    def __init__(self, tls: BrokerTls) -> None:
        """Make the context; takes some milliseconds to read all authorities. Raises ConfigError."""
        self._tls = tls
        self._context = tls.context()
        self._last: TlsSocket | None = None
        self._aborted = False

    def wrap_socket(self, sock: socket.socket, **_: object) -> TlsSocket:
        """Return the encrypted socket before its handshake; paho passes its own idea of the server's name."""
        # aiomqtt sets this option for sockets of the operating system only. Replies would wait for 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._aborted:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the connection is not wanted any more")
        self._last = TlsSocket(sock, self._context, self._tls.server_name)
        return self._last

    def abort(self) -> None:
        """End a handshake that a thread waits for, and begin no other."""
        self._aborted = True
        if self._last is not None and self._last.in_handshake:
            self._last.abort()

    def failure(self, error: BaseException | None) -> OSError | None:
        """Return how TLS failed; None if it did not fail. ``error`` is what ended the attempt to connect."""
        if self._last is None:
            return None
        if self._last.failure is None and self._last.in_handshake and isinstance(error, OSError):
            return error
        return self._last.failure


def is_end_of_connection(error: OSError) -> bool:
    """Return whether the connection ended during the handshake, as it does while a broker starts."""
    return isinstance(error, ssl.SSLEOFError | ConnectionError | TimeoutError)


def tls_problem(error: OSError, tls: BrokerTls) -> str:
    """Return in one line, for users, why the handshake with the broker failed with ``error``."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_problem(error, tls)
    if is_end_of_connection(error) or any(part in reason for part in NO_TLS):
        return "the broker does not answer the TLS handshake: does this port use TLS?"
    if any(part in reason for part in OLD_VERSION):
        return "the broker offers no version of TLS from 1.2: update or configure it"
    if "ALERT" in reason and any(part in reason for part in NO_CERTIFICATE) and not tls.has_certificate:
        return "the broker requires a client certificate: set certificate_file and key_file"
    if "ALERT" in reason and any(part in reason for part in (*BAD_CERTIFICATE, *NO_CERTIFICATE)):
        said = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return f"the broker refuses the client's certificate ({said}): check certificate_file"
    return f"TLS failed: {reason.lower().replace('_', ' ') or error}"


def _certificate_problem(error: ssl.SSLCertVerificationError, tls: BrokerTls) -> str:
    if error.verify_code == EXPIRED:
        return "the certificate of the broker, or of its authority, has expired: renew it"
    if error.verify_code == NOT_YET_VALID:
        return "the broker's certificate is not valid yet: is the clock of this machine right?"
    if error.verify_code in OTHER_NAME:
        return f"the broker's certificate is not for {tls.server_name}: set server_name to a name in it"
    if error.verify_code in UNKNOWN_AUTHORITY:
        return (
            f"the broker's certificate is not signed by {tls.authorities}: set ca_file to the authority's certificate"
        )
    return f"the broker's certificate is refused: {error.verify_message}"
