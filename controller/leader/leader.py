"""Lead one shard for one term: handle requests, and reply once their chunks are durable.

A request is decoded, decided and applied in one synchronous step, in order of arrival. A term ends
with an exception from `ShardLeader.serve` (`TermEndedError`) or with a handover. A bug in a handler
ends the term and the process.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from controller.backlog.service import MAX_PENDING_ANSWERS, BacklogService
from controller.chunk_writer.group_commit import GroupCommit, TermEndedError
from controller.context.leader_context import LeaderContext
from controller.context.session_port import Delivery
from controller.context.step_driver import StepDriver
from controller.devices.intake import DeviceIntake
from controller.leader import cluster_answers
from controller.leader.announcer import Announcer
from controller.leader.operator_commands import OperatorCommands
from controller.leader.outbox import Outbox
from controller.leader.request_decoding import Malformed, read_request, read_request_id
from controller.leader.request_queue import RequestQueue
from controller.leader.subscription_registry import SubscriptionRegistry
from controller.leader.topic_settings import described
from controller.leadership.policy import safety
from controller.leadership.policy.shard_load import message_cost
from controller.leadership.policy.transitions import Event
from controller.retention.pruner import Pruner
from controller.retention.trimmer import Trimmer
from controller.scaling.autoscaler import Autoscaler
from headgate.model import entries as e
from headgate.process.background import cancel_and_wait
from headgate.protocol import messages as m
from metrics import events
from metrics.label_values import BatchVerdict, LayoutChangeKind, RequestLimit
from shard.access.requirements import refuse_access
from shard.requests import producer_commands, producer_expiry, subscription_commands, topic_commands, topic_import
from shard.requests.handlers import AfterBarrier, AfterChunk, Decision, Deferred, Handler, Outcome, Stepwise, handler
from shard.requests.lookup import find_subscription, find_topic
from shard.requests.placement import route_batch
from shard.requests.quota import keep_within_quotas
from shard.requests.tick_pace import TICK_INTERVAL_SECONDS, tick_pause_seconds
from shard.requests.verdicts import Accept, Duplicate, judge_batch, judge_deadline, judge_history, judge_term
from shard.state.ledger_time import IDLE_CHUNK_MS
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal

"""Age of the last check for a chunk of another leader after which an idle leader checks again: with the next tick."""
MAX_DELAYED_REFUSALS = 1000
BYTES_PER_COST = 512
"""Bytes of a request that are decoded at the cost of one unit."""

Arrival = TypeVar("Arrival", tuple[str, bytes], Delivery)

log = structlog.get_logger(__name__)


class ShardLeader:
    def __init__(self, state: ShardState, context: LeaderContext, yields_to_contender: Callable[[], bool]) -> None:
        """``state`` ends with the term chunk and belongs to this leader from now on."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self._shard = state.shard
        self.context = context
        self._broker_lost_at: float | None = None
        self.began_at = asyncio.get_running_loop().time()
        """The term's clock starts here; deadlines of requests are ages of the term."""
        self.arrived_cost = 0
        """Sum of `message_cost` of the requests of this term; `DeviceIntake` counts the messages of devices."""
        self._serving = False
        self._bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of a message handler: the transport, which called the handler, could not handle it."""
        self.driver = StepDriver(context.turn_budget)
        self.waiting_requests = RequestQueue(self.driver)
        """Requests that are answered in steps."""
        self.autoscaler = Autoscaler(context, state, self._apply_entries)
        self.commit = GroupCommit(
            context,
            state,
            yields_to_contender=yields_to_contender,
            on_durable=lambda number: self._outbox.announce_head(number),  # noqa: PLW0108 - created later
            on_records=self.autoscaler.sample,
        )
        self._outbox = Outbox(state, context, self.commit)
        self.announcer = Announcer(
            state, context, self.commit, publish=self._outbox.announce_leader, serving=lambda: self._serving
        )
        self.subscription_registry = SubscriptionRegistry(
            state=state, context=context, commit=self.commit, driver=self.driver, push=self._outbox.push
        )
        self.devices = DeviceIntake(context, state, self.commit)
        self.pruner = Pruner(
            context,
            state,
            self.commit,
            apply_entries=self._apply_entries,
            take_steps=self.driver.complete,
            has_session=self.devices.sessions.exists,
        )
        self.backlogs = BacklogService(
            context, state, self.driver.complete, self.subscription_registry.oldest_unhandled_ms
        )
        self._operators = OperatorCommands(self._shard, context.instance, context.operations)
        self._deferred: defaultdict[RequestLimit, set[asyncio.Task[None]]] = defaultdict(set)
        """Work for replies that wait, by the limit of their number."""
        self.trimmer = Trimmer(context, state, self.commit)
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> dict[type[m.RequestBody], Handler]:
        registrations = [
            *producer_commands.commands(
                self.context.ingest.max_named_producers, self.context.new_producer_id, self.state
            ),
            *topic_commands.COMMANDS,
            *topic_import.COMMANDS,
            *subscription_commands.COMMANDS,
            *self.subscription_registry.handlers(),
            *self.pruner.handlers(),
            *self._operators.handlers(),
            handler(m.DescribeTopic, self._describe_topic),
            handler(m.DescribeLeader, self.announcer.describe),
            handler(m.ProduceBatch, self._handle_batch),
            handler(m.DescribeBacklog, self._describe_backlog),
            handler(m.DescribeCluster, lambda request, _: cluster_answers.describe(self.context.overview, request)),
        ]
        handlers = dict(registrations)
        assert len(handlers) == len(registrations), "a request type has two handlers"
        return handlers

    async def serve(self) -> None:
        """Lead until the term ends; raises TermEndedError, or the exception of a bug. Cancel it to stop at once."""
        requests = m.requests_filter(self.context.cluster, self._shard)
        self._serving = True
        try:
            await self.driver.complete(self.subscription_registry.restore())
            await self.context.transport.subscribe(requests, self._on_request)
            self.connection_changed(self.context.transport.connected)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.commit.run(), name=f"commit-{self._shard}")
                tasks.create_task(self.driver.run(), name=f"steps-{self._shard}")
                tasks.create_task(self._run_timers(), name=f"timers-{self._shard}")
                if (open_session := self.context.open_session) is not None:
                    sessions = self.devices.sessions.run(open_session, self._on_delivery)
                    tasks.create_task(sessions, name=f"devices-{self._shard}")
                tasks.create_task(self.pruner.run(), name=f"prune-{self._shard}")
                tasks.create_task(self.backlogs.run(), name=f"backlogs-{self._shard}")
                tasks.create_task(asyncio.wait_for(self._bug, timeout=None), name=f"failure-{self._shard}")
                tasks.create_task(self.trimmer.run(), name=f"trim-{self._shard}")
        except BaseExceptionGroup as group:
            ended, bugs = group.split(TermEndedError)
            if bugs is not None or ended is None:
                raise
            raise ended.exceptions[0] from None
        finally:
            self._serving = False
            self._outbox.delayed.close()
            await cancel_and_wait(*(task for tasks in self._deferred.values() for task in tasks))
            await self._operators.close()
            await self.subscription_registry.close()
            await self.context.transport.unsubscribe(requests)

    async def hand_over(self) -> None:
        """Stop accepting requests, and wait until everything accepted is durable."""
        self._serving = False
        await self.commit.flush()

    def connection_changed(self, connected: bool) -> None:
        """Handle a broker connection or its loss. Each connection announces: the broker may have lost its data."""
        if not self._serving:
            return
        if connected:
            self._broker_lost_at = None
            self.announcer.announce()
        elif self._broker_lost_at is None:
            self._broker_lost_at = asyncio.get_running_loop().time()

    def on_presence(self, presence: m.Presence) -> None:
        """Handle the connection or disconnection of a client."""
        if self._serving:
            self.subscription_registry.on_presence(presence)

    # Arrivals

    def _on_request(self, topic: str, payload: bytes) -> None:
        self._dispatch(self._handle_request, (topic, payload))

    def _on_delivery(self, topic_id: int, delivery: Delivery) -> None:
        self._dispatch(partial(self.devices.accept, topic_id), delivery)

    def _dispatch(self, handle: Callable[[Arrival], None], arrival: Arrival) -> None:
        if not self._serving:
            return
        try:
            handle(arrival)
        except Exception as error:  # noqa: BLE001 - a bug; it ends the term and the process
            self._fail(error)

    def _fail(self, bug: BaseException) -> None:
        self._serving = False
        if not self._bug.done():
            self._bug.set_exception(bug)

    def _handle_request(self, message: tuple[str, bytes]) -> None:
        topic, payload = message
        sender = m.sender_of_request(topic)
        if not self._admit(sender, payload):
            return
        self.arrived_cost += message_cost(len(payload))
        self.driver.charge(len(payload) // BYTES_PER_COST)
        request = read_request(payload, sender)
        if isinstance(request, Malformed):
            self.context.observer.observe(events.MalformedMessageReceived(reason=request.kind))
            log.debug("request.malformed", shard=self._shard, reason=request.reason, size_bytes=len(payload))
            if request.address is not None:
                self._outbox.refuse(request.address, Refusal("invalid", request.reason))
            return
        term_age_ms = int((asyncio.get_running_loop().time() - self.began_at) * 1000)
        refusal = judge_term(request, self.leader_epoch) or judge_deadline(request, term_age_ms)
        refusal = refusal or judge_history(request.body, self.state)
        if refusal is not None:
            self._refuse_unread(request, refusal)
            return
        denied: Refusal | None = None
        if not isinstance(request.body, m.ProduceBatch):  # `judge_batch` judges the right to one among its rows.
            denied = refuse_access(self.context.access.rules, m.user_of(request.client_id), request.body)
        self._carry_out(request, denied or self._handlers[type(request.body)](request, self.state))

    def _admit(self, sender: str, payload: bytes) -> bool:
        """Return whether to read the request. One beyond the rates of its user costs as little as possible."""
        full = self._outbox.delayed.full(m.user_of(sender))
        over = self.context.access.admit(sender, len(payload), asyncio.get_running_loop().time(), full=full)
        if over is None:
            return True
        address = read_request_id(payload, sender) if over.answered else None
        if address is not None:
            self._outbox.refuse(address, Refusal("unavailable", over.reason))
        return False

    def _refuse_unread(self, request: m.Request, refusal: Refusal) -> None:
        """Refuse a request for another term, one that is too late, or one of a consumer of another history."""
        if isinstance(request.body, m.ProduceBatch):
            self.context.observer.observe(events.BatchJudged(shard=self._shard, verdict=refusal.verdict))
        if not refusal.delayed:
            self._outbox.refuse(request, refusal)
            return
        self.context.observer.observe(events.RequestWithoutEpochRejected(shard=self._shard))
        later = partial(asyncio.sleep, self.context.ingest.missing_epoch_rejection_delay_seconds, refusal)
        self._defer(request, Deferred(later, "delayed_refusals", MAX_DELAYED_REFUSALS))

    def _carry_out(self, request: m.Request, outcome: Outcome) -> None:
        """Apply the entries of ``outcome``, and send its reply once the chunk it depends on is durable."""
        match outcome:
            case Refusal():
                now = asyncio.get_running_loop().time()
                self.context.access.report_refused(request.client_id, type(request.body).__name__, outcome, now)
                self._outbox.refuse(request, outcome)
            case AfterChunk(chunk, body):
                self._outbox.reply(request, body, chunk)
            case AfterBarrier(body):
                self.commit.after_barrier(partial(self._outbox.answer, request, body))
            case Deferred():
                self._defer(request, outcome)
            case Stepwise(steps):
                self.waiting_requests.add(steps, partial(self._carry_out_steps, request))
            case Decision(entries, answer):
                admitted = keep_within_quotas(
                    entries,
                    self.state,
                    self.context.access.rules.limits_of,
                    age_ms=self._age_ms,
                    durable=self.commit.durable,
                )
                if isinstance(admitted, Refusal):
                    self._carry_out(request, admitted)
                    return
                if admitted:
                    self._apply_entries(admitted)
                    self._report_layout_changes(admitted)
                reply = partial(self._outbox.reply, request, answer(self.state), self.commit.newest)
                for entry in entries:
                    if isinstance(entry, e.TopicCreated | e.TopicDeleted):
                        # The reply to a creation also promises that devices may publish.
                        self.devices.sessions.topics_changed(entry.topic_id, reply)
                        return
                reply()
            case _:
                self._outbox.reply(request, outcome)

    def _defer(self, request: m.Request, deferred: Deferred) -> None:
        waiting = self._deferred[deferred.limit]
        if len(waiting) >= deferred.most:
            self.context.observer.observe(events.RequestLimitReached(limit=deferred.limit))
            reason = f"{len(waiting)} requests wait already ({deferred.limit})"
            self._outbox.refuse(request, Refusal("unavailable", reason))
            return

        async def answer() -> None:
            if (found := await deferred.work()) is not None:
                self._outbox.answer(request, found, deferred.chunk)

        def answered(task: asyncio.Task[None]) -> None:
            waiting.discard(task)
            if not task.cancelled() and (bug := task.exception()) is not None:
                self._fail(bug)

        task = asyncio.get_running_loop().create_task(answer(), name=f"deferred-{self._shard}")
        waiting.add(task)
        task.add_done_callback(answered)

    def _carry_out_steps(self, request: m.Request, outcome: Outcome) -> None:
        if not self._serving:
            return
        if isinstance(outcome, m.ReplyBody):
            self._outbox.answer(request, outcome)
        else:
            self._carry_out(request, outcome)

    def _report_layout_changes(self, entries: Sequence[e.AnyEntry]) -> None:
        for entry in entries:
            if isinstance(entry, e.SegmentSplit | e.SegmentsMerged):
                kind: LayoutChangeKind = "split" if isinstance(entry, e.SegmentSplit) else "merge"
                self.context.observer.observe(events.LayoutChanged(kind=kind, reason="command"))

    def _apply_entries(self, entries: Sequence[e.AnyEntry]) -> None:
        self.subscription_registry.before_entries(entries)
        self.commit.propose(*entries)
        self.subscription_registry.after_entries(entries)

    # Handlers

    def _handle_batch(self, batch: m.ProduceBatch, address: str) -> Outcome:
        judgement = judge_batch(
            batch, self.state, self.commit.durable, user=m.user_of(address), rules=self.context.access.rules
        )
        outcome: Outcome
        verdict: BatchVerdict
        match judgement:
            case Duplicate():
                body = m.Committed(placements=judgement.placements, topic_id=judgement.topic_id, duplicate=True)
                verdict, outcome = "duplicate", AfterChunk(judgement.chunk, body)
            case Accept():
                outcome = self._store(batch)
                verdict = outcome.verdict if isinstance(outcome, Refusal) else "accept"
            case Refusal():
                verdict, outcome = judgement.verdict, judgement
        self.context.observer.observe(events.BatchJudged(shard=self._shard, verdict=verdict))
        return outcome

    def _store(self, batch: m.ProduceBatch) -> m.Committed | Refusal:
        if self.commit.queued_bytes > self.context.ingest.queue_bytes:
            return Refusal("unavailable", f"more than {self.context.ingest.queue_bytes} bytes wait to be written")
        entry, records = route_batch(self.state.topics[batch.topic], batch)
        self.commit.propose_records(entry, records)
        self.commit.batch_accepted()
        return m.Committed(placements=entry.placements, topic_id=entry.topic_id)

    def _describe_topic(self, request: m.DescribeTopic, _: str) -> Outcome:
        topic = find_topic(request.topic, self.state)
        reply = described(request, topic, self._shard, self.autoscaler.settings, self.pruner.settings)
        return Decision((), lambda _: reply)

    def _describe_backlog(self, request: m.DescribeBacklog, _: str) -> Outcome:
        """Handle the only request that waits for another process: the Spark process counts first."""
        if request.topic is not None and request.subscription is not None:
            find_subscription(request.topic, request.subscription, self.state)
        elif request.topic is not None:
            find_topic(request.topic, self.state)
        return Deferred(partial(self.backlogs.answer, request), "backlogs", MAX_PENDING_ANSWERS)

    # Timers

    async def _run_timers(self) -> None:
        """Check deadlines, the broker connection, and for a successor while idle."""
        loop = asyncio.get_running_loop()
        looked_at, looks, durable = loop.time(), 0, self.commit.durable
        durations = self.context.ingest.unreachable_seconds, *self.context.subscriptions.deadline_seconds
        pause_seconds = TICK_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause_seconds)
            await self.driver.complete(self.subscription_registry.tick())
            self._expire_producers()
            self.autoscaler.tick()
            if self.context.now_ms() - self.state.at_ms >= IDLE_CHUNK_MS:
                self.commit.barrier()
            lost_seconds = 0.0 if self._broker_lost_at is None else loop.time() - self._broker_lost_at
            if safety.unreachable_too_long(lost_seconds, self.context.ingest.unreachable_seconds):
                reason = f"the broker has been unreachable for {lost_seconds:.1f} s"
                raise TermEndedError(Event.BROKER_UNREACHABLE, reason)
            pause_seconds = tick_pause_seconds(*durations, idle=self.commit.is_idle)
            if self.commit.durable != durable:
                looks, durable = 0, self.commit.durable
            look_pause_seconds = safety.look_pause_seconds(looks, contended=self.commit.is_contended)
            if loop.time() - looked_at > look_pause_seconds - TICK_INTERVAL_SECONDS / 2:
                looked_at, looks = loop.time(), looks + 1
                await self.commit.check_for_successor()

    def _age_ms(self, at_ms: int) -> int:
        return self.state.time.age_ms(at_ms, now_ms=self.context.now_ms())

    def _expire_producers(self) -> None:
        expired = producer_expiry.expired_producers(
            self.state.producers,
            age_ms=partial(self.state.time.age_ms, now_ms=self.context.now_ms()),
            idle_ms=int(self.context.ingest.producer_idle_seconds * 1000),
            max_anonymous=self.context.ingest.max_producers,
            durable=self.commit.durable,
        )
        if expired is not None:
            self.commit.propose(expired)
