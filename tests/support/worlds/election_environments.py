"""The election services of the contract suite: the fake, and a real ZooKeeper behind proxies; and a candidate."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import ACL, Id, Permissions

from bench.harness.tcp_proxy import Proxy
from controller.leadership.election import Connected, ElectionEvent, Elections, HolderChanged, LockEvent, Refused
from controller.leadership.policy.transitions import Event
from controller.leadership.zookeeper.connection import DigestUser, ZooKeeperCredentials
from controller.leadership.zookeeper.elections import ZooKeeperElections
from controller.local.certificates import LocalCertificateAuthority, ServerTls
from controller.local.embedded import EmbeddedZooKeeper
from tests.support.fakes.zookeeper import FakeZooKeeper
from tests.support.waiting import until

SESSION_SECONDS = 20.0
"""Longer than a busy machine pauses: no session ends unless a test ends it."""
SHORT_SESSION_SECONDS = 4.0
"""For tests that wait for the end of a session. kazoo's pauses within it are two thirds at most."""
DAEMONS = DigestUser("headgate", "correct horse")
STRANGER = DigestUser("headgate", "wrong password")
"""To ZooKeeper, another password is another user."""


class FakeElectionHarness:
    def __init__(self, user: DigestUser | None = None) -> None:
        self._service = FakeZooKeeper(session_timeout_seconds=SESSION_SECONDS)
        self.user = user
        """The user of clients that are built from now on; None: their nodes are open."""
        self.short_session = ""
        """The client whose session a test has expire. Those of the others outlast the pauses of a busy machine."""

    async def build(self, name: str, on_event: Callable[[ElectionEvent], None]) -> Elections:
        return self._service.elections(name, on_event, None if self.user is None else self.user.identity)

    async def partition(self, name: str) -> None:
        self._service.partition(name)

    async def heal(self, name: str) -> None:
        self._service.heal(name)

    async def stop(self) -> None:
        self._service.stop()

    async def start(self) -> None:
        self._service.start()

    async def break_client(self, name: str) -> None:
        self._service.break_client(name)

    async def create_foreign_root(self) -> None:
        self._service.service_state.owner = STRANGER.identity

    async def remove_foreign_root(self) -> None:
        self._service.service_state.owner = None
        self._service.changed()

    async def delete_queue_node(self, name: str, shard: int) -> None:
        self._service.delete_queue_node(name, shard)

    async def instances(self) -> dict[str, bytes]:
        return {name: data for name, (_, data) in self._service.service_state.instances.items()}


class SecureZooKeeper(EmbeddedZooKeeper):
    """A ZooKeeper that speaks TLS only, and requires a certificate of each client."""

    def __init__(self, folder: Path) -> None:
        self.authority = LocalCertificateAuthority(folder / "ca")
        self.client = self.authority.issue("daemon", client=True)
        server = self.authority.issue("zookeeper", hosts=["127.0.0.1"])
        self._files = ServerTls(server, self.authority.ca_file, self.client)
        super().__init__(folder, tls=self._files)

    def context(self) -> ssl.SSLContext:
        """Return the context of a client that the server trusts."""
        return self._files.client_context()


