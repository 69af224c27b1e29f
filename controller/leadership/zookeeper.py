"""`Elections` over ZooKeeper, with kazoo.

Nodes, below the root node of the cluster:

``config``                    the cluster config, written once
``instances/<name>``          ephemeral, one for each live instance
``shards/0003/<instance>-<random>-0000000007``  ephemeral and numbered: the queue for a shard, lowest number first

Other nodes in a queue, permanent ones, and those of other users belong to no contender. They are logged, counted and
ignored. One with the name of an instance keeps it out of the list of instances, and from nothing else.

A task per contended shard reconciles the queue with the wanted state, after each watch and every
few seconds, which bounds the cost of a lost watch.

kazoo's recipes are not used: `Election` does not interrupt a leader whose node is gone;
`Lock.release` and `Lock.cancel` block during a partition; a `Lock` with an expired session is never
acquired again.

kazoo reports SUSPENDED to a partitioned client, never LOST: only the server can report an expired
session.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NoReturn, Self

import structlog
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from controller.leadership.election import (
    Acquired,
    Connected,
    ElectionClientError,
    EventHandler,
    ForeignNodeFound,
    HolderChanged,
    Lost,
    Refused,
    Released,
    Suspended,
)
from controller.leadership.zookeeper_connection import RefusedError, ZooKeeperConnection, ZooKeeperCredentials
from controller.leadership.zookeeper_nodes import ZooKeeperNodes
from controller.leadership.zookeeper_refusals import ZooKeeperRefusals
from headgate.errors import ConfigError

RECONCILE_INTERVAL_SECONDS: Final = 5.0
"""Longest time between two reconciliations."""
REGISTRATION_CHECK_INTERVAL_SECONDS: Final = 1.0
CLOSE_TIMEOUT_SECONDS: Final = 3.0
CONNECT_WARNING_SECONDS: Final = 3.0
"""How long the first connection may take before a warning is logged."""

_CONNECTING: Final = "connect"
_CONTENDER: Final = re.compile(r"-[0-9a-f]{8}-\d{10}$")
"""The end of a queue node's name, behind the instance."""
_FAILURES: Final = (KazooException, KazooTimeoutError, TimeoutError, RefusedError)
"""The exceptions of a failed call."""
_OUT_OF_CONTACT: Final = (
    ConnectionLoss,
    SessionExpiredError,  # the base class of "connection closed"
    SessionMovedError,
    OperationTimeoutError,
    KazooTimeoutError,
    TimeoutError,
)
"""The failures that a connection event reports as well."""

_Task = asyncio.Task[None]

log = structlog.get_logger(__name__)


