"""`Elections` over ZooKeeper, with kazoo.

Nodes, below the root node of the cluster:

``config``                    the cluster config, written once
``instances/<name>``          ephemeral, one for each live instance
``maintenance/<name>``        whether the instance is in maintenance, and the last commands about it
``shards/0003/<instance>-<random>-0000000007``  ephemeral and numbered: the queue for a shard, lowest number first
``shards/0003``               its data is a `QueueOrder`: which node is first instead, and which one is nominated
                              (`controller.leadership.zookeeper.succession`)

Other nodes in a queue, permanent ones, and those of other users belong to no contender. They are logged, counted and
ignored. One with the name of an instance keeps it out of the list of instances, and from nothing else.

A task per contended shard reconciles the queue with the wanted state, after each watch and every
few seconds, which bounds the cost of a lost watch.

kazoo's recipes are not used: `Election` does not interrupt a leader whose node is gone; `Lock.release` and
`Lock.cancel` block during a partition; a `Lock` with an expired session is never acquired again.

kazoo reports SUSPENDED to a partitioned client, never LOST: only the server can report an expired session.
"""

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Self

import msgspec
import structlog
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.states import KazooState

from controller.leadership import election
from controller.leadership.policy import queue_order
from controller.leadership.policy.transitions import Event
from controller.leadership.zookeeper.connection import FAILURES, ZooKeeperConnection, ZooKeeperCredentials
from controller.leadership.zookeeper.contact import ZooKeeperContact, ZooKeeperNodes
from controller.leadership.zookeeper.registry import ZooKeeperRegistry
from controller.leadership.zookeeper.succession import Contender, Grant, Successor, Wishes, ZooKeeperSuccession

RECONCILE_INTERVAL_SECONDS: Final = 5.0
"""Longest time between two reconciliations."""
CLOSE_TIMEOUT_SECONDS: Final = 3.0
GRANT_TIMEOUT_SECONDS: Final = 1.0
"""Longest wait at the end until ZooKeeper has stored to whom locks were passed on, and who was passed over."""
CONNECT_WARNING_SECONDS: Final = 3.0
"""How long the first connection may take before a warning is logged."""

