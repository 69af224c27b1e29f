"""The contact of one session with ZooKeeper: whether there is any, what is refused, and the rights to its nodes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from kazoo.exceptions import ConnectionLoss, NoNodeError, OperationTimeoutError, SessionExpiredError, SessionMovedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat

from controller.leadership.election import EventHandler, ForeignNodeFound, Refused
from controller.leadership.zookeeper.connection import FAILURES, RefusedError, ZooKeeperConnection

log = structlog.get_logger(__name__)


class ZooKeeperNodes:
    """Close the nodes of a cluster to all users but its own.

    An access control list is not inherited: each node has its own. A folder's list decides who creates and deletes
    nodes in it; the list of a node decides who reads and writes it. Every client sees that a node exists.

    Nodes that other users could change (those of a cluster that was open so far) are closed when a daemon first needs
    them. A node that this daemon may not close belongs to another user, and is an error that names it.
    """

    def __init__(self, connection: ZooKeeperConnection) -> None:
        self._connection = connection
        self._closed: set[str] = set()
        """Nodes that are known to be closed."""

    async def ensure(self, path: str) -> None:
        """Create ``path`` and its parents as far as they are missing, and close all of them.

        Raises RefusedError: one belongs to another user; and what `ZooKeeperConnection.call` raises.
        """
        if path in self._closed:
            return
        await self._connection.call("ensure_path", path)
        names = path.split("/")[1:]
        for length in range(1, len(names) + 1):
            await self.close("/" + "/".join(names[:length]))

    async def close(self, path: str) -> None:
        """Close the node if it exists. Raises like `ensure`."""
        wanted = self._connection.acl
        if not wanted or path in self._closed:
            return
        try:
            found, _ = await self._connection.call("get_acls", path)
        except NoNodeError:
            return
        if set(found) != set(wanted):
            await self._connection.call("set_acls", path, wanted)
            if not set(found) <= set(wanted):
                log.warning("zookeeper.node_closed", node=path, was_open_to=[str(entry.id.scheme) for entry in found])
        self._closed.add(path)

    async def strangeness(self, path: str, stat: ZnodeStat) -> str | None:
        """Return why no daemon of this cluster can have created a queue node; None: one did. Raises NoNodeError."""
        if stat.ephemeralOwner == 0:
            return "permanent"
        return None if await self._is_own(path) else "of another user"

    async def _is_own(self, path: str) -> bool:
        """Whether a daemon of this cluster created the node: only they know the user that its list names."""
        wanted = self._connection.acl
        if not wanted:
            return True
        try:
            found, _ = await self._connection.call("get_acls", path)
        except RefusedError:
            return False
        return not set(wanted).isdisjoint(found)

    def forget(self) -> None:
        """Look at each node again before it is used."""
        self._closed.clear()


_OUT_OF_CONTACT: Final = (
    ConnectionLoss,
    SessionExpiredError,  # the base class of "connection closed"
    SessionMovedError,
    OperationTimeoutError,
    KazooTimeoutError,
    TimeoutError,
)
"""The failures that a connection event reports as well."""
FoundT = TypeVar("FoundT")


class ZooKeeperContact:
    def __init__(self, hosts: str, on_event: EventHandler, nodes: ZooKeeperNodes, retry_seconds: float) -> None:
        """``hosts``: for log lines. ``retry_seconds``: pause after a failure that is no loss of contact."""
        self.exists = asyncio.Event()
        self.session = 0
        """Number of the session. A queue node belongs to one session."""
        self.closing = False
        """No problem is reported any more."""
        self._on_event = on_event
        self._nodes = nodes
        self._retry_seconds = retry_seconds
        self._problems: dict[str, str] = {}
        """Activity → what is refused, in the order in which it began. The first one is reported."""
        self._reported: str | None = None
        self._log = log.bind(zookeeper=hosts)

    def set_problem(self, activity: str, problem: str | None) -> None:
        """Set what is refused to ``activity``; None: nothing any more."""
        if problem is None:
            self._problems.pop(activity, None)
        else:
            self._problems[activity] = problem
        first = next(iter(self._problems.values()), None)
        if self.closing or first == self._reported:
            return
        self._reported = first
        if first is None:
            self._log.info("zookeeper.accepted")
        else:
            self._log.error("zookeeper.refused", problem=first)
        self._on_event(Refused(first))

    def report_foreign(self, path: str, strangeness: str) -> None:
        advice = "no daemon of this cluster created it, and it is ignored; delete it"
        self._log.warning("zookeeper.foreign_node", node=path, reason=strangeness, advice=advice)
        self._on_event(ForeignNodeFound(path))

    async def complete(self, activity: str, request: Callable[[], Awaitable[FoundT]]) -> FoundT:
        """Return what ``request`` returns, once there is contact and it succeeds."""
        while True:
            await self.exists.wait()
            try:
                found = await request()
            except _OUT_OF_CONTACT:
                await asyncio.sleep(0.1)  # The event of a lost connection may arrive after the failure it caused.
            except FAILURES as error:
                self._nodes.forget()
                if isinstance(error, RefusedError):
                    self.set_problem(activity, str(error))
                else:
                    self._log.warning("zookeeper.request_failed", error=repr(error))
                await asyncio.sleep(self._retry_seconds)
            else:
                self.set_problem(activity, None)
                return found
