"""Answers backlog requests of one leader term in bounded time, from a cache that Spark refreshes.

At most one query to Spark is in flight. A request waits for it up to `REFRESH_TIMEOUT_SECONDS`. Without a count younger
than `MAX_RESPONSE_AGE_SECONDS` the reply has the leader's own. A query every `interval_seconds` provides metrics and
rates. A failing table is logged when it starts to fail and when it recovers.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.backlog.merge import backlogs, external_queries
from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import BacklogSource, LeaderContext
from drain.protocol import BacklogRequest, BacklogResponse, DrainCheckError, ExternalBacklogResponse
from headgate.backoff import Backoff, ConditionReport
from headgate.process.background import cancel_and_wait
from headgate.protocol.codec import Page, follows
from headgate.protocol.replies import BacklogReply
from headgate.protocol.requests import DescribeBacklog
from headgate.views.subscriptions import BacklogInfo
from metrics import events
from shard.state.shard_state import ShardState
from shard.steps import TakeSteps

REFRESH_TIMEOUT_SECONDS: Final = 1.5
"""Less than the two seconds after which a client repeats its request."""
MAX_RESPONSE_AGE_SECONDS: Final = 60.0
MAX_PENDING_ANSWERS: Final = 256
"""Replies that may wait for Spark."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class BacklogService:
    """The backlogs of one term. Its query lives as long as `run`."""

    context: LeaderContext
    state: ShardState
    take_steps: TakeSteps
    oldest_unhandled_ms: Callable[[int], Mapping[int, int | None]]
    """See `backlogs`."""
    commit: GroupCommit
    counted: Mapping[int, BacklogInfo] = field(default_factory=dict)
    """Subscription id → its backlog at the last periodic query, without segments."""
    _response: tuple[BacklogResponse, float] | None = None
    _table_errors: dict[str, str] = field(default_factory=dict)
    """External topic → the logged error of its tables."""
    _not_counted: ConditionReport = field(
        default_factory=lambda: ConditionReport(Backoff(first_seconds=60.0, longest_seconds=3600.0))
    )
    _query_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Query periodically until cancelled."""
        try:
            while True:
                await self._refresh(self.context.backlog_interval_seconds)
                self.counted, now_ms = await self.latest(totals=True), self.context.now_ms()
                found = tuple(self.counted.values())
                self.context.observer.observe(
                    events.BacklogUpdated(shard=self.state.shard, backlogs=found, now_ms=now_ms)
                )
                await asyncio.sleep(self.context.backlog_interval_seconds)
        finally:
            if self._query_task is not None:
                await cancel_and_wait(self._query_task)

    async def latest(
        self,
        wanted: Callable[[str, str], bool] | None = None,
        *,
        is_last: Callable[[BacklogInfo], bool] = lambda _: False,
        totals: bool = False,
    ) -> dict[int, BacklogInfo]:
        """Return subscription id → backlog, counted over turns of the loop; see `backlogs`."""
        response = None
        if (
            self._response is not None
            and asyncio.get_running_loop().time() - self._response[1] <= MAX_RESPONSE_AGE_SECONDS
        ):
            response = self._response[0]
        now_ms = self.context.now_ms()
        return await self.take_steps(
            backlogs(self.state, response, now_ms, self.oldest_unhandled_ms, wanted, is_last=is_last, totals=totals)
        )

    async def answer(self, request: DescribeBacklog) -> BacklogReply:
        """Return the reply to ``request`` within `REFRESH_TIMEOUT_SECONDS`."""
        await self._refresh(REFRESH_TIMEOUT_SECONDS)
        page: Page[BacklogInfo] = Page()
        await self.latest(
            lambda topic, subscription: (
                request.topic in (None, topic)
                and request.subscription in (None, subscription)
                and follows(request.after, topic, subscription)
            ),
            is_last=lambda each: page.add((each.topic, each.subscription), each),
        )
        return BacklogReply(backlogs=page.items, next=page.following)

    async def _refresh(self, wait_seconds: float) -> None:
        """Return when the current query has completed or failed, or after ``wait_seconds``."""
        source = self.context.backlog_source
        if source is None:
            return
        if self._query_task is None or self._query_task.done():
            self._query_task = asyncio.get_running_loop().create_task(self._query(source), name="backlog-query")
        # A slow query continues in the background, and a later request uses its result.
        await asyncio.wait({self._query_task}, timeout=wait_seconds)
        if self._query_task.done():
            self._query_task.result()

    async def _query(self, source: BacklogSource) -> None:
        shard, durable = self.state.shard, self.commit.durable
        request = BacklogRequest(
            shard=shard,
            now_ms=self.context.now_ms(),
            external=external_queries(self.state),
            written_to=durable,
            written_at_ms=self.state.at_ms if durable == self.state.chunk else 0,
            term_id=self.state.terms.newest_id,
        )
        try:
            response = await source(request)
        except DrainCheckError as error:
            if error.failure != "failed":
                log.debug("backlog.not_counted", shard=shard, reason=str(error))
                return
            reason: str | None = str(error)
        else:
            reason = None
            self._response = (response, asyncio.get_running_loop().time())
            self._log_table_errors(response.external)
        if self._not_counted.is_due(asyncio.get_running_loop().time(), reason):
            log.warning("backlog.not_counted", shard=shard, reason=reason)

    def _log_table_errors(self, response: Iterable[ExternalBacklogResponse]) -> None:
        names = {topic.topic_id: topic.name for topic in self.state.topics.values()}
        errors = {names[each.topic_id]: each.reason for each in response if each.failing and each.topic_id in names}
        for topic, reason in errors.items():
            if self._table_errors.get(topic) != reason:
                log.warning("external_tables.failing", topic=topic, reason=reason)
        for topic in self._table_errors.keys() - errors.keys():
            log.info("external_tables.recovered", topic=topic)
        self._table_errors = errors
