"""Decides what a request over HTTP may read. Pure.

1. ``/livez`` and the status code of ``/readyz`` are open: probes and load balancers hold no secret.
2. ``/metrics`` is open if the settings say so.
3. Everything else, unknown paths included, needs a token if there is a tokens file.

4. Records and actions need a token whose holder is a user with that right in the access file.

docs/security.md says how programs and browsers send a token. Another daemon of the cluster sends one that only
daemons can make, and reads the API with it.
"""

import base64
import binascii
import hashlib
import hmac
import ssl
from dataclasses import dataclass
from typing import ClassVar, Final

from headgate.errors import HeadgateError
from metrics.label_values import HttpDenial
from shard.access.rules import OPEN, AccessRules, Act

OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
CHALLENGES: Final = ('Bearer realm="headgate"', 'Basic realm="headgate", charset="UTF-8"')
"""What a response without permission asks for (RFC 6750, RFC 7617)."""


class RefusedError(HeadgateError):
    """Why a request is refused. A subclass has the status of the answer."""

    status: ClassVar[int]


class ForbiddenError(RefusedError):
    """The holder of the token may not do this, or the request has no token."""

    status = 403


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
    rules: AccessRules = OPEN
    """Those that the leaders ask as well."""

    def require(self, authorization: str | None, act: Act) -> str:
        """Return the user that holds the token of a request. Raises ForbiddenError unless it may do ``act``."""
        user = None if self.tokens is None else self.tokens.holder(_token(authorization or ""))
        if user is None or self.rules.is_open:
            raise ForbiddenError(f"to {act} here needs a token with the name of a user who may, in the access file")
        decision = self.rules.judge(user, act)
        if not decision.allowed:
            raise ForbiddenError(decision.reason)
        return user

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
            return value.strip() if value.isascii() else ""  # Others may be bytes that cannot be encoded again.
        case "basic":
            try:
                pair = base64.b64decode(value.strip(), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
            return pair.partition(":")[2]
        case _:
            return ""
