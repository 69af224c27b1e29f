"""A TLS connection that passes many records to the operating system at once. It has the methods of a socket.

`ssl.SSLSocket` writes each record of 16 KB with a system call of its own and reads each with two, and paho reads the
head of a message byte by byte. A batch of 50 KB cost four writes, eight reads, and as many wake-ups of the broker.
Here OpenSSL works in memory: a message is one write, and all that has arrived is decrypted at once.

Rules:

1. After the handshake nothing blocks: where a socket would, `recv` and `send` raise BlockingIOError.
2. `send` returns once the operating system has all of what was encrypted. After BlockingIOError the caller must send
   the same bytes again, as paho does; they are not encrypted a second time.
3. At most `RECEIVE_BYTES` are decrypted ahead of the reader, and at most `SEND_BYTES` encrypted ahead of the peer.
4. A failure after data is raised once that data has been read.
"""

import contextlib
import socket
import ssl
import time
from typing import Final

RECEIVE_BYTES: Final = 64 * 1024
"""Received at once: a batch of the default size. More would delay what else the event loop has to do."""
SEND_BYTES: Final = 256 * 1024
RECORD_BYTES: Final = 16 * 1024


class TlsSocket:
    """One connection. It owns ``sock``, and does what paho needs of a socket."""

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
