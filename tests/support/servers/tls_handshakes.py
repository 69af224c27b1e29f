"""TLS handshakes that a server or the client must refuse."""

import socket
import ssl

from tests.support.servers.programs import TIMEOUT_FACTOR

CLIENT_REFUSES, SERVER_REFUSES = "the client refuses", "the server refuses"


def handshake(port: int, context: ssl.SSLContext) -> str:
    """Return how a handshake with a server on this machine ends. Unlike asyncio, a blocking socket sends its alert."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5 * TIMEOUT_FACTOR) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            # In TLS 1.3 a client has finished before the server has checked its certificate.
            encrypted.sendall(b"srvr")
            return "connected" if encrypted.recv(1) else SERVER_REFUSES
    except ssl.SSLCertVerificationError:
        return CLIENT_REFUSES
    except (ssl.SSLError, ConnectionError):
        return SERVER_REFUSES