class ZooKeeperElections:
    """One ZooKeeper session; see `controller.leadership.election.Elections`."""

    def __init__(
        self,
        hosts: str,
        *,
        root: str,
        instance: str,
        session_timeout_seconds: float,
        on_event: EventHandler,
        credentials: ZooKeeperCredentials | None = None,
        reconcile_interval_seconds: float = RECONCILE_INTERVAL_SECONDS,
        connect_warning_seconds: float = CONNECT_WARNING_SECONDS,
    ) -> None:
        """``hosts``: ``host:port,host:port``. ``root``: absolute node path. ``instance``: prefix of queue nodes."""
        self._reconcile_interval_seconds = reconcile_interval_seconds
        self._connect_warning_seconds = connect_warning_seconds
        self._hosts = hosts
        self._root = root.rstrip("/")
        self._instance = instance
        self._session_timeout_seconds = session_timeout_seconds
        self._on_event = on_event
        self._loop: asyncio.AbstractEventLoop
        self._failure: asyncio.Future[ElectionClientError]
        self._closing = False
        self._credentials = credentials or ZooKeeperCredentials()
        self._connection: ZooKeeperConnection
        self._nodes: ZooKeeperNodes
        self._session = 0
        """Number of the session. A queue node belongs to one session."""
        self._in_contact = asyncio.Event()
        self._acquired: set[int] = set()
        self._holders: dict[int, str] = {}
        self._owned: dict[int, dict[str, bool]] = {}
        """Shard → node in its queue → whether a session owns it. Asked once: names are not used again."""
        self._contenders: dict[int, _Task] = {}
        self._wakeups: dict[int, asyncio.Event] = {}
        """Shard → event that triggers a reconciliation."""
        self._leaving: set[tuple[str, str]] = set()
        """(folder, prefix) of the queue nodes to delete."""
        self._leave_requested = asyncio.Event()
        self._tasks: set[_Task] = set()
        """The running tasks. A task is removed when it ends."""
        self._registering: _Task | None = None
        self._log = log.bind(zookeeper=hosts)
        self._problems = ZooKeeperRefusals(hosts)

    # Elections

    def contend(self, shard: int) -> None:
        if shard not in self._contenders:
            self._wakeups[shard] = asyncio.Event()
            self._contenders[shard] = self._start(self._contend(shard), f"contender-{shard}")

    def withdraw(self, shard: int) -> None:
        task = self._contenders.pop(shard, None)
        if task is None:
            return
        task.cancel()
        self._wakeups.pop(shard)
        self._acquired.discard(shard)
        self._holders.pop(shard, None)

    async def register_instance(self, name: str, data: bytes) -> None:
        if self._registering is not None:
            self._registering.cancel()
        self._registering = self._start(self._keep_registered(name, data), "zookeeper-registration")

    async def instances(self) -> dict[str, bytes] | None:
        folder = f"{self._root}/instances"
        if not self._in_contact.is_set():
            return None
        found: dict[str, bytes] = {}
        try:
            for name in await self._connection.call("get_children", folder):
                with suppress(NoNodeError):
                    found[name] = (await self._connection.call("get", f"{folder}/{name}"))[0]
        except _FAILURES:
            return None
        return found

    async def watch(self) -> NoReturn:
        raise await self._failure

    def use(self, credentials: ZooKeeperCredentials) -> None:
        """Use other certificates for the next connection, and another password at once.

        The nodes are given to both passwords, so that daemons can change theirs one after the other.
        """
        if self._connection.use(credentials):
            self._log.info("zookeeper.password_changed")
            self._nodes.forget()
            self._start(self._close_nodes(), "zookeeper-close-nodes")
            for wakeup in self._wakeups.values():
                wakeup.set()

    async def cluster_config(self, default: dict[str, Any]) -> dict[str, Any]:
        while True:
            await self._in_contact.wait()
            path = f"{self._root}/config"
            try:
                data = await self._read_or_create(path, json.dumps(default, sort_keys=True).encode())
            except _FAILURES as error:
                await self._pause_after(path, error)
                continue
            self._set_problem(path, None)
            try:
                config = json.loads(data)
            except ValueError as error:
                raise ConfigError(f"ZooKeeper node {path} is not JSON: {error}") from error
            if not isinstance(config, dict):
                raise ConfigError(f"ZooKeeper node {path} is not a JSON object")
            return config

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        self._connection = ZooKeeperConnection(
            self._hosts,
            session_timeout_seconds=self._session_timeout_seconds,
            credentials=self._credentials,
            on_state=self._on_state,
            on_tls_problem=lambda problem: self._set_problem(_CONNECTING, problem),
            on_end=self._fail,
        )
        self._nodes = ZooKeeperNodes(self._connection)
        self._connection.start()
        self._start(self._delete_queue_nodes(), "zookeeper-leave")
        self._start(self._warn_if_slow(), "zookeeper-connect-warning")
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `Elections.__aexit__`. Ending the session deletes all nodes of this daemon."""
        self._closing = True
        for shard in list(self._contenders):
            self.withdraw(shard)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not await self._connection.close(CLOSE_TIMEOUT_SECONDS):
            self._log.warning("zookeeper.close_timed_out", seconds=CLOSE_TIMEOUT_SECONDS)
        await asyncio.gather(*tasks, return_exceptions=True)

    # Connection

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._in_contact.set()
            self._log.info("zookeeper.connected")
            self._set_problem(_CONNECTING, None)
            self._on_event(Connected())
        elif state == KazooState.SUSPENDED:
            self._in_contact.clear()
            self._log.warning("zookeeper.suspended")
            self._on_event(Suspended())
        else:
            self._in_contact.clear()
            self._session += 1
            self._nodes.forget()
            self._log.warning("zookeeper.session_expired")
            for shard in sorted(self._acquired):
                self._on_event(Released(shard))
            self._acquired.clear()
            self._on_event(Lost())

    def _fail(self, reason: str, error: BaseException | None) -> None:
        if self._closing or self._failure.done():
            return
        self._log.error("zookeeper.client_ended", exc_info=error)
        self._failure.set_result(
            ElectionClientError(f"the ZooKeeper client has ended and must be restarted with this process: {reason}")
        )

    def _set_problem(self, activity: str, problem: str | None) -> None:
        if not self._closing and self._problems.change(activity, problem):
            self._on_event(Refused(self._problems.first))

    async def _warn_if_slow(self) -> None:
        try:
            async with asyncio.timeout(self._connect_warning_seconds):
                await self._in_contact.wait()
        except TimeoutError:
            self._log.warning("zookeeper.unreachable", advice="check [zookeeper] hosts and tls; headgate keeps trying")

    async def _pause_after(self, activity: str, error: BaseException) -> None:
        """Wait before a retry. The event of a lost connection may arrive after the failure it caused."""
        if isinstance(error, _OUT_OF_CONTACT):
            await asyncio.sleep(0.1)
            return
        self._nodes.forget()
        if isinstance(error, RefusedError):
            self._set_problem(activity, str(error))
        else:
            self._log.warning("zookeeper.request_failed", error=repr(error))
        await asyncio.sleep(self._reconcile_interval_seconds)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> _Task:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: _Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    # Queues

    async def _contend(self, shard: int) -> None:
        folder = f"{self._root}/shards/{shard:04d}"
        prefix = f"{self._instance}-{secrets.token_hex(4)}-"
        session = -1
        joined = False
        wakeup = self._wakeups[shard]
        try:
            while True:
                await self._in_contact.wait()
                wakeup.clear()
                joined = joined and session == self._session
                session = self._session
                try:
                    await self._reconcile_queue(shard, folder, prefix, joined)
                except _FAILURES as error:
                    await self._pause_after(folder, error)
                    continue
                self._set_problem(folder, None)
                joined = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._reconcile_interval_seconds):
                        await wakeup.wait()
        finally:
            # A create without a response may have left a node: delete all nodes with this prefix.
            self._set_problem(folder, None)
            self._leaving.add((folder, prefix))
            self._leave_requested.set()

    async def _reconcile_queue(self, shard: int, folder: str, prefix: str, joined: bool) -> None:
        """Join the queue if necessary, watch the deciding node, and report whether this daemon is first."""
        session = self._session
        await self._nodes.ensure(folder)
        queue = await self._contenders_in(shard, folder)
        mine = next((name for name in queue if name.startswith(prefix)), None)
        if mine is None:
            if joined:
                self._log.warning("contender.queue_node_lost", shard=shard)
            self._set_acquired(shard, first=False)
            await self._connection.call("create", f"{folder}/{prefix}", b"", ephemeral=True, sequence=True)
            queue = await self._contenders_in(shard, folder)
            mine = next((name for name in queue if name.startswith(prefix)), None)
        if mine is None:
            raise ConnectionLoss("the queue node that was just created is missing")
        await self._nodes.close(f"{folder}/{mine}")
        rank = queue.index(mine)
        # If first, only the own node matters. Otherwise the one before it.
        watched = mine if rank == 0 else queue[rank - 1]
        watched_stat = await self._connection.call(
            "exists", f"{folder}/{watched}", watch=self._watcher(self._wakeups[shard])
        )
        if session != self._session or not self._in_contact.is_set():
            # kazoo's threads may deliver the response after a later loss.
            raise ConnectionLoss("out of contact")
        if watched_stat is None:
            self._wakeups[shard].set()
        else:
            self._set_holder(shard, _CONTENDER.sub("", queue[0]))
            self._set_acquired(shard, first=rank == 0)

    def _set_acquired(self, shard: int, *, first: bool) -> None:
        if first and shard not in self._acquired:
            self._acquired.add(shard)
            self._on_event(Acquired(shard))
        elif not first and shard in self._acquired:
            self._acquired.discard(shard)
            self._on_event(Released(shard))

    def _set_holder(self, shard: int, instance: str) -> None:
        if self._holders.get(shard) != instance:
            self._holders[shard] = instance
            self._on_event(HolderChanged(shard, instance))

    async def _contenders_in(self, shard: int, folder: str) -> list[str]:
        """Return the queue nodes of daemons. Another one at the front would leave the shard without a leader."""
        queue = await self._queue(folder)
        known = self._owned.get(shard, {})
        owned = self._owned[shard] = {name: known[name] for name in queue if name in known}
        for name in queue:
            path = f"{folder}/{name}"
            if name in owned or (stat := await self._connection.call("exists", path)) is None:
                continue
            with suppress(NoNodeError):
                strangeness = await self._nodes.strangeness(path, stat)
                owned[name] = strangeness is None
                if strangeness is not None:
                    self._report_foreign("queue.foreign_node", path, strangeness)
        return [name for name in queue if owned.get(name, True)]

    def _report_foreign(self, event: str, path: str, strangeness: str) -> None:
        self._log.warning(
            event,
            node=path,
            reason=strangeness,
            advice="no daemon of this cluster created it, and it is ignored; delete it",
        )
        self._on_event(ForeignNodeFound(path))

    def _watcher(self, wakeup: asyncio.Event) -> Callable[[object], None]:
        def fired(_event: object) -> None:
            # Runs on a kazoo thread.
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(wakeup.set)

        return fired

    async def _queue(self, folder: str) -> list[str]:
        try:
            names: list[str] = await self._connection.call("get_children", folder)
        except NoNodeError:
            return []
        return sorted((name for name in names if _CONTENDER.search(name)), key=lambda name: int(name[-10:]))

    # Leaving queues

    async def _delete_queue_nodes(self) -> None:
        while True:
            await self._leave_requested.wait()
            await self._in_contact.wait()
            self._leave_requested.clear()
            for folder, prefix in list(self._leaving):
                try:
                    for name in await self._queue(folder):
                        if name.startswith(prefix):
                            with suppress(NoNodeError):
                                await self._connection.call("delete", f"{folder}/{name}")
                except _FAILURES as error:
                    self._leave_requested.set()
                    await self._pause_after("leave", error)
                    break
                self._set_problem("leave", None)
                self._leaving.discard((folder, prefix))

    # Instances and config

    async def _keep_registered(self, name: str, data: bytes) -> None:
        path = f"{self._root}/instances/{name}"
        warned = False
        while True:
            await self._in_contact.wait()
            try:
                registered = await self._register(path, data)
                if not registered and not warned:
                    warned = await self._report_occupied(name, path)
            except _FAILURES as error:
                await self._pause_after(path, error)
                continue
            self._set_problem(path, None)
            await asyncio.sleep(REGISTRATION_CHECK_INTERVAL_SECONDS)

    async def _report_occupied(self, name: str, path: str) -> bool:
        """Report who has the node of this instance; return whether anything still has it."""
        if (stat := await self._connection.call("exists", path)) is None:
            return False
        try:
            strangeness = await self._nodes.strangeness(path, stat)
        except NoNodeError:
            return False
        if strangeness is None:
            self._log.warning("instance.name_in_use", instance=name, advice="an older session has yet to expire")
        else:
            self._report_foreign("instance.foreign_node", path, strangeness)
        return True

    async def _register(self, path: str, data: bytes) -> bool:
        """Return whether the instance is registered under this session."""
        stat = await self._connection.call("exists", path)
        if stat is not None:
            registered = bool(stat.ephemeralOwner == self._connection.session_id)
            if registered:
                await self._nodes.close(path)
            return registered
        await self._nodes.ensure(f"{self._root}/instances")
        with suppress(NodeExistsError):
            await self._connection.call("create", path, data, ephemeral=True)
            return True
        return False

    async def _close_nodes(self) -> None:
        """Give the nodes that no other activity looks at again to the present user."""
        activity = "close nodes"
        while True:
            await self._in_contact.wait()
            try:
                await self._nodes.ensure(f"{self._root}/instances")
                await self._nodes.close(f"{self._root}/config")
            except _FAILURES as error:
                await self._pause_after(activity, error)
                continue
            self._set_problem(activity, None)
            return

    async def _read_or_create(self, path: str, data: bytes) -> bytes:
        await self._nodes.ensure(self._root)
        with suppress(NodeExistsError):
            await self._connection.call("create", path, data)
        await self._nodes.close(path)
        stored: bytes = (await self._connection.call("get", path))[0]
        return stored
