"""Lead one shard for one term: handle requests, and reply once their chunks are durable.

A request is decoded, decided and applied in one synchronous step, in order of arrival. A term ends with an exception
from `ShardLeader.serve` (`TermEndedError`) or with a handover. A bug in a handler ends the term and the process.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, cast

import structlog

from controller.backlog.service import MAX_PENDING_ANSWERS, BacklogService
from controller.chunk_writer.group_commit import GroupCommit, TermEndedError
from controller.context.leader_context import LeaderContext
from controller.context.step_driver import StepDriver
from controller.devices.intake import DeviceIntake
from controller.leader.cluster_requests import describe_cluster
from controller.leader.outbox import Announcer, Outbox
from controller.leader.outcomes import Outcomes, RequestQueue, Serving
from controller.leader.request_decoding import Malformed, read_request, read_request_id
from controller.leader.subscription_registry import SubscriptionRegistry
from controller.leader.topic_settings import described
from controller.leadership.policy import safety
from controller.leadership.policy.feature_levels import MURMUR_DIGESTS
from controller.leadership.policy.shard_load import MESSAGE_OVERHEAD_BYTES
from controller.leadership.policy.transitions import Event
from controller.retention.pruner import Pruner
from controller.retention.trimmer import Trimmer
from controller.scaling.autoscaler import Autoscaler
from headgate.model import entries as e
from headgate.model.layout import ShardMap
from headgate.protocol import codec, requests
from headgate.protocol.replies import Committed
from headgate.protocol.request_fields import RequestBody
from metrics import events
from metrics.label_values import BatchVerdict
from shard.access.rules import refuse_access
from shard.requests import handlers, producer_commands, subscription_commands, topic_commands, topic_import, verdicts
from shard.state.ledger_time import IDLE_CHUNK_MS, TICK_INTERVAL_SECONDS, tick_pause_seconds
from shard.state.shard_state import ShardState
from shard.steps import Steps
from shard.subscriptions.refusal import Refusal


@dataclass(eq=False, repr=False)
class TermTimers:
    """What a leader does by the clock: deadlines, scaling, producers that are gone, and whether it may still lead."""

    state: ShardState
    context: LeaderContext
    commit: GroupCommit
    driver: StepDriver
    autoscaler: Autoscaler
    tick: Callable[[], Steps[None]]
    """What the subscriptions do at each tick."""
    _broker_lost_at: float | None = None
    began_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """The term's clock starts here; deadlines of requests are ages of the term."""

    def broker_changed(self, connected: bool) -> None:
        """Note a connection to the broker, or its loss."""
        if connected:
            self._broker_lost_at = None
        elif self._broker_lost_at is None:
            self._broker_lost_at = asyncio.get_running_loop().time()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Check deadlines, the broker connection, and for a successor while idle. ``tasks`` are those of the term."""
        loop = asyncio.get_running_loop()
        look: asyncio.Task[None] | None = None
        looked_at, looks, durable = loop.time(), 0, self.commit.durable
        durations = self.context.ingest.unreachable_seconds, *self.context.subscriptions.deadline_seconds
        pause_seconds = TICK_INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause_seconds)
            await self.driver.complete(self.tick())
            self._expire_producers()
            self.autoscaler.tick()
            if self.context.now_ms() - self.state.at_ms >= IDLE_CHUNK_MS:
                self.commit.barrier()
            lost_seconds = 0.0 if self._broker_lost_at is None else loop.time() - self._broker_lost_at
            if safety.unreachable_too_long(lost_seconds, self.context.ingest.unreachable_seconds):
                reason = f"the broker has been unreachable for {lost_seconds:.1f} s (limit: ingest.unreachable_seconds)"
                raise TermEndedError(Event.BROKER_UNREACHABLE, reason)
            pause_seconds = tick_pause_seconds(*durations, idle=self.commit.is_idle)
            # A leader without requests writes a chunk every 50 minutes, which is no reason to look each second again.
            looks, durable = 0 if self.commit.durable > durable + 1 else looks, self.commit.durable
            look_pause_seconds = safety.look_pause_seconds(looks, contended=self.commit.yields_to_contender())
            if loop.time() - looked_at > look_pause_seconds - TICK_INTERVAL_SECONDS / 2:
                looked_at, looks = loop.time(), looks + 1
                if look is None or look.done():
                    look = tasks.create_task(self.commit.check_for_successor(), name=f"look-{self.state.shard}")
                else:
                    self.commit.barrier()

    def _expire_producers(self) -> None:
        expired = self.state.producers.expired(
            age_ms=partial(self.state.time.age_ms, now_ms=self.context.now_ms()),
            idle_ms=int(self.context.ingest.producer_idle_seconds * 1000),
            max_anonymous=self.context.ingest.max_producers,
            durable=self.commit.durable,
        )
        if expired is not None:
            self.commit.propose(expired)


BYTES_PER_COST = 512
"""Bytes of a request that are decoded at the cost of one unit."""

P = ParamSpec("P")

log = structlog.get_logger(__name__)


class ShardLeader:
    def __init__(self, state: ShardState, context: LeaderContext, yields_to_contender: Callable[[], bool]) -> None:
        """``state`` ends with the term chunk and belongs to this leader from now on."""
        self.state = state
        self.context = context
        self.arrived_cost = 0
        """See `Arrivals`: of the requests of this term. `DeviceIntake` counts the messages of devices."""
        self._serving = Serving()
        self.driver = StepDriver(context.turn_budget)
        autoscaler = Autoscaler(context, state, self._apply_entries)
        self.commit = GroupCommit(
            context,
            state,
            yields_to_contender=yields_to_contender,
            on_durable=lambda number, data: self._outbox.announce(number, data),  # noqa: PLW0108 - created later
            on_records=autoscaler.sample,
        )
        self._outbox = Outbox(state, context, self.commit)
        self.announcer = Announcer(
            state, context, self.commit, publish=self._outbox.announce_leader, serving=lambda: self._serving.on
        )
        self.subscription_registry = SubscriptionRegistry(
            state=state,
            context=context,
            commit=self.commit,
            driver=self.driver,
            push=self._outbox.push,
            follow=self._outbox.chunks.follow,
        )
        self.devices = DeviceIntake(context, state, self.commit)
        self.pruner = Pruner(
            context,
            state,
            self.commit,
            apply_entries=self._apply_entries,
            take_steps=self.driver.complete,
            has_session=self.devices.sessions.exists,
            withdraw=self.subscription_registry.withdraw,
        )
        self.backlogs = BacklogService(
            context, state, self.driver.complete, self.subscription_registry.oldest_unhandled_ms, self.commit
        )
        self.timers = TermTimers(state, context, self.commit, self.driver, autoscaler, self.subscription_registry.tick)
        self.outcomes = Outcomes(
            state,
            context,
            self.commit,
            self._outbox,
            self.devices,
            waiting=RequestQueue(self.driver),
            serving=self._serving,
            apply_entries=self._apply_entries,
        )
        self._handlers = self._all_handlers()

    @property
    def leader_epoch(self) -> int:
        return self.state.term.leader_epoch

    def _all_handlers(self) -> dict[type[RequestBody], handlers.Handler]:
        registrations = [
            *producer_commands.COMMANDS,
            *topic_commands.COMMANDS,
            *topic_import.COMMANDS,
            *subscription_commands.COMMANDS,
            *self.subscription_registry.handlers(),
            *self.pruner.handlers(),
            *self.outcomes.operators.handlers(),
            handlers.handler(requests.OpenProducer, self._open_producer),
            handlers.handler(requests.DescribeTopic, self._describe_topic),
            handlers.handler(requests.DescribeLeader, self.announcer.describe),
            handlers.handler(requests.ProduceBatch, self._handle_batch),
            handlers.handler(requests.DescribeBacklog, self._describe_backlog),
            handlers.handler(
                requests.DescribeCluster, lambda request, _: describe_cluster(self.context.overview, request)
            ),
        ]
        found = dict(registrations)
        assert len(found) == len(registrations), "a request type has two handlers"
        return found

    async def serve(self) -> None:
        """Lead until the term ends; raises TermEndedError, or the exception of a bug. Cancel it to stop at once."""
        topics = codec.requests_filter(self.context.cluster, self.state.shard)
        self._serving.on = True
        try:
            await self.driver.complete(self.subscription_registry.restore())
            self.learn_shards(self.context.shards())
            await self.context.transport.subscribe(topics, self._while_serving(self._handle_request))
            self.connection_changed(self.context.transport.connected)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.commit.run(), name=f"commit-{self.state.shard}")
                tasks.create_task(self.driver.run(), name=f"steps-{self.state.shard}")
                tasks.create_task(self.timers.run(tasks), name=f"timers-{self.state.shard}")
                if (open_session := self.context.open_session) is not None:
                    sessions = self.devices.sessions.run(open_session, self._while_serving(self.devices.accept))
                    tasks.create_task(sessions, name=f"devices-{self.state.shard}")
                tasks.create_task(self.pruner.run(), name=f"prune-{self.state.shard}")
                tasks.create_task(self.backlogs.run(), name=f"backlogs-{self.state.shard}")
                tasks.create_task(asyncio.wait_for(self._serving.bug, timeout=None), name=f"failure-{self.state.shard}")
                tasks.create_task(Trimmer(self.context, self.state, self.commit).run(), name=f"trim-{self.state.shard}")
        except BaseExceptionGroup as group:
            ended, bugs = group.split(TermEndedError)
            if bugs is not None or ended is None:
                raise
            raise ended.exceptions[0] from None
        finally:
            self._serving.on = False
            self._outbox.delayed.close()
            await self.outcomes.close()
            await self.subscription_registry.close()
            await self.context.transport.unsubscribe(topics)

    async def hand_over(self) -> None:
        """Stop accepting requests, and wait until everything accepted is durable."""
        self._serving.on = False
        await self.commit.flush()

    def connection_changed(self, connected: bool) -> None:
        """Handle a broker connection or its loss. Each connection announces: the broker may have lost its data."""
        if not self._serving.on:
            return
        self.timers.broker_changed(connected)
        if connected:
            self.announcer.announce()

    def learn_shards(self, shards: ShardMap) -> None:
        """Store that the cluster has grown, unless the ledger says so: see `shard.requests.topic_commands`."""
        if self._serving.on and len(shards.counts) > 1 and shards.extends(self.state.ids.shard_counts):
            self._apply_entries((e.ShardsGrown(counts=shards.counts),))

    def on_presence(self, presence: codec.Presence) -> None:
        """Handle the connection or disconnection of a client."""
        if self._serving.on:
            self.driver.begin(self.subscription_registry.on_presence(presence, asyncio.get_running_loop().time()))

    # Arrivals

    def _while_serving(self, handle: Callable[P, None]) -> Callable[P, None]:
        """Return ``handle`` for what arrives: only while requests are served, and a bug in it ends the term."""

        def guarded(*arrived: P.args, **more: P.kwargs) -> None:
            if not self._serving.on:
                return
            try:
                handle(*arrived, **more)
            except Exception as error:  # noqa: BLE001 - a bug; it ends the term and the process
                self._serving.fail(error)

        return guarded

    def _handle_request(self, topic: str, payload: bytes) -> None:
        sender = codec.sender_of_request(topic)
        if not self._admit(sender, payload):
            return
        self.arrived_cost += MESSAGE_OVERHEAD_BYTES + len(payload)
        self.driver.charge(len(payload) // BYTES_PER_COST)
        request = read_request(payload, sender, self.context.ledger_id)
        if isinstance(request, Malformed):
            self.context.observer.observe(events.MalformedMessageReceived(reason=request.kind))
            log.debug("request.malformed", shard=self.state.shard, reason=request.reason, size_bytes=len(payload))
            if request.kind == "protocol":
                self.context.access.report_other_version(sender, request.reason, asyncio.get_running_loop().time())
            if request.address is not None:
                self._outbox.refuse(request.address, Refusal("invalid", request.reason))
            return
        term_age_ms = int((asyncio.get_running_loop().time() - self.timers.began_at) * 1000)
        refusal = verdicts.judge_term(request, self.leader_epoch) or verdicts.judge_deadline(request, term_age_ms)
        refusal = refusal or verdicts.judge_history(request.body, self.state)
        if refusal is not None:
            if isinstance(request.body, requests.ProduceBatch):
                self._count_batch(refusal.verdict)
            self._outbox.refuse(request, refusal)
            return
        denied: Refusal | None = None
        if not isinstance(request.body, requests.ProduceBatch):  # `judge_batch` judges the right to one among its rows.
            denied = refuse_access(self.context.access.rules, codec.user_of(request.client_id), request.body)
        self.outcomes.carry_out(request, denied or self._handlers[type(request.body)](request, self.state))

    def _admit(self, sender: str, payload: bytes) -> bool:
        """Return whether to read the request. One beyond the rates of its user costs as little as possible."""
        full = self._outbox.delayed.full(codec.user_of(sender))
        over = self.context.access.admit(sender, len(payload), asyncio.get_running_loop().time(), full=full)
        if over is None:
            return True
        address = read_request_id(payload, sender) if over.answered else None
        if address is not None:
            self._outbox.refuse(address, Refusal("unavailable", over.reason))
        return False

    def _apply_entries(self, entries: Sequence[e.AnyEntry]) -> None:
        former = self.subscription_registry.before_entries(entries)
        self.commit.propose(*entries)
        self.subscription_registry.after_entries(entries, former)

    # Handlers

    def _open_producer(self, request: requests.OpenProducer, address: str) -> handlers.Outcome:
        new_id, limit = self.context.new_producer_id(), self.context.ingest.max_named_producers
        user = codec.user_of(address)
        return producer_commands.open_producer(request, self.state, user=user, new_id=new_id, max_named_producers=limit)

    def _handle_batch(self, batch: requests.ProduceBatch, address: str) -> handlers.Outcome:
        judgement = verdicts.judge_batch(
            batch, self.state, self.commit.durable, user=codec.user_of(address), rules=self.context.access.rules
        )
        outcome = self._store(batch) if isinstance(judgement, verdicts.Accept) else judgement
        if isinstance(outcome, verdicts.Duplicate):
            self._count_batch("duplicate")
            body = Committed(placements=outcome.placements, topic_id=outcome.topic_id, duplicate=True)
            return handlers.AfterChunk(outcome.chunk, body)
        self._count_batch(outcome.verdict if isinstance(outcome, Refusal) else "accept")
        return outcome

    def _count_batch(self, verdict: str) -> None:
        """Count a batch by its verdict. Those of registrations, seeks and quotas of objects are no batch's."""
        self.context.observer.observe(events.BatchJudged(shard=self.state.shard, verdict=cast("BatchVerdict", verdict)))

    def _store(self, batch: requests.ProduceBatch) -> Committed | Refusal:
        if self.commit.queued_bytes > self.context.ingest.queue_bytes:
            return Refusal("unavailable", f"more than {self.context.ingest.queue_bytes} bytes wait: ingest.queue_bytes")
        size = codec.MURMUR_DIGEST_BYTES if self.context.feature_level() >= MURMUR_DIGESTS else codec.SHA_DIGEST_BYTES
        entry, records = verdicts.route_batch(self.state.topics[batch.topic], batch, digest_bytes=size)
        self.commit.propose_records(entry, records)
        self.commit.batch_accepted()
        return Committed(placements=entry.placements, topic_id=entry.topic_id)

    def _describe_topic(self, request: requests.DescribeTopic, _: str) -> handlers.Outcome:
        topic = handlers.find_topic(request.topic, self.state)
        reply = described(request, topic, self.state.shard, self.timers.autoscaler.settings, self.pruner.settings)
        return handlers.Decision((), lambda _: reply)

    def _describe_backlog(self, request: requests.DescribeBacklog, _: str) -> handlers.Outcome:
        """Handle the only request that waits for another process: the Spark process counts first."""
        if request.topic is not None and request.subscription is not None:
            handlers.find_subscription(request.topic, request.subscription, self.state)
        elif request.topic is not None:
            handlers.find_topic(request.topic, self.state)
        return handlers.Deferred(partial(self.backlogs.answer, request), "backlogs", MAX_PENDING_ANSWERS)
