"""The text for users about each kind of failed handshake; tests/contract has those that a real broker causes."""

import socket
import ssl
from dataclasses import replace

import pytest

from headgate.transport.broker_tls import BrokerTls, TlsSockets, tls_problem

TLS = BrokerTls(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "broker.example")


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1)")
    error.reason = reason
    return error


def unverified(code: int, message: str = "odd") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (unverified(7), "the broker's certificate is not signed by the authorities of the system: set ca_file"),
        (unverified(62), "the broker's certificate is not for broker.example: set server_name"),
        (unverified(23, "certificate revoked"), "the broker's certificate is refused: certificate revoked"),
        (ssl.SSLEOFError(8, "EOF"), "the broker does not answer the TLS handshake"),
        (ConnectionResetError(104, "reset"), "the broker does not answer the TLS handshake"),
        (TimeoutError("timed out"), "the broker does not answer the TLS handshake"),
        (failed("WRONG_VERSION_NUMBER"), "the broker does not answer the TLS handshake"),
        (failed("TLSV1_ALERT_PROTOCOL_VERSION"), "the broker offers no version of TLS from 1.2"),
        (failed("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "the broker requires a client certificate"),
        (failed("SSLV3_ALERT_HANDSHAKE_FAILURE"), "the broker requires a client certificate"),
        (
            failed("SSLV3_ALERT_CERTIFICATE_REVOKED"),
            "the broker refuses the client's certificate (certificate revoked)",
        ),
        (failed("NO_CIPHERS_AVAILABLE"), "TLS failed: no ciphers available"),
        (OSError(5, "Input/output error"), "TLS failed: [Errno 5] Input/output error"),
    ],
    ids=str,
)
def test_each_failure_is_one_line(error: OSError, problem: str) -> None:
    found = tls_problem(error, TLS)
    assert found.startswith(problem)
    assert "\n" not in found


def test_a_client_with_a_certificate_is_not_asked_to_set_one() -> None:
    with_certificate = replace(TLS, has_certificate=True)
    for reason in ("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"):
        assert tls_problem(failed(reason), with_certificate).startswith("the broker refuses the client's certificate (")


def test_a_small_message_is_not_delayed() -> None:
    """Without the option, it waits until the peer has confirmed the one before."""
    with socket.socket() as sock:
        TlsSockets(TLS).wrap_socket(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
