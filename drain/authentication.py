"""Daemon and Spark process prove to each other who they are, before any request.

Over a Unix socket, the kernel tells the user of the peer: the same user, or root. Other platforms than
Linux do not tell, and the mode of the socket must suffice. Over TCP, both prove that they know a shared
secret, which is never sent:

    server → client   MAGIC, nonce of the server
    client → server   nonce of the client, HMAC("client", both nonces)
    server → client   1, HMAC("server", both nonces); or 0, and the connection ends

The nonces are new for each connection, so that no answer can be used again, and the names of the sides
keep an answer from being sent back to its author (HMAC-SHA256, RFC 2104; the pattern is that of
CPython's multiprocessing.connection). All messages have fixed sizes. What follows on the connection is
neither encrypted nor authenticated, so TCP is for loopback only. Imports no Spark.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, Literal

from headgate.errors import ConfigError, HeadgateError
from headgate.secret_file import read_secret

MAGIC: Final = b"headgate drain 1"
NONCE_BYTES: Final = 32
DIGEST_BYTES: Final = 32
MIN_SECRET_CHARS: Final = 32
"""A shorter secret could be found by trial from one recorded connection."""
_ACCEPTED, _REFUSED = b"\x01", b"\x00"
_CREDENTIALS: Final = struct.Struct("3i")


class AuthenticationError(HeadgateError):
    """The peer is not who it should be."""


def read_drain_secret(path: Path | str, setting: str) -> bytes:
    """Return the secret in ``path``, which ``setting`` names. Raises ConfigError."""
    secret = read_secret(path, setting)
    if len(secret) < MIN_SECRET_CHARS:
        raise ConfigError(
            f"{setting}: the secret in {path} has less than {MIN_SECRET_CHARS} characters; "
            "make one with `openssl rand -hex 32`"
        )
    return secret.encode()


def trusted_users() -> AbstractSet[int]:
    """Return the user ids that a peer on a Unix socket may have: this user, and root."""
    return {os.geteuid(), 0}


def check_peer(connection: socket.socket, users: AbstractSet[int]) -> None:
    """Raise AuthenticationError unless the peer on a Unix socket has one of the ids ``users``."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size),
    )
    if user not in users:
        raise AuthenticationError(f"it belongs to user {user}")


async def admit(connection: socket.socket, secret: bytes) -> None:
    """As the server: prove the secret to the client, after the client has proved it.

    Raises AuthenticationError if the client does not know it, OSError if the connection breaks.
    """
    loop = asyncio.get_running_loop()
    server_nonce = secrets.token_bytes(NONCE_BYTES)
    await loop.sock_sendall(connection, MAGIC + server_nonce)
    answer = await _receive(connection, NONCE_BYTES + DIGEST_BYTES)
    client_nonce, digest = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(digest, _digest(secret, "client", server_nonce, client_nonce)):
        await loop.sock_sendall(connection, _REFUSED + bytes(DIGEST_BYTES))
        raise AuthenticationError("it has another secret")
    await loop.sock_sendall(connection, _ACCEPTED + _digest(secret, "server", server_nonce, client_nonce))


async def prove(connection: socket.socket, secret: bytes) -> None:
    """As the client: prove the secret to the server, and demand the same.

    Raises AuthenticationError if one of the two does not know it, OSError if the connection breaks.
    """
    loop = asyncio.get_running_loop()
    greeting = await _receive(connection, len(MAGIC) + NONCE_BYTES)
    if not greeting.startswith(MAGIC):
        raise AuthenticationError("it is no Spark process of headgate")
    server_nonce, client_nonce = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
    await loop.sock_sendall(connection, client_nonce + _digest(secret, "client", server_nonce, client_nonce))
    verdict = await _receive(connection, 1 + DIGEST_BYTES)
    if verdict[:1] != _ACCEPTED:
        raise AuthenticationError("it has another secret")
    if not hmac.compare_digest(verdict[1:], _digest(secret, "server", server_nonce, client_nonce)):
        raise AuthenticationError("it does not know the secret")


def _digest(secret: bytes, side: Literal["client", "server"], server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.digest(secret, MAGIC + side.encode() + server_nonce + client_nonce, hashlib.sha256)


async def _receive(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < size:
        part = await loop.sock_recv(connection, size - len(received))
        if not part:
            raise ConnectionResetError("the peer closed the connection before it proved the secret")
        received += part
    return received
