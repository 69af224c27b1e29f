"""Carries out what the handlers of one leader decide: applies entries, and replies once their chunk is durable."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.context.step_driver import StepDriver
from controller.devices.intake import DeviceIntake
from controller.leader.cluster_requests import OperatorCommands
from controller.leader.outbox import Outbox
from headgate.model import entries as e
from headgate.process.background import cancel_and_wait
from headgate.protocol.replies import ReplyBody
from headgate.protocol.requests import Request
from metrics import events
from metrics.label_values import LayoutChangeKind, RequestLimit
from shard.access.quotas import keep_within_quotas
from shard.requests.handlers import AfterBarrier, AfterChunk, Decision, Deferred, Outcome, StepResult, Stepwise
from shard.state.shard_state import ShardState
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal

MAX_WAITING_REQUESTS: Final = 64
"""Large requests that wait on one shard, the first one included. An import keeps a message of megabytes."""

Finish = Callable[[Outcome], None]


class RequestQueue:
    """Requests about thousands of segments: answered in steps over turns of the loop, one after the other.

    1. A short answer is complete in the turn of its request.
    2. Only the first answer is under way, so the memory that answers take is that of one. At most
       `MAX_WAITING_REQUESTS` wait, each with its message.
    3. A query reads a snapshot that its first step takes. A command reads the state itself: its last step must decide
       for the state that it finds (see `shard.requests.handlers.Stepwise`).
    """

    def __init__(self, driver: StepDriver) -> None:
        self._driver = driver
        self._waiting: deque[tuple[Steps[StepResult], Finish]] = deque()
        self._answering = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, steps: Steps[StepResult], finish: Finish) -> None:
        """Call ``finish`` with the result of ``steps``, in the turn of the last one, or with a refusal now."""
        if len(self._waiting) >= MAX_WAITING_REQUESTS:
            finish(
                Refusal("unavailable", f"{MAX_WAITING_REQUESTS} earlier requests are not answered yet: ask again later")
            )
            return
        self._waiting.append((steps, finish))
        if not self._answering:
            self._driver.begin(self._answer_all())

    def _answer_all(self) -> Steps[None]:
        self._answering = True
        while self._waiting:
            steps, finish = self._waiting[0]
            result = yield from steps
            self._waiting.popleft()
            finish(result)
        self._answering = False


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


@dataclass(eq=False, repr=False)
class Outcomes:
    state: ShardState
    context: LeaderContext
    commit: GroupCommit
    outbox: Outbox
    devices: DeviceIntake
    _: KW_ONLY
    waiting: RequestQueue
    """Requests that are answered in steps."""
    serving: Serving
    apply_entries: Callable[[Sequence[e.AnyEntry]], None]
    _deferred: defaultdict[RequestLimit, set[asyncio.Task[None]]] = field(default_factory=lambda: defaultdict(set))
    """Work for replies that wait, by the limit of their number."""
    operators: OperatorCommands = field(init=False)

    def __post_init__(self) -> None:
        self.operators = OperatorCommands(self.state.shard, self.context.instance, self.context.operations)

    async def close(self) -> None:
        """Drop the work for replies that wait."""
        await self.operators.close()
        await cancel_and_wait(*(task for tasks in self._deferred.values() for task in tasks))

    def carry_out(self, request: Request, outcome: Outcome) -> None:
        """Apply the entries of ``outcome``, and send its reply once the chunk it depends on is durable."""
        match outcome:
            case Refusal():
                now = asyncio.get_running_loop().time()
                self.context.access.report_refused(request.client_id, type(request.body).__name__, outcome, now)
                self.outbox.refuse(request, outcome)
            case AfterChunk(chunk, body):
                self.outbox.reply(request, body, chunk)
            case AfterBarrier(body):
                self.commit.after_barrier(partial(self.outbox.answer, request, body))
            case Deferred():
                self.defer(request, outcome)
            case Stepwise(steps):
                self.waiting.add(steps, partial(self._carry_out_steps, request))
            case Decision(entries, answer, of_dry_run):
                judged, limits_of = entries or of_dry_run, self.context.access.rules.limits_of
                age_ms, durable = partial(self.state.time.age_ms, now_ms=self.context.now_ms()), self.commit.durable
                admitted = keep_within_quotas(judged, self.state, limits_of, age_ms=age_ms, durable=durable)
                if isinstance(admitted, Refusal):
                    self.carry_out(request, admitted)
                    return
                if entries:
                    self.apply_entries(admitted)
                    self._report_layout_changes(admitted)
                answered = answer(self.state)
                reply = partial(self.carry_out, request, answered)
                if not isinstance(answered, Stepwise):
                    reply = partial(self.outbox.reply, request, answered, self.commit.newest)
                for entry in entries:
                    if isinstance(entry, e.TopicCreated | e.TopicDeleted):
                        # The reply to a creation also promises that devices may publish.
                        self.devices.sessions.topics_changed(entry.topic_id, reply)
                        return
                reply()
            case _:
                self.outbox.reply(request, outcome)

    def defer(self, request: Request, deferred: Deferred) -> None:
        waiting = self._deferred[deferred.limit]
        if len(waiting) >= deferred.most:
            self.context.observer.observe(events.RequestLimitReached(limit=deferred.limit))
            reason = f"{len(waiting)} requests wait already ({deferred.limit})"
            self.outbox.refuse(request, Refusal("unavailable", reason))
            return

        async def answer() -> None:
            if (found := await deferred.work()) is not None:
                self.outbox.answer(request, found, deferred.chunk)

        def answered(task: asyncio.Task[None]) -> None:
            waiting.discard(task)
            if not task.cancelled() and (bug := task.exception()) is not None:
                self.serving.fail(bug)

        task = asyncio.get_running_loop().create_task(answer(), name=f"deferred-{self.state.shard}")
        waiting.add(task)
        task.add_done_callback(answered)

    def _carry_out_steps(self, request: Request, outcome: Outcome) -> None:
        if not self.serving.on:
            return
        if isinstance(outcome, ReplyBody):
            self.outbox.answer(request, outcome)
        else:
            self.carry_out(request, outcome)

    def _report_layout_changes(self, entries: Sequence[e.AnyEntry]) -> None:
        for entry in entries:
            if isinstance(entry, e.SegmentSplit | e.SegmentsMerged):
                kind: LayoutChangeKind = "split" if isinstance(entry, e.SegmentSplit) else "merge"
                self.context.observer.observe(events.LayoutChanged(kind=kind, reason="command"))
