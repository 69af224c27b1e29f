"""ZooKeeper's access control lists and TLS, with a real server that requires both: users attack, daemons do not stop."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoChildrenForEphemeralsError, NotEmptyError
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions
from structlog.testing import capture_logs

from controller.leadership.zookeeper.connection import DigestUser, ZooKeeperCredentials
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import client_context
from tests.support.waiting import until
from tests.support.worlds.election_environments import (
    DAEMONS,
    SESSION_SECONDS,
    STRANGER,
    Candidate,
    Server,
    ZooKeeperHarness,
    joined,
    listed,
)

pytestmark = pytest.mark.contract


def tree(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from tree(client, f"{path}/{name}")


def foreign(logs: list[Any]) -> list[Any]:
    return [entry for entry in logs if entry["event"] == "zookeeper.foreign_node"]


async def test_other_users_can_do_nothing_to_any_node(secure_zookeeper: Server, stack: AsyncExitStack) -> None:
    """They see that nodes exist, because ZooKeeper has no right for that."""
    harness = ZooKeeperHarness(stack, secure_zookeeper)
    a = await joined(stack, harness, "a")
    await a.elections.registry.cluster_config({"shards": 1})
    await a.elections.registry.register_instance("a", b"at a")
    a.elections.contend(0)
    await until(lambda: a.first == {0})
    await listed(harness, {"a": b"at a"})
    paths: list[str] = []
    await asyncio.to_thread(harness.with_zookeeper_client, lambda client, root: paths.extend(tree(client, root)))
    assert len(paths) == 7, "root, config, instances, one instance, shards, shard, one place in its queue"

    def attack(client: KazooClient, root: str) -> None:
        parent = root.rpartition("/")[0]
        for path in [parent, *paths]:
            for act in (
                client.get,
                client.get_children,
                client.get_acls,
                lambda path: client.set(path, b"forged"),
                lambda path: client.set_acls(path, OPEN_ACL_UNSAFE),
                lambda path: client.create(f"{path}/forged-0a1b2c3d-0000000000", acl=OPEN_ACL_UNSAFE),
                lambda path: client.create(f"{path}/a-0a1b2c3d-", ephemeral=True, sequence=True),
            ):
                with pytest.raises((NoAuthError, NoChildrenForEphemeralsError)):
                    act(path)
        for path in paths:
            with pytest.raises(NoAuthError):
                client.delete(path)
        with pytest.raises(NotEmptyError):
            client.delete(parent)

    for user in (STRANGER, None):
        await asyncio.to_thread(harness.with_zookeeper_client, attack, user)
    left: list[str] = []
    await asyncio.to_thread(harness.with_zookeeper_client, lambda client, root: left.extend(tree(client, root)))
    assert left == paths
    assert a.first == {0}


async def test_a_place_in_a_queue_that_another_user_took_is_ignored(secure_zookeeper: Server, stack: AsyncExitStack):
    """While the folder was open, a stranger's session could keep the first place permanently."""
    harness = ZooKeeperHarness(stack, secure_zookeeper)
    stranger = secure_zookeeper.client(STRANGER)
    stack.callback(stranger.close)
    stack.callback(stranger.stop)

    def take(client: KazooClient, root: str) -> None:
        client.create(f"{root}/shards/0000", makepath=True)
        stranger.start(60)
        client.create(f"{root}/instances")
        stranger.create(f"{root}/instances/a", ephemeral=True, acl=CREATOR_ALL_ACL)
        for acl in (OPEN_ACL_UNSAFE, CREATOR_ALL_ACL):
            stranger.create(f"{root}/shards/0000/evil-0a1b2c3d-", ephemeral=True, sequence=True, acl=acl)

    await asyncio.to_thread(harness.with_zookeeper_client, take)
    with capture_logs() as logs:
        a = await joined(stack, harness, "a")
        await a.elections.registry.register_instance("a", b"here")
        a.elections.contend(0)
        await until(lambda: a.first == {0} and any("/instances/" in entry["node"] for entry in foreign(logs)))
    assert a.elections.registry.registered.is_set(), "a foreign node stops no daemon"
    assert [entry["reason"] for entry in foreign(logs) if "/shards/" in entry["node"]] == ["of another user"] * 2
    closed = [entry["node"].rpartition("/")[2] for entry in logs if entry["event"] == "zookeeper.node_closed"]
    assert closed[-3:] == ["local", "shards", "0000"]


