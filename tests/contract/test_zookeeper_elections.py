"""How `ZooKeeperElections` behaves with a real ZooKeeper only: foreign nodes, frozen servers, lost watches."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import AsyncMock

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs

from bench.harness.tcp_proxy import Proxy
from controller.leadership.election import Connected, ElectionEvent, ForeignNodeFound, LockEvent, Suspended
from controller.leadership.policy.queue_order import read_order
from controller.leadership.policy.transitions import Event
from controller.leadership.zookeeper import elections
from controller.leadership.zookeeper.connection import ZooKeeperConnection
from controller.leadership.zookeeper.elections import ZooKeeperElections
from headgate.errors import ConfigError
from tests.support.waiting import never, until
from tests.support.worlds.election_environments import Candidate, Server, ZooKeeperHarness, joined, listed

pytestmark = pytest.mark.contract


async def test_an_invalid_cluster_config_is_rejected(zookeeper: Server, stack: AsyncExitStack) -> None:
    harness = ZooKeeperHarness(stack, zookeeper)
    await asyncio.to_thread(
        harness.with_zookeeper_client,
        lambda client, root: client.create(f"{root}/config", b"[1]", makepath=True) and None,
    )
    elections = await stack.enter_async_context(await harness.build("a", lambda event: None))

    with pytest.raises(ConfigError, match="not a JSON object"):
        await elections.registry.cluster_config({"shards": 1})


async def test_a_cluster_finds_the_others_with_live_daemons_on_its_ledger(zookeeper: Server, stack: AsyncExitStack):
    harness = ZooKeeperHarness(stack, zookeeper)
    own = (await joined(stack, harness, "a")).elections.registry

    def others(client: Any, root: str) -> None:
        for name, config, daemons in (
            ("x", b'{"ledger_id": "1"}', "/d"),
            ("y", b"{}", "/d"),
            ("z", b"", ""),
            ("w", b'{"ledger_id": "1"}', ""),
        ):
            client.create(f"{root[:-5]}{name}/config", config, makepath=True)
            client.create(f"{root[:-5]}{name}/instances{daemons}", makepath=True)

    await asyncio.to_thread(harness.with_zookeeper_client, others)
    assert [each[-2:] for each in await own.clusters_on("1")] == ["/x"]


async def test_nodes_that_belong_to_no_contender_are_logged_and_ignored(zookeeper: Server, stack: AsyncExitStack):
    """One of them at the front of the queue left the shard without a leader, and every daemon ready."""
    harness = ZooKeeperHarness(stack, zookeeper)

    def plant(client: KazooClient, root: str) -> None:
        for name in ("old-0000000000", "gone-0a1b2c3d-0000000000", "README.txt"):
            client.create(f"{root}/shards/0000/{name}", makepath=True)

    await asyncio.to_thread(harness.with_zookeeper_client, plant)
    with capture_logs() as logs:
        a, b = [await joined(stack, harness, name) for name in "ab"]
        for candidate in (a, b):
            candidate.elections.contend(0)
            await until(lambda candidate=candidate: candidate.holders == {0: "a"})
        a.withdraw(0)
        await until(lambda: b.first == {0} and b.holders == {0: "b"})

    permanent = [entry["node"].rsplit("/", 1)[1] for entry in logs if entry["event"] == "zookeeper.foreign_node"]
    assert permanent == ["gone-0a1b2c3d-0000000000"] * 2, "once per daemon"


async def test_a_foreign_node_with_the_name_of_an_instance_is_reported_and_harms_nothing(zookeeper, stack):
    """Once it is deleted, the instance is listed."""
    harness = ZooKeeperHarness(stack, zookeeper)

    def plant(client: KazooClient, root: str) -> None:
        for name in ("a", "README.txt"):
            client.create(f"{root}/instances/{name}", b"planted", makepath=True)

    await asyncio.to_thread(harness.with_zookeeper_client, plant)
    a = Candidate()
    found: list[ForeignNodeFound] = []

    def on_event(event: ElectionEvent) -> None:
        found.extend([event] if isinstance(event, ForeignNodeFound) else [])
        a.on_event(event)

    with capture_logs() as logs:
        a.elections = await stack.enter_async_context(await harness.build("a", on_event))
        await a.elections.registry.register_instance("a", b"here")
        a.elections.contend(0)
        await until(lambda: a.first == {0} and bool(found))
        for _ in range(2):
            assert await a.elections.registry.instances() == {}

    lines = [entry for entry in logs if entry["event"] == "zookeeper.foreign_node"]
    assert [line["node"] for line in lines] == [each.node for each in found]
    assert sorted(line["node"].rsplit("/", 1)[1] for line in lines) == ["README.txt", "a"], "each once"
    assert all(line["reason"] == "permanent" and "delete it" in line["advice"] for line in lines)

    await asyncio.to_thread(harness.with_zookeeper_client, lambda client, root: client.delete(f"{root}/instances/a"))
    await listed(harness, {"a": b"here", "README.txt": b"planted"})


@pytest.mark.usefixtures("quick_retries")
async def test_a_lock_that_was_passed_on_is_acquired_before_the_queue_is_read(zookeeper, stack, monkeypatch):
    """Each request to ZooKeeper delays the clients of the shard."""
    harness = ZooKeeperHarness(stack, zookeeper)
    a, b = [await joined(stack, harness, name) for name in "ab"]
    for candidate in (a, b):
        candidate.elections.contend(0)
        await until(lambda candidate=candidate: candidate.holders == {0: "a"})
    await until(lambda: a.elections.queue(0).waiting == {"b"})
    a.elections.nominate(0, "b")
    await until(lambda: b.nominated == [0])
    b.elections.confirm(0)
    await until(lambda: a.ready == [0])
    connection = b.elections._connection
    request = connection.call
    passed_on = False
    first: list[bool] = []

    async def call(name: str, *arguments: object, **options: object) -> Any:
        nonlocal passed_on
        if name == "get_children" and passed_on:
            first.append(0 in b.first)
        reply = await request(name, *arguments, **options)
        if name == "get":
            passed_on = read_order(reply[0]).first.startswith("b-")
        return reply

    monkeypatch.setattr(connection, "call", call)
    a.pass_on(0)

    await until(lambda: b.first == {0} and first)
    assert all(first)


async def test_the_client_detects_a_frozen_server_and_recovers_when_it_continues(zookeeper, stack):
    harness = ZooKeeperHarness(stack, zookeeper)
    harness.short_session = "a"
    a = await joined(stack, harness, "a")
    a.elections.contend(0)
    await until(lambda: a.first == {0})

    os.kill(zookeeper.pid, signal.SIGSTOP)
    try:
        await until(lambda: Suspended() in a.events)
    finally:
        os.kill(zookeeper.pid, signal.SIGCONT)

    # The session may or may not have expired.
    await until(lambda: a.events[-1] in {Connected(), LockEvent(0, Event.LOCK_ACQUIRED)} and a.first == {0})


async def test_queue_places_survive_a_restart_of_the_server(zookeeper: Server, stack: AsyncExitStack) -> None:
    harness = ZooKeeperHarness(stack, zookeeper)
    a = await joined(stack, harness, "a")
    a.elections.contend(0)
    await until(lambda: a.first == {0})

    await zookeeper.restart()

    await until(lambda: a.events[-1] in {Connected(), LockEvent(0, Event.LOCK_ACQUIRED)} and Suspended() in a.events)
    await until(lambda: a.first == {0})
    assert await a.elections.registry.cluster_config({"shards": 1}) == {"shards": 1}


async def test_reconciliation_replaces_a_watch_that_never_fires(zookeeper, stack, monkeypatch):
    monkeypatch.setattr(ZooKeeperConnection, "posts", lambda *_: lambda _event: None)
    monkeypatch.setattr(elections, "RECONCILE_INTERVAL_SECONDS", 0.3)
    harness = ZooKeeperHarness(stack, zookeeper)
    a, b = [await joined(stack, harness, name) for name in "ab"]
    for candidate in (a, b):
        await until(lambda candidate=candidate: candidate.connected)
    a.elections.contend(0)
    await until(lambda: a.first == {0})
    b.elections.contend(0)

    a.withdraw(0)

    await until(lambda: b.first == {0})


async def test_what_an_instance_registers_follows_a_write_whose_reply_is_lost(zookeeper, stack, monkeypatch):
    """A daemon that was not ready for a moment seemed to lack something permanently, and got no shard."""
    harness = ZooKeeperHarness(stack, zookeeper)
    a = await joined(stack, harness, "a")
    await a.elections.registry.register_instance("a", b"ready")
    await listed(harness, {"a": b"ready"})
    connection = a.elections._connection
    request = connection.call

    async def call(name: str, *arguments: object, **options: object) -> object:
        reply = await request(name, *arguments, **options)
        return await asyncio.Event().wait() if name == "set" else reply

    with monkeypatch.context() as patched:
        patched.setattr(connection, "call", call)
        await a.elections.registry.register_instance("a", b"not ready")
        await listed(harness, {"a": b"not ready"})
    await a.elections.registry.register_instance("a", b"ready")

    await listed(harness, {"a": b"ready"})


async def test_an_unreachable_service_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "CONNECT_WARNING_SECONDS", 0.2)
    async with Proxy("127.0.0.1", 1) as proxy:
        await proxy.cut()
        with capture_logs() as logs:
            async with ZooKeeperElections(
                proxy.address, root="/x", instance="a", session_timeout_seconds=2, on_event=lambda event: None
            ):
                await until(lambda: logs)
                await never(lambda: len(logs) > 1, 0.5)
                assert logs[0]["event"] == "zookeeper.unreachable"


async def test_a_bug_in_a_contender_is_raised(zookeeper: Server, stack: AsyncExitStack, monkeypatch) -> None:
    """Otherwise the daemon would not contend for that shard any more, and nothing would show it."""
    monkeypatch.setattr(ZooKeeperElections, "_reconcile_queue", AsyncMock(side_effect=ZeroDivisionError("planted")))
    elections = await stack.enter_async_context(await ZooKeeperHarness(stack, zookeeper).build("a", lambda event: None))
    elections.contend(0)

    with pytest.raises(ZeroDivisionError, match="planted"):
        async with asyncio.timeout(60):
            await elections.watch()
