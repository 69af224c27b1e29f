"""Decides what a request over HTTP may read. Pure.

1. ``/livez`` and the status code of ``/readyz`` are open: probes and load balancers hold no secret.
2. ``/metrics`` is open if the settings say so.
3. Everything else, unknown paths included, needs a token if there is a tokens file.

docs/security.md says how programs and browsers send a token. Another daemon of the cluster sends one that only
daemons can make, and reads the API with it.
"""

import base64
import binascii
import hashlib
import hmac
import ssl
from dataclasses import dataclass
from typing import Final

from metrics.label_values import HttpDenial

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
CHALLENGES: Final = ('Bearer realm="headgate"', 'Basic realm="headgate", charset="UTF-8"')
"""What a response without permission asks for (RFC 6750, RFC 7617)."""


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    entries: tuple[tuple[str, bytes], ...]

    def holder(self, token: str) -> str | None:
        """Return the name beside ``token``; None if it is unknown. The time does not depend on the token."""
        digest = hashlib.sha256(token.encode()).digest()
        found = [name for name, known in self.entries if hmac.compare_digest(known, digest)]
        return found[0] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """The rules in force. The default lets every client that can connect read everything."""

    tls: ssl.SSLContext | None = None
    """Certificate and, if clients must present certificates, their authorities. None: no TLS."""
    tokens: Tokens | None = None
    open_metrics: bool = False

    def denial(self, authorization: str | None) -> HttpDenial | None:
        """Return why a request with this header may read only what is open; None: it may read everything."""
        if self.tokens is None:
            return None
        if authorization is None:
            return "no_token"
        return None if self.tokens.holder(_token(authorization)) is not None else "wrong_token"

    def is_open(self, path: str) -> bool:
        return path in OPEN_PATHS or (self.open_metrics and path == "/metrics")


def peer_token(authorization: str | None) -> str:
    """Return the token in the header if it has the form of a daemon's; otherwise the empty string."""
    token = _token(authorization or "")
    return token if token.startswith("peer.") else ""


def _token(authorization: str) -> str:
    """Return the token in the header; the empty string, which no token is, if there is none."""
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                pair = base64.b64decode(value.strip(), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
            return pair.partition(":")[2]
        case _:
            return ""
