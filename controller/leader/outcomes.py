"""Carries out what the handlers of one leader decide: applies entries, and replies once their chunk is durable."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.devices.intake import DeviceIntake
from controller.leader.operator_commands import OperatorCommands
from controller.leader.outbox import Outbox
from controller.leader.request_queue import RequestQueue
from headgate.model import entries as e
from headgate.process.background import cancel_and_wait
from headgate.protocol import messages as m
from metrics import events
from metrics.label_values import LayoutChangeKind, RequestLimit
from shard.requests.handlers import AfterBarrier, AfterChunk, Decision, Deferred, Outcome, Stepwise
from shard.requests.quota import keep_within_quotas
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal


class Serving:
    """Whether a leader takes what arrives, and the bug that ended this."""

    def __init__(self) -> None:
        self.on = False
        self.bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of a message handler: the transport, which called the handler, could not handle it."""

    def fail(self, bug: BaseException) -> None:
        self.on = False
        if not self.bug.done():
            self.bug.set_exception(bug)


class Outcomes:
    def __init__(
        self,
        state: ShardState,
        context: LeaderContext,
        commit: GroupCommit,
        outbox: Outbox,
        devices: DeviceIntake,
        *,
        waiting: RequestQueue,
        serving: Serving,
        apply_entries: Callable[[Sequence[e.AnyEntry]], None],
    ) -> None:
        self._state = state
        self._context = context
        self._commit = commit
        self._outbox = outbox
        self._devices = devices
        self.waiting = waiting
        """Requests that are answered in steps."""
        self._serving = serving
        self._apply_entries = apply_entries
        self.operators = OperatorCommands(state.shard, context.instance, context.operations)
        self._deferred: defaultdict[RequestLimit, set[asyncio.Task[None]]] = defaultdict(set)
        """Work for replies that wait, by the limit of their number."""

    async def close(self) -> None:
        """Drop the work for replies that wait."""
        await self.operators.close()
        await cancel_and_wait(*(task for tasks in self._deferred.values() for task in tasks))

    def carry_out(self, request: m.Request, outcome: Outcome) -> None:
        """Apply the entries of ``outcome``, and send its reply once the chunk it depends on is durable."""
        match outcome:
            case Refusal():
                now = asyncio.get_running_loop().time()
                self._context.access.report_refused(request.client_id, type(request.body).__name__, outcome, now)
                self._outbox.refuse(request, outcome)
            case AfterChunk(chunk, body):
                self._outbox.reply(request, body, chunk)
            case AfterBarrier(body):
                self._commit.after_barrier(partial(self._outbox.answer, request, body))
            case Deferred():
                self.defer(request, outcome)
            case Stepwise(steps):
                self.waiting.add(steps, partial(self._carry_out_steps, request))
            case Decision(entries, answer):
                admitted = keep_within_quotas(
                    entries,
                    self._state,
                    self._context.access.rules.limits_of,
                    age_ms=partial(self._state.time.age_ms, now_ms=self._context.now_ms()),
                    durable=self._commit.durable,
                )
                if isinstance(admitted, Refusal):
                    self.carry_out(request, admitted)
                    return
                if admitted:
                    self._apply_entries(admitted)
                    self._report_layout_changes(admitted)
                answered = answer(self._state)
                reply = partial(self.carry_out, request, answered)
                if not isinstance(answered, Stepwise):
                    reply = partial(self._outbox.reply, request, answered, self._commit.newest)
                for entry in entries:
                    if isinstance(entry, e.TopicCreated | e.TopicDeleted):
                        # The reply to a creation also promises that devices may publish.
                        self._devices.sessions.topics_changed(entry.topic_id, reply)
                        return
                reply()
            case _:
                self._outbox.reply(request, outcome)

    def defer(self, request: m.Request, deferred: Deferred) -> None:
        waiting = self._deferred[deferred.limit]
        if len(waiting) >= deferred.most:
            self._context.observer.observe(events.RequestLimitReached(limit=deferred.limit))
            reason = f"{len(waiting)} requests wait already ({deferred.limit})"
            self._outbox.refuse(request, Refusal("unavailable", reason))
            return

        async def answer() -> None:
            if (found := await deferred.work()) is not None:
                self._outbox.answer(request, found, deferred.chunk)

        def answered(task: asyncio.Task[None]) -> None:
            waiting.discard(task)
            if not task.cancelled() and (bug := task.exception()) is not None:
                self._serving.fail(bug)

        task = asyncio.get_running_loop().create_task(answer(), name=f"deferred-{self._state.shard}")
        waiting.add(task)
        task.add_done_callback(answered)

    def _carry_out_steps(self, request: m.Request, outcome: Outcome) -> None:
        if not self._serving.on:
            return
        if isinstance(outcome, m.ReplyBody):
            self._outbox.answer(request, outcome)
        else:
            self.carry_out(request, outcome)

    def _report_layout_changes(self, entries: Sequence[e.AnyEntry]) -> None:
        for entry in entries:
            if isinstance(entry, e.SegmentSplit | e.SegmentsMerged):
                kind: LayoutChangeKind = "split" if isinstance(entry, e.SegmentSplit) else "merge"
                self._context.observer.observe(events.LayoutChanged(kind=kind, reason="command"))