class Server:
    """A ZooKeeper for all tests of a file, on its own loop and thread.

    The thread must outlive the server: the kernel ends a child process with the thread that started it.
    """

    def __init__(self, zookeeper: EmbeddedZooKeeper | SecureZooKeeper) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zookeeper")
        self._zookeeper = zookeeper

    @property
    def security(self) -> SecureZooKeeper | None:
        """The server if it speaks TLS."""
        return self._zookeeper if isinstance(self._zookeeper, SecureZooKeeper) else None

    def client(self, user: DigestUser | None) -> KazooClient:
        """Return a client of kazoo's own, with the rights of ``user``; it creates open nodes."""
        tls: dict[str, Any] = {}
        if self.security is not None:
            files = self.security.client
            tls = {
                "use_ssl": True,
                "ca": str(self.security.authority.ca_file),
                "certfile": str(files.certificate_file),
                "keyfile": str(files.key_file),
            }
        rights = [] if user is None else [("digest", f"{user.username}:{user.password}")]
        return KazooClient(f"127.0.0.1:{self.port}", timeout=60, auth_data=rights, **tls)

    @property
    def port(self) -> int:
        return self._zookeeper.port

    @property
    def pid(self) -> int:
        pid = self._zookeeper.pid
        assert pid is not None
        return pid

    async def restart(self) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._zookeeper.restart(), self._loop))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._zookeeper.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._zookeeper.__aexit__())
        finally:
            self._end()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def _end(self) -> None:
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ZooKeeperHarness:
    """Each client connects through its own proxy, and each test has its own root."""

    roots = 0

    def __init__(self, stack: AsyncExitStack, server: Server) -> None:
        ZooKeeperHarness.roots += 1
        self._root = f"/headgate-{ZooKeeperHarness.roots}/local"
        self._stack = stack
        self._proxies: dict[str, Proxy] = {}
        self._built: dict[str, ZooKeeperElections] = {}
        self.server = server
        self.user = None if server.security is None else DAEMONS
        self.short_session = ""

    async def build(self, name: str, on_event: Callable[[ElectionEvent], None]) -> Elections:
        proxy = await self._stack.enter_async_context(Proxy("127.0.0.1", self.server.port))
        self._proxies[name] = proxy
        self._built[name] = ZooKeeperElections(
            proxy.address,
            root=self._root,
            instance=name,
            session_timeout_seconds=SHORT_SESSION_SECONDS if name == self.short_session else SESSION_SECONDS,
            on_event=on_event,
            credentials=ZooKeeperCredentials(
                self.user, None if self.server.security is None else self.server.security.context()
            ),
        )
        return self._built[name]

    async def break_client(self, name: str) -> None:
        connection = self._built[name]._connection._client._connection
        connection._submit = Mock(side_effect=RuntimeError("xids do not match"))
        connection.client.sync_async("/")

    async def partition(self, name: str) -> None:
        await self._proxies[name].blackhole()

    async def heal(self, name: str) -> None:
        await self._proxies[name].heal()

    async def stop(self) -> None:
        for proxy in self._proxies.values():
            await proxy.cut()

    async def start(self) -> None:
        for proxy in self._proxies.values():
            await proxy.heal()

    async def delete_queue_node(self, name: str, shard: int) -> None:
        await asyncio.to_thread(self._delete_queue_node, name, f"{self._root}/shards/{shard:04d}")

    async def instances(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def read(client: Any, root: str) -> None:
            folder = f"{root}/instances"
            for name in client.get_children(folder) if client.exists(folder) else ():
                with suppress(NoNodeError):
                    found[name] = client.get(f"{folder}/{name}")[0]

        await asyncio.to_thread(self.with_zookeeper_client, read)
        return found

    async def create_foreign_root(self) -> None:
        def create(client: Any, root: str) -> None:
            client.create(root, makepath=True, acl=[ACL(Permissions.ALL, Id("digest", STRANGER.identity))])

        await asyncio.to_thread(self.with_zookeeper_client, create, STRANGER)

    async def remove_foreign_root(self) -> None:
        def remove(client: Any, root: str) -> None:
            client.delete(root)
            client.delete(root.rpartition("/")[0])

        await asyncio.to_thread(self.with_zookeeper_client, remove, STRANGER)

    def with_zookeeper_client(self, act: Callable[[Any, str], None], user: DigestUser | None = DAEMONS) -> None:
        client = self.server.client(user)
        client.start(timeout=60)
        try:
            act(client, self._root)
        finally:
            client.stop()
            client.close()

    def _delete_queue_node(self, name: str, folder: str) -> None:
        def act(client: Any, _root: str) -> None:
            for node in client.get_children(folder):
                if node.startswith(f"{name}-"):
                    client.delete(f"{folder}/{node}")

        self.with_zookeeper_client(act)


ElectionHarness = FakeElectionHarness | ZooKeeperHarness
"""An election service whose clients and server can fail."""


class Candidate:
    """The client of one daemon, and the events it received."""

    def __init__(self) -> None:
        self.elections: Elections
        self.events: list[ElectionEvent] = []
        self.first: set[int] = set()
        self.holders: dict[int, str] = {}
        self.problem: str | None = None
        """What the service refuses."""
        self.nominated: list[int] = []
        self.ready: list[int] = []
        """Shards whose successor is prepared."""

    def on_event(self, event: ElectionEvent) -> None:
        if isinstance(event, HolderChanged):
            assert self.holders.get(event.shard) != event.instance, "reported twice"
            self.holders[event.shard] = event.instance
            return
        if isinstance(event, LockEvent) and event.event in {Event.NOMINATED, Event.SUCCESSOR_READY}:
            (self.nominated if event.event is Event.NOMINATED else self.ready).append(event.shard)
            return
        if isinstance(event, Refused):
            assert self.problem != event.problem, "reported twice"
            self.problem = event.problem
            return
        self.events.append(event)
        match event:
            case LockEvent(shard, Event.LOCK_ACQUIRED):
                assert shard not in self.first, "acquired twice"
                self.first.add(shard)
            case LockEvent(shard, Event.LOCK_LOST):
                assert shard in self.first, "released without an acquisition"
                self.first.discard(shard)
            case _:
                pass

    def withdraw(self, shard: int) -> None:
        self.first.discard(shard)
        self.holders.pop(shard, None)
        self.elections.withdraw(shard)

    def pass_on(self, shard: int, *, fixed: bool = False) -> None:
        self.first.discard(shard)
        self.holders.pop(shard, None)
        self.elections.pass_on(shard, fixed=fixed)

    @property
    def connected(self) -> bool:
        return Connected() in self.events


async def listed(harness: ElectionHarness, expected: dict[str, bytes]) -> None:
    deadline = asyncio.get_running_loop().time() + 300
    while (found := await harness.instances()) != expected:
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.02)


Join = Callable[[str], Awaitable[Candidate]]
"""Connects a candidate with this name."""


async def joined(stack: AsyncExitStack, harness: ElectionHarness, name: str) -> Candidate:
    candidate = Candidate()
    candidate.elections = await stack.enter_async_context(await harness.build(name, candidate.on_event))
    return candidate


async def leader_and_contender(join: Join) -> tuple[Candidate, Candidate]:
    a, b = await join("a"), await join("b")
    a.elections.contend(0)
    await until(lambda: a.first == {0})
    b.elections.contend(0)
    # Otherwise a third one could overtake it.
    await until(lambda: (queue := b.elections.queue(0)) is not None and queue.holder == "a")
    assert b.first == set()
    return a, b