_CONNECTING: Final = "connect"
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
        on_event: election.EventHandler,
        credentials: ZooKeeperCredentials | None = None,
    ) -> None:
        """``hosts``: ``host:port,host:port``. ``root``: absolute node path. ``instance``: prefix of queue nodes."""
        self._root = root.rstrip("/")
        self._instance = instance
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[election.ElectionClientError] = self._loop.create_future()
        self._connection = ZooKeeperConnection(
            hosts,
            session_timeout_seconds=session_timeout_seconds,
            credentials=credentials or ZooKeeperCredentials(),
            on_state=self._on_state,
            on_tls_problem=lambda problem: self._contact.set_problem(_CONNECTING, problem),
            on_end=self._fail,
        )
        self._nodes = ZooKeeperNodes(self._connection)
        self._contact = ZooKeeperContact(hosts, on_event, self._nodes, RECONCILE_INTERVAL_SECONDS)
        self.registry = ZooKeeperRegistry(self._connection, self._nodes, self._root, self._contact, self._start)
        self._succession = ZooKeeperSuccession(self._connection, on_event)
        self._contenders: dict[int, Contender] = {}
        self._tasks: set[_Task] = set()
        """The running tasks. A task is removed when it ends."""
        self._passing: set[_Task] = set()
        """Those that pass a lock on, or over."""
        self._log = log.bind(zookeeper=hosts)

    # Elections

    def contend(self, shard: int) -> None:
        if shard not in self._contenders:
            wakeup = asyncio.Event()
            prefix = f"{self._instance}-{secrets.token_hex(4)}-"
            watcher = self._connection.posts(wakeup.set)
            contender = Contender(shard, f"{self._root}/shards/{shard:04d}", prefix, wakeup, watcher)
            self._contenders[shard] = contender
            contender.task = self._start(self._contend(contender), f"contender-{shard}")

    def withdraw(self, shard: int) -> None:
        self._leave(shard, None)

    def queue(self, shard: int) -> queue_order.SeenQueue | None:
        contender = self._contenders.get(shard)
        return None if contender is None else contender.seen

    def nominate(self, shard: int, instance: str) -> None:
        if (contender := self._contenders.get(shard)) is not None:
            contender.wishes.successor = Successor(instance) if instance else None
            contender.wakeup.set()

    def confirm(self, shard: int) -> None:
        if (contender := self._contenders.get(shard)) is not None:
            contender.nomination.confirmed = contender.nomination.version
            contender.wakeup.set()

    def place_next(self, shard: int, instance: str) -> None:
        contender = self._contenders.get(shard)
        if contender is not None and contender.wishes.next != instance:
            contender.wishes.next, contender.wishes.placed = instance, ""
            contender.wakeup.set()

    def keep(self, shard: int) -> None:
        if (contender := self._contenders.get(shard)) is not None:
            contender.wishes.keeps = True
            contender.wakeup.set()

    def pass_on(self, shard: int, *, fixed: bool = False) -> None:
        contender = self._contenders.get(shard)
        successor = None if contender is None else contender.wishes.successor
        grant = None
        if successor is not None and successor.node:
            order = queue_order.QueueOrder(first=successor.node, fixed=fixed)
            grant = Grant(order, successor.version, self._contact.session)
        self._leave(shard, grant)

    def pass_over(self, shard: int, instance: str) -> None:
        if (contender := self._contenders.get(shard)) is not None:
            self._pass(self._start(self._pass_over(contender, instance), f"pass-over-{shard}"))

    def _leave(self, shard: int, grant: Grant | None) -> None:
        """Leave a queue, which is no longer reconciled. A daemon may leave all of them at once."""
        contender = self._contenders.pop(shard, None)
        if contender is None:
            return
        assert contender.task is not None
        contender.task.cancel()
        leaving = self._contact.complete(f"leave {contender.folder}", partial(self._leave_queue, contender, grant))
        task = self._start(leaving, f"leave-{shard}")
        if grant is not None:
            self._pass(task)

    def _pass(self, task: _Task) -> None:
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def watch(self) -> NoReturn:
        raise await self._failure

    def use(self, credentials: ZooKeeperCredentials) -> None:
        """Use other certificates for the next connection, and another password at once.

        The nodes are given to both passwords, so that daemons can change theirs one after the other.
        """
        if self._connection.use(credentials):
            self._log.info("zookeeper.password_changed")
            self._nodes.forget()
            self._start(self.registry.close_nodes(), "zookeeper-close-nodes")
            for contender in self._contenders.values():
                contender.wakeup.set()

    async def __aenter__(self) -> Self:
        self._connection.start()
        self._start(self._warn_if_slow(), "zookeeper-connect-warning")
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `Elections.__aexit__`. Ending the session deletes all nodes of this daemon."""
        if self._contact.exists.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(GRANT_TIMEOUT_SECONDS):
                    await asyncio.gather(*self._passing, return_exceptions=True)
        self._contact.closing = True
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
            self._contact.exists.set()
            self._log.info("zookeeper.connected")
            self._contact.set_problem(_CONNECTING, None)
            self._on_event(election.Connected())
        elif state == KazooState.SUSPENDED:
            self._contact.exists.clear()
            self._log.warning("zookeeper.suspended")
            self._on_event(election.Suspended())
        else:
            self._contact.exists.clear()
            self._contact.session += 1
            self._nodes.forget()
            self._log.warning("zookeeper.session_expired")
            for _, contender in sorted(self._contenders.items()):
                self._set_acquired(contender, first=False)
            self._on_event(election.Lost())

    def _fail(self, reason: str, error: BaseException | None) -> None:
        if self._contact.closing or self._failure.done():
            return
        self._log.error("zookeeper.client_ended", exc_info=error)
        self._failure.set_result(
            election.ElectionClientError(
                f"the ZooKeeper client has ended and must be restarted with this process: {reason}"
            )
        )

    async def _warn_if_slow(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_WARNING_SECONDS):
                await self._contact.exists.wait()
        except TimeoutError:
            self._log.warning("zookeeper.unreachable", advice="check [zookeeper] hosts and tls; headgate keeps trying")

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

    async def _contend(self, contender: Contender) -> None:
        try:
            while True:
                await self._contact.complete(contender.folder, partial(self._reconcile_queue, contender))
                with suppress(TimeoutError):
                    async with asyncio.timeout(RECONCILE_INTERVAL_SECONDS):
                        await contender.wakeup.wait()
        finally:
            self._contact.set_problem(contender.folder, None)

    async def _reconcile_queue(self, contender: Contender) -> None:
        """Join the queue if necessary, watch the deciding node, and report whether this daemon is first."""
        session, shard, folder = self._contact.session, contender.shard, contender.folder
        contender.wakeup.clear()
        contender.joined = contender.joined and contender.session == session
        contender.session = session
        await self._nodes.ensure(folder)
        # Before the queue: a change after this wakes the contender.
        data, folder_stat = await self._connection.call("get", folder, watch=contender.watcher)
        order = queue_order.read_order(data)
        if contender.joined and order.first == contender.node and self._contact.exists.is_set():
            # Passed on. The shard has no leader until this is known, so it is reported before the rest is read.
            self._set_holder(contender, self._instance)
            self._set_acquired(contender, first=True)
        queue = queue_order.in_order(await self._contenders_in(contender), order)
        mine = next((name for name in queue if name.startswith(contender.prefix)), None)
        if mine is None:
            if contender.joined:
                self._log.warning("contender.queue_node_lost", shard=shard)
            self._set_acquired(contender, first=False)
            await self._connection.call("create", f"{folder}/{contender.prefix}", b"", ephemeral=True, sequence=True)
            queue = queue_order.in_order(await self._contenders_in(contender), order)
            mine = next((name for name in queue if name.startswith(contender.prefix)), None)
        if mine is None:
            raise ConnectionLoss("the queue node that was just created is missing")
        contender.node, contender.joined = mine, True
        await self._nodes.close(f"{folder}/{mine}")
        rank = queue.index(mine)
        # If first, only the own node matters. Otherwise the one before it.
        watched = mine if rank == 0 else queue[rank - 1]
        watched_stat = await self._connection.call("exists", f"{folder}/{watched}", watch=contender.watcher)
        if watched_stat is None:
            contender.wakeup.set()
            return
        if rank == 0:
            order = await self._succession.arrange(contender, mine, queue, order, folder_stat.version)
            queue = queue_order.in_order(queue, order)
        if session != self._contact.session or not self._contact.exists.is_set():
            # kazoo's threads may deliver the response after a later loss.
            raise ConnectionLoss("out of contact")
        instances = [queue_order.instance_of(name) for name in queue]
        contender.seen = queue_order.SeenQueue(
            instances[0],
            frozenset(instances[1:]),
            fixed=order.fixed and queue[0] == order.first,
            next="".join(instances[1:2]),
        )
        self._set_holder(contender, instances[0])
        self._set_acquired(contender, first=rank == 0)
        if rank == 0:
            await self._succession.nominate(contender, mine, queue)
            return
        contender.wishes = Wishes()
        if order.successor == mine:
            await self._succession.be_nominated(contender, mine, folder_stat.version)

    def _set_acquired(self, contender: Contender, *, first: bool) -> None:
        if first != contender.acquired:
            contender.acquired = first
            self._on_event(election.LockEvent(contender.shard, Event.LOCK_ACQUIRED if first else Event.LOCK_LOST))

    def _set_holder(self, contender: Contender, instance: str) -> None:
        if contender.holder != instance:
            contender.holder = instance
            self._on_event(election.HolderChanged(contender.shard, instance))

    async def _contenders_in(self, contender: Contender) -> list[str]:
        """Return the queue nodes of daemons. Another one at the front would leave the shard without a leader."""
        queue = queue_order.queue_nodes(await self._connection.children(contender.folder))
        known = contender.owned
        owned = contender.owned = {name: known[name] for name in queue if name in known}
        for name in queue:
            path = f"{contender.folder}/{name}"
            if name in owned or (stat := await self._connection.call("exists", path)) is None:
                continue
            with suppress(NoNodeError):
                strangeness = await self._nodes.strangeness(path, stat)
                owned[name] = strangeness is None
                if strangeness is not None:
                    self._contact.report_foreign(path, strangeness)
        return [name for name in queue if owned.get(name, True)]

    async def _leave_queue(self, contender: Contender, grant: Grant | None) -> None:
        if grant is not None and grant.session == self._contact.session:
            await self._succession.write_grant(contender.folder, grant)
        # A create without a response may have left a node: all nodes with this prefix are deleted.
        for name in queue_order.queue_nodes(await self._connection.children(contender.folder)):
            if name.startswith(contender.prefix):
                with suppress(NoNodeError):
                    await self._connection.call("delete", f"{contender.folder}/{name}")

    async def _pass_over(self, contender: Contender, instance: str) -> None:
        with suppress(*FAILURES):
            data, stat = await self._connection.call("get", contender.folder)
            queue = queue_order.in_order(await self._contenders_in(contender), queue_order.read_order(data))
            if (changed := queue_order.passing_over(queue, instance)) is not None:
                data = msgspec.json.encode(changed)
                await self._connection.call("set", contender.folder, data, version=stat.version)
