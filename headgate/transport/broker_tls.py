"""TLS towards the broker: the encrypted socket, the name to verify, and why a handshake failed.

paho knows no server name but the host that it connects to, and reports an alert that follows the
handshake as a lost connection. In TLS 1.3 a broker refuses a client's certificate with such an alert.
"""

import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from headgate.errors import ConfigError
from headgate.files.tls import client_context
from headgate.transport.connection_options import TlsFiles, TlsOptions, tls_option_problem

RECEIVE_BYTES: Final = 64 * 1024
"""Received at once: a batch of the default size. More would delay what else the event loop has to do."""
SEND_BYTES: Final = 256 * 1024
RECORD_BYTES: Final = 16 * 1024
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


class TlsSocket:
    """One TLS connection that passes many records to the operating system at once. It does what paho needs of a socket.

    It owns ``sock``. `ssl.SSLSocket` writes each record of 16 KB with a system call of its own and reads each with two,
    and paho reads the head of a message byte by byte. A batch of 50 KB cost four writes, eight reads, and as many
    wake-ups of the broker. Here OpenSSL works in memory: a message is one write, and all that has arrived is decrypted
    at once.

    Rules:

    1. After the handshake nothing blocks: where a socket would, `recv` and `send` raise BlockingIOError.
    2. `send` returns once the operating system has all of what was encrypted. After BlockingIOError the caller must
       send the same bytes again, as paho does; they are not encrypted a second time.
    3. At most `RECEIVE_BYTES` are decrypted ahead of the reader, and at most `SEND_BYTES` encrypted ahead of the peer.
    4. A failure after data is raised once that data has been read.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str) -> None:
        """``server_name``: the name or address that the peer's certificate must contain."""
        self.in_handshake = True
        self.failure: ssl.SSLError | None = None
        """What ended the connection, if TLS did."""
        self._sock = sock
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=server_name)
        self._receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._decrypted = b""
        self._position = 0
        """The place of the first byte in `_decrypted` that was not read."""
        self._encrypted = memoryview(b"")
        """What the operating system has not accepted yet."""
        self._encrypted_length = 0
        """Length of the data in `_encrypted` before it was encrypted."""

    # The handshake, in a thread

    def do_handshake(self) -> None:
        """Complete the handshake within the socket's time-out. A failure closes the socket.

        Raises OSError (ssl.SSLError and TimeoutError among them).
        """
        limit = self._sock.gettimeout()
        deadline = None if limit is None else time.monotonic() + limit
        try:
            while not self._advance_handshake():
                if deadline is not None:
                    # Never 0, which would mean that the socket does not block.
                    self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
                self._receive_encrypted()
        except OSError:
            self.close()
            raise
        self.in_handshake = False
        self._decrypted = self._decrypt()  # What arrived together with the end of the handshake.

    def _advance_handshake(self) -> bool:
        """Take the next step; return whether it was the last one. What it says to the peer is sent in any case."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._sock.sendall(self._to_send.read())
            return False
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._sock.sendall(self._to_send.read())
            raise
        self._sock.sendall(self._to_send.read())
        return True

    # Messages, on the event loop

    def pending(self) -> int:
        """Return how many bytes can be read although the operating system has none."""
        return len(self._decrypted) - self._position

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes; none: the peer has closed the connection.

        Raises:
            BlockingIOError: nothing has arrived.
            OSError: the connection is lost (ssl.SSLError: by TLS).
        """
        if self._position == len(self._decrypted):
            self._receive()
        found = self._decrypted[self._position : self._position + size]
        self._position += len(found)
        return found

    def _receive(self) -> None:
        """Receive and decrypt more; `_decrypted` is empty afterwards if the peer has closed the connection."""
        self._raise_failure()
        ended = not self._receive_encrypted()
        self._decrypted, self._position = self._decrypt(), 0
        if ended or self._decrypted:
            return
        self._raise_failure()
        raise BlockingIOError("the received bytes are part of a record")

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _receive_encrypted(self) -> int:
        """Pass what has arrived to OpenSSL; return how many bytes, 0 at the end of the connection."""
        size = self._sock.recv_into(self._receive_buffer)
        if size:
            self._received.write(self._receive_buffer[:size])
        else:
            self._received.write_eof()
        return size

    def _decrypt(self) -> bytes:
        records: list[bytes] = []
        try:
            while record := self._tls.read(RECORD_BYTES):
                records.append(record)
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            pass  # More has to arrive, or the connection has ended, which the operating system reports again.
        except ssl.SSLError as error:
            self.failure = error
        return b"".join(records)

    def send(self, data: bytes) -> int:
        """Send the beginning of ``data``; return how many bytes.

        Raises:
            BlockingIOError: the operating system has no space. Send the same again once the socket is writable.
            OSError: the connection is lost. If the peer said why, `failure` has its alert.
        """
        if not self._encrypted:
            self._encrypted_length = self._tls.write(memoryview(data)[:SEND_BYTES])
            self._encrypted = memoryview(self._to_send.read())
        try:
            while self._encrypted:
                self._encrypted = self._encrypted[self._sock.send(self._encrypted) :]
        except BlockingIOError:
            raise
        except OSError:
            # An alert says why the peer has closed the connection, and is not read yet.
            with contextlib.suppress(OSError):
                self._receive()
            raise
        return self._encrypted_length

    # The socket

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 after `close`."""
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def abort(self) -> None:
        """End the handshake that another thread waits for: it finds the end of the connection."""
        with contextlib.suppress(OSError):  # It is closed already, or was never connected.
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection without a farewell: MQTT has its own."""
        self._sock.close()


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

    ``prefix`` precedes the names of settings in messages. Raises ConfigError if options contradict each other.
    """
    if (problem := tls_option_problem(options)) is not None:
        raise ConfigError(f"{prefix}{': '.join(problem)}")
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
            sock.close()
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
        in_handshake = error if self._last.in_handshake and isinstance(error, OSError) else None
        return self._last.failure or in_handshake


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
