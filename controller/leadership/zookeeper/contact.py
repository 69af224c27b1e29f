"""The contact of one session with ZooKeeper: whether there is any, what is refused, and requests until they succeed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError
from kazoo.handlers.threading import KazooTimeoutError

from controller.leadership.election import EventHandler, ForeignNodeFound, Refused
from controller.leadership.zookeeper.connection import FAILURES, RefusedError
from controller.leadership.zookeeper.nodes import ZooKeeperNodes

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

log = structlog.get_logger(__name__)


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
