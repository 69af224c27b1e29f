"""Both sides of a connection prove that they know the secret, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from drain.authentication import (
    DIGEST_BYTES,
    MAGIC,
    NONCE_BYTES,
    AuthenticationError,
    admit,
    check_peer,
    prove,
    read_drain_secret,
    trusted_users,
)
from headgate.errors import ConfigError
from tests.support.samples.secret_files import write_secret

SECRET, OTHER = b"s" * 32, b"o" * 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
VERDICT_BYTES = 1 + DIGEST_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The ends of the server and of the client."""
    server, client = socket.socketpair()
    with server, client:
        for each in (server, client):
            each.setblocking(False)
        yield server, client


Pair = tuple[socket.socket, socket.socket]


async def both(pair: Pair, server_secret: bytes, client_secret: bytes) -> list[str]:
    """Return what each side raises, the server first; empty text: nothing."""
    found = await asyncio.gather(admit(pair[0], server_secret), prove(pair[1], client_secret), return_exceptions=True)
    return ["" if each is None else str(each) for each in found]


async def receive(connection: socket.socket, size: int) -> bytes:
    return await asyncio.get_running_loop().sock_recv(connection, size)


async def test_the_same_secret_admits_both(pair: Pair) -> None:
    assert await both(pair, SECRET, SECRET) == ["", ""]


async def test_other_secrets_admit_neither(pair: Pair) -> None:
    assert await both(pair, SECRET, OTHER) == ["it has another secret"] * 2


async def test_the_secret_is_not_sent_and_no_two_connections_are_alike(pair: Pair) -> None:
    sent = []
    loop = asyncio.get_running_loop()
    for _ in range(2):
        serving = asyncio.create_task(admit(pair[0], SECRET))
        greeting = await receive(pair[1], GREETING_BYTES)
        to_client, to_proxy = socket.socketpair()
        with to_client, to_proxy:
            for each in (to_client, to_proxy):
                each.setblocking(False)
            proving = asyncio.create_task(prove(to_client, SECRET))
            await loop.sock_sendall(to_proxy, greeting)
            answer = await receive(to_proxy, NONCE_BYTES + DIGEST_BYTES)
            await loop.sock_sendall(pair[1], answer)
            verdict = await receive(pair[1], VERDICT_BYTES)
            await loop.sock_sendall(to_proxy, verdict)
            await asyncio.gather(serving, proving)
        sent.append((greeting, answer, verdict))

    assert SECRET not in b"".join(b"".join(each) for each in sent)
    assert all(first != second for first, second in zip(*sent, strict=True))


async def test_an_answer_of_an_earlier_connection_is_refused(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    client, recorder = socket.socketpair()
    with client, recorder:
        for each in (client, recorder):
            each.setblocking(False)
        proving = asyncio.create_task(prove(client, SECRET))
        await loop.sock_sendall(recorder, MAGIC + bytes(NONCE_BYTES))
        recorded = await receive(recorder, NONCE_BYTES + DIGEST_BYTES)
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
    admitting = asyncio.create_task(admit(pair[0], SECRET))
    await receive(pair[1], GREETING_BYTES)
    await loop.sock_sendall(pair[1], recorded)
    with pytest.raises(AuthenticationError):
        await admitting
    assert await receive(pair[1], 100) == bytes(VERDICT_BYTES), "nothing that depends on the secret"


@pytest.mark.parametrize("verdict", ["reflected", "zeros"])
async def test_a_server_without_the_secret_is_refused(pair: Pair, verdict: str) -> None:
    """It sends the client's own digest back, or nothing of use."""
    loop = asyncio.get_running_loop()
    proving = asyncio.create_task(prove(pair[1], SECRET))
    await loop.sock_sendall(pair[0], MAGIC + bytes(NONCE_BYTES))
    answer = await receive(pair[0], NONCE_BYTES + DIGEST_BYTES)
    digest = answer[NONCE_BYTES:] if verdict == "reflected" else bytes(DIGEST_BYTES)
    await loop.sock_sendall(pair[0], b"\x01" + digest)
    with pytest.raises(AuthenticationError, match="does not know the secret"):
        await proving


async def test_another_server_is_recognized(pair: Pair) -> None:
    proving = asyncio.create_task(prove(pair[1], SECRET))
    await asyncio.get_running_loop().sock_sendall(pair[0], b"SSH-2.0-OpenSSH_9.2p1 Debian-2 " * 3)
    with pytest.raises(AuthenticationError, match="no Spark process of headgate"):
        await proving


async def test_a_peer_that_goes_away_breaks_the_connection(pair: Pair) -> None:
    admitting = asyncio.create_task(admit(pair[0], SECRET))
    await receive(pair[1], GREETING_BYTES)
    pair[1].close()
    with pytest.raises(ConnectionError):
        await admitting


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells the user of a peer")
def test_only_this_user_and_root_are_trusted_over_a_unix_socket(pair: Pair) -> None:
    assert trusted_users() == {os.geteuid(), 0}
    check_peer(pair[0], trusted_users())
    with pytest.raises(AuthenticationError, match=f"it belongs to user {os.geteuid()}"):
        check_peer(pair[0], {os.geteuid() + 1})


@pytest.mark.parametrize(
    ("contents", "mode", "problem"),
    [
        (b"s" * 32 + b"\n", 0o640, None),
        (b"s" * 31 + b"\n", 0o600, r"less than 32 characters; make one with `openssl rand -hex 32`"),
        (b"s" * 32, 0o604, "every user may access"),
        (b"", 0o600, "is empty"),
    ],
    ids=["valid", "short", "open to all", "empty"],
)
def test_the_file_of_the_secret_is_checked(tmp_path: Path, contents: bytes, mode: int, problem: str | None) -> None:
    path = write_secret(tmp_path / "secret", contents)
    path.chmod(mode)
    if problem is None:
        assert read_drain_secret(path, "x") == b"s" * 32
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        read_drain_secret(path, "$.drain.secret_file")
    assert str(caught.value).startswith("$.drain.secret_file: ")
    assert "sss" not in str(caught.value)
