"""The users of an embedded broker: their password file and their rights, in the formats of mosquitto.

amqtt reads the same two files (controller.local.embedded_broker), so that both brokers have the same rules.
Passwords are stored as mosquitto's PBKDF2 hashes. One hundred iterations suffice: these passwords are random
and cannot be guessed, so a slow hash would protect nothing, and each connection would pay for it.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.local.private_file import write_private_file

ITERATIONS: Final = 101
_KIND: Final = "7"
"""PBKDF2 with SHA-512, in mosquitto's numbering."""
_SALT_BYTES: Final = 12
_HASH_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The two files that the broker reads; SIGHUP makes it read them again."""

    password_file: Path
    acl_file: Path

    def write(self, passwords: Mapping[str, str], acl: str) -> None:
        """Replace both files: ``passwords`` are user → password, ``acl`` is mosquitto's. Raises ConfigError."""
        lines = [f"{user}:{hash_password(password)}\n" for user, password in passwords.items()]
        write_private_file(self.password_file, "".join(lines))
        write_private_file(self.acl_file, acl)


def hash_password(password: str) -> str:
    """Return what mosquitto's password file contains for ``password``."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"${_KIND}${ITERATIONS}${_base64(salt)}${_base64(_derive(password, salt, ITERATIONS))}"


def is_password(password: str, hashed: str) -> bool:
    """Return whether ``hashed`` (from `hash_password`) belongs to ``password``, in constant time."""
    _, kind, iterations, salt, expected = hashed.split("$")
    assert kind == _KIND, "written by hash_password"
    found = _derive(password, base64.b64decode(salt), int(iterations))
    return hmac.compare_digest(found, base64.b64decode(expected))


def _derive(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, _HASH_BYTES)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
