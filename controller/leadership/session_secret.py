"""The part of the daemons' client ids that no client can derive. Pure.

A broker gives a session, with every message that waits in it, to any client that connects with its
id. So the ids of daemons and of device sessions end with a code that only daemons can compute. It is
the same on every daemon and after each restart, because a device session outlives both.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

_SHAPE: Final = re.compile(r"[0-9a-f]{64}")
_CODE_DIGITS: Final = 32


class SessionSecret:
    """One cluster's secret: 256 random bits. It is never shown."""

    def __init__(self, digits: str) -> None:
        """``digits`` are hexadecimal. Raises ValueError: they are not 64."""
        if not _SHAPE.fullmatch(digits):
            raise ValueError("a session secret has 64 hexadecimal digits")
        self._key = bytes.fromhex(digits)

    @staticmethod
    def new_digits() -> str:
        """Return the digits of a new secret."""
        return secrets.token_hex(32)

    def suffix(self, client_id: str) -> str:
        """Return what follows the public part ``client_id`` in the id at the broker: 128 bits of a HMAC."""
        return ":" + hmac.digest(self._key, client_id.encode(), hashlib.sha256).hex()[:_CODE_DIGITS]
