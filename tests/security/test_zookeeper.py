"""Programs that reach ZooKeeper without the daemons' certificate, or with it and as another user.

ZooKeeper answers that a right is missing, and counts nothing. Its audit log, which is off by default, would show it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR
from tests.support.servers.tls_handshakes import SERVER_REFUSES, handshake
from tests.support.worlds.security_scene import Attack, Scene, Unseen, ZooKeeperLog

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

ROOT = "/headgate/test"
QUEUE = f"{ROOT}/shards/0000"
NOT_COUNTED = Unseen("ZooKeeper only answers that the right is missing")
Attempt = Callable[[Scene, str], Awaitable[str]]


def does(operation: str, *arguments: Any, user: str | None, **options: Any) -> Attempt:
    """Do something as ``user`` (None: no user), over TLS with the daemons' certificate; return how it ends."""

    async def attempt(scene: Scene, _: str) -> str:
        return await asyncio.to_thread(_do, scene, operation, arguments, options, user)

    return attempt


def _do(scene: Scene, operation: str, arguments: tuple[Any, ...], options: dict[str, Any], user: str | None) -> str:
    files = scene.daemon.settings.zookeeper
    client = KazooClient(
        scene.cluster.zookeeper.address,
        timeout=10,
        use_ssl=True,
        ca=files.ca_file,
        certfile=files.certificate_file,
        keyfile=files.key_file,
        auth_data=[("digest", f"{user}:guess")] if user else [],
    )
    client.start(timeout=10 * TIMEOUT_FACTOR)
    try:
        getattr(client, operation)(*arguments, **options)
    except NoAuthError:
        return "no right"
    finally:
        client.stop()
        client.close()
    return "done"


async def connects_without_certificate(scene: Scene, _: str) -> str:
    return await asyncio.to_thread(handshake, scene.cluster.zookeeper.port, scene.context())


def refused(act: str, operation: str, *arguments: Any, user: str | None = None, **options: Any) -> Attack:
    return Attack("rival", act, does(operation, *arguments, user=user, **options), "no right", NOT_COUNTED)


ATTACKS = [
    Attack(
        "rival",
        "connects to ZooKeeper without a certificate",
        connects_without_certificate,
        SERVER_REFUSES,
        ZooKeeperLog("(?i)handshake"),
    ),
    refused("reads the configuration of the cluster", "get", f"{ROOT}/config"),
    refused("lists the contenders of a shard", "get_children", QUEUE),
    refused("changes the configuration of the cluster", "set", f"{ROOT}/config", b"{}"),
    refused("deletes the configuration of the cluster", "delete", f"{ROOT}/config"),
    refused("opens a node to all", "set_acls", f"{ROOT}/config", OPEN_ACL_UNSAFE),
    *(
        refused(
            f"contends for a shard as {user or 'no user'}",
            "create",
            f"{QUEUE}/rival-0000000-",
            user=user,
            ephemeral=True,
            sequence=True,
        )
        for user in (None, "rival", "headgate")
    ),
    refused("registers a daemon", "create", f"{ROOT}/instances/rival", b"", user="rival", ephemeral=True),
    refused("adds a node to the cluster", "create", f"{ROOT}/mine", b"", user="rival"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_zookeeper_is_closed_to_other_users(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)