async def test_daemons_change_their_password_one_after_the_other(secure_zookeeper: Server, stack: AsyncExitStack):
    """Reload all, then restart all: no daemon is refused, and the old password opens nothing afterwards."""
    harness = ZooKeeperHarness(stack, secure_zookeeper)
    changed = DigestUser(DAEMONS.username, "another password")
    security = secure_zookeeper.security
    assert security is not None
    candidates = [Candidate(), Candidate()]
    for name, each in zip("ab", candidates, strict=True):
        each.elections = await stack.enter_async_context(await harness.build(name, each.on_event))
        await each.elections.registry.cluster_config({"shards": 1})
        await each.elections.registry.register_instance(name, b"")
        each.elections.contend(0)
        await until(lambda: candidates[0].first == {0})
    a, b = candidates

    for each in candidates:
        assert isinstance(each.elections, ZooKeeperElections)
        each.elections.use(ZooKeeperCredentials(changed, security.context()))

    def closed_to(users: set[DigestUser]) -> Callable[[Any, str], None]:
        def check(client: KazooClient, root: str) -> None:
            for path in tree(client, root):
                assert {entry.id.id for entry in client.get_acls(path)[0]} == {user.identity for user in users}, path

        return check

    both = closed_to({DAEMONS, changed})
    await eventually(harness, both, changed)
    harness.user = changed
    c = await joined(stack, harness, "c")
    await c.elections.registry.cluster_config({"shards": 1})
    c.elections.contend(0)
    await until(lambda: c.holders == {0: "a"})
    assert c.first == set()

    a.withdraw(0)
    b.withdraw(0)
    await until(lambda: c.first == {0})
    assert (a.problem, b.problem, c.problem) == (None, None, None)


async def test_the_old_password_is_worth_nothing_after_a_restart(secure_zookeeper: Server, stack: AsyncExitStack):
    harness = ZooKeeperHarness(stack, secure_zookeeper)
    changed = DigestUser(DAEMONS.username, "another password")
    harness.user = changed

    def give_to_both(client: KazooClient, root: str) -> None:
        both = [ACL(Permissions.ALL, Id("digest", user.identity)) for user in (DAEMONS, changed)]
        client.create(f"{root}/config", b'{"shards": 1}', makepath=True, acl=both)

    await asyncio.to_thread(harness.with_zookeeper_client, give_to_both)
    a = await joined(stack, harness, "a")
    assert await a.elections.registry.cluster_config({"shards": 8}) == {"shards": 1}

    with pytest.raises(NoAuthError):
        await asyncio.to_thread(harness.with_zookeeper_client, lambda client, root: client.get(f"{root}/config"))


async def eventually(harness: ZooKeeperHarness, check: Callable[[Any, str], None], user: DigestUser) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await asyncio.to_thread(harness.with_zookeeper_client, check, user)
        except (AssertionError, NoAuthError):
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


async def test_a_refusal_names_the_whole_path(secure_zookeeper: Server) -> None:
    """The path in ``hosts`` included. The daemon creates it where it is missing."""
    security = secure_zookeeper.security
    assert security is not None
    problems: list[str | None] = []
    for user in (DAEMONS, STRANGER):
        a = Candidate()
        async with ZooKeeperElections(
            f"127.0.0.1:{secure_zookeeper.port}/prefix",
            root="/headgate/prefixed",
            instance="a",
            session_timeout_seconds=SESSION_SECONDS,
            on_event=a.on_event,
            credentials=ZooKeeperCredentials(user, security.context()),
        ) as elections:
            elections.contend(0)
            await until(lambda a=a: a.first == {0} or a.problem is not None)
            problems.append(a.problem)

    allowed, refused = problems
    assert allowed is None
    assert refused.startswith("ZooKeeper node /prefix/headgate")


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("another authority", "certificate of ZooKeeper server 127.0.0.1:.* is refused .*ca_file"),
        ("another name", "certificate of ZooKeeper server localhost:.* is refused .*[Hh]ostname mismatch"),
        ("no certificate", "no TLS connection to ZooKeeper server .*certificate_file"),
        ("no TLS at the server", "no TLS connection to ZooKeeper server .*requires TLS"),
    ],
)
async def test_a_failed_handshake_is_named_and_no_session_begins(request, secure_zookeeper, tmp_path, fault, problem):
    security = secure_zookeeper.security
    assert security is not None
    port, host = secure_zookeeper.port, "127.0.0.1"
    ca_file: Path = security.authority.ca_file
    files = {"certificate_file": security.client.certificate_file, "key_file": security.client.key_file}
    match fault:
        case "another authority":
            ca_file = LocalCertificateAuthority(tmp_path / "ca").ca_file
        case "another name":
            host = "localhost"
        case "no certificate":
            files = {}
        case "no TLS at the server":
            port = request.getfixturevalue("zookeeper").port
    a = Candidate()
    async with ZooKeeperElections(
        f"{host}:{port}",
        root="/headgate/handshake",
        instance="a",
        session_timeout_seconds=SESSION_SECONDS,
        on_event=a.on_event,
        credentials=ZooKeeperCredentials(DAEMONS, client_context(ca_file=ca_file, **files)),
    ) as elections:
        await until(lambda: re.search(problem, a.problem or ""))
        assert not a.connected
        # A reload with correct files is enough.
        if fault in {"another authority", "no certificate"}:
            elections.use(ZooKeeperCredentials(DAEMONS, security.context()))
            await until(lambda: a.connected and a.problem is None)
