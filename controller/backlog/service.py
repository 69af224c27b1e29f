"""Where one reign is asked for backlogs: it asks Spark, waits a bounded time, and answers with what is known.

However many ask, one question is under way; whoever comes meanwhile shares it. An answer waits for it for
`WAIT_SECONDS`. Then it is given with what Spark said last, if that is not older than `STALE_SECONDS`, and else with the
leader's own count (controller.backlog.merge): the drain process may be away, people still get numbers.

Every `every_seconds` it asks by itself, so that rates are known before anybody asks, and metrics need nobody to look.

External topics are asked about by name. A table of theirs that is at fault is logged when that begins and when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from controller.backlog.external_query import questions_of
from controller.backlog.merge import backlogs
from controller.state.shard_state import ShardState
from drain.protocol import BacklogTold, DrainCheckError, ExternalQuestion, ExternalTold
from headgate.protocol import messages as m
from headgate.protocol.backlog import SubscriptionBacklog

WAIT_SECONDS: Final = 1.5
"""Below the two seconds after which a client asks again."""
STALE_SECONDS: Final = 60.0
BACKLOG_EVERY_SECONDS: Final = 15.0
WAITING_LIMIT: Final = 256
"""Answers that may wait at once; beyond, they are given at once with what is known."""

BacklogSource = Callable[[int, int, Sequence[ExternalQuestion]], Awaitable[BacklogTold]]
"""(shard, now in ms, its external topics) → what Spark has counted; raises DrainCheckError."""

log = structlog.get_logger(__name__)


class BacklogObserver(Protocol):
    """Who is told of backlogs (metrics)."""

    def backlog_counted(self, shard: int, backlogs: tuple[SubscriptionBacklog, ...], now_ms: int) -> None:
        """Tell what all subscriptions of a shard have left."""


class BacklogDesk:
    """One reign's backlogs. Its tasks live as long as `run`."""

    def __init__(
        self,
        *,
        state: ShardState,
        source: BacklogSource | None,
        observer: BacklogObserver,
        now_ms: Callable[[], int],
        every_seconds: float,
    ) -> None:
        """``source`` None: there is no Spark to ask, so the leader counts."""
        self._state = state
        self._source = source
        self._observer = observer
        self._now_ms = now_ms
        self._every_seconds = every_seconds
        self._told: tuple[BacklogTold, float] | None = None
        self._faults: dict[str, str] = {}
        """External topic → what was logged of its tables."""
        self._asking: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self._running = False

    async def run(self) -> None:
        """Ask now and then until cancelled; then whatever waits is cancelled too."""
        self._running = True
        try:
            while True:
                await self._fresh(self._every_seconds)
                self._observer.backlog_counted(self._state.shard, self.known(), self._now_ms())
                await asyncio.sleep(self._every_seconds)
        finally:
            self._running = False
            for task in (*self._waiting, *([] if self._asking is None else [self._asking])):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def answer_later(self, request: m.DescribeBacklog, reply: Callable[[m.BacklogAnswer], None]) -> None:
        """Call ``reply`` with the answer to ``request``, within `WAIT_SECONDS`."""
        if self._source is None or not self._running or len(self._waiting) >= WAITING_LIMIT:
            reply(self._answer(request))
            return
        task = asyncio.get_running_loop().create_task(self._answer_soon(request, reply), name="backlog-answer")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def known(self) -> tuple[SubscriptionBacklog, ...]:
        """Return what is known now, without asking anybody."""
        told = None
        if self._told is not None and asyncio.get_running_loop().time() - self._told[1] <= STALE_SECONDS:
            told = self._told[0]
        return backlogs(self._state, told, self._now_ms())

    def _answer(self, request: m.DescribeBacklog) -> m.BacklogAnswer:
        return m.BacklogAnswer(
            request_id=request.request_id,
            leader_epoch=self._state.leader_epoch,
            backlogs=[
                each
                for each in self.known()
                if request.topic in (None, each.topic) and request.subscription in (None, each.subscription)
            ],
        )

    async def _answer_soon(self, request: m.DescribeBacklog, reply: Callable[[m.BacklogAnswer], None]) -> None:
        await self._fresh(WAIT_SECONDS)
        reply(self._answer(request))

    async def _fresh(self, wait_seconds: float) -> None:
        """Return once the next answer of Spark is there, has failed, or has taken too long."""
        if self._source is None:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask(self._source), name="backlog-question")
        # What is under way goes on, however long it takes: whoever asks next finds it done.
        await asyncio.wait({self._asking}, timeout=wait_seconds)
        if self._asking.done():
            self._asking.result()

    async def _ask(self, source: BacklogSource) -> None:
        shard = self._state.shard
        try:
            told = await source(shard, self._now_ms(), questions_of(self._state))
        except DrainCheckError as error:
            log.debug("backlog.not_counted", shard=shard, reason=str(error))
            return
        if shard in told.as_of_ms:
            self._told = (told, asyncio.get_running_loop().time())
            self._log_faults(each for each in told.external if each.shard == shard)
        else:
            log.warning("backlog.not_counted", shard=shard, reason=told.failures.get(shard, "no result"))

    def _log_faults(self, told: Iterable[ExternalTold]) -> None:
        names = {topic.topic_id: topic.name for topic in self._state.topics.values()}
        faults = {names[each.topic_id]: each.reason for each in told if each.at_fault and each.topic_id in names}
        for topic, reason in faults.items():
            if self._faults.get(topic) != reason:
                log.warning("external_tables.at_fault", topic=topic, reason=reason)
        for topic in self._faults.keys() - faults.keys():
            log.info("external_tables.mended", topic=topic)
        self._faults = faults
