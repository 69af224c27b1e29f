"""Counts what HTTP refuses, and logs the first refusal of each peer in an hour."""

import asyncio
import ssl
from typing import Final

import structlog

from headgate.log.report_limit import ReportLimit
from metrics import events
from metrics.label_values import HttpDenial

LOG_SECONDS: Final = 3600.0
MAX_LOGGED_PEERS: Final = 1000
"""Above it, all are forgotten, and are logged again."""

log = structlog.get_logger(__name__)


class HttpDenials:
    def __init__(self, observer: events.Observer) -> None:
        self._observer = observer
        self._logged = ReportLimit(LOG_SECONDS, MAX_LOGGED_PEERS)

    def report(self, reason: HttpDenial, peer: str) -> None:
        """Report one refusal; ``peer`` is an address without a port."""
        self._observer.observe(events.HttpDenied(reason=reason))
        if self._logged.is_due(asyncio.get_running_loop().time(), (peer, reason)):
            log.warning("http.denied", peer=peer, reason=reason)


def handshake_denial(error: OSError) -> HttpDenial | None:
    """Return why a TLS handshake failed; None if the peer only went away, as the probe of a port does."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return None
    reason = error.reason or ""
    if reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
        return "plaintext"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return "server_certificate"
    return "client_certificate" if "CERTIFICATE" in reason else "handshake"
