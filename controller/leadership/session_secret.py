"""What only the daemons of a cluster can derive: parts of their client ids, and tokens for HTTP.

A broker gives a session, with every message that waits in it, to any client that connects with its
id. So the ids of daemons and of device sessions end with a code that only daemons can compute. It is
the same on every daemon and after each restart, because a device session outlives both.

A daemon that asks another one over HTTP sends a token for this receiver and some minutes, so one that
is overheard soon opens nothing, and a receiver cannot use it elsewhere.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final

_SHAPE: Final = re.compile(r"[0-9a-f]{64}")
_CODE_DIGITS: Final = 32
TOKEN_STEP_MS: Final = 300_000
"""A token for HTTP is accepted for up to two steps, so the clocks of two daemons may differ by one."""


class SessionSecret:
    """One cluster's secret: 256 random bits. It is never shown."""

    def __init__(self, digits: str) -> None:
        """``digits`` are hexadecimal. Raises ValueError: they are not 64."""
        if not _SHAPE.fullmatch(digits):
            raise ValueError("a session secret has 64 hexadecimal digits")
        self._key = bytes.fromhex(digits)

    @staticmethod
    def new_digits() -> str:
        return secrets.token_hex(32)

    def http_token(self, receiver: str, now_ms: int) -> str:
        """Return what shows daemon ``receiver`` over HTTP that a daemon of its cluster asks."""
        return self._http_token(receiver, now_ms // TOKEN_STEP_MS)

    def accepts_http_token(self, token: str, receiver: str, now_ms: int) -> bool:
        """Return whether ``token`` was made for ``receiver`` in the last step of time, this one, or the next one."""
        step = now_ms // TOKEN_STEP_MS
        known = [self._http_token(receiver, each) for each in (step - 1, step, step + 1)]
        return any(hmac.compare_digest(each.encode(), token.encode()) for each in known)

    def _http_token(self, receiver: str, step: int) -> str:
        return "peer." + hmac.digest(self._key, f"http:{step}:{receiver}".encode(), hashlib.sha256).hex()

    def suffix(self, client_id: str) -> str:
        """Return what follows the public part ``client_id`` in the id at the broker: 128 bits of a HMAC."""
        return ":" + hmac.digest(self._key, client_id.encode(), hashlib.sha256).hex()[:_CODE_DIGITS]
