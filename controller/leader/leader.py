"""One reign: requests in, one chunk after another out, replies once they are durable.

A request is decoded, judged and folded in one go, without waiting, in the order in which it arrived. Whatever is said
about it leaves when the chunk it depends on stands. The decisions are elsewhere: verdicts, placement, topic commands,
and one SubscriptionCoordinator per subscription. This module carries them out.

A reign ends by an exception out of `serve` (`TermEndedError`), or because it is told to hand over. A bug ends it too,
and with it the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from controller.backlog.service import BACKLOG_INTERVAL_SECONDS, BacklogService, BacklogSource
from controller.commit import GroupCommit, TermEndedError
from controller.decisions import subscription_commands, topic_commands, topic_import
from controller.decisions.handlers import AfterChunk, Decision, Deferred, Handler, Outcome, handler
from controller.decisions.placement import oversized_reason, route_batch
from controller.decisions.verdicts import Accept, Batch, Duplicate, judge_batch, judge_term
from controller.devices.intake import DeviceIntake
from controller.devices.session_port import Delivery, OpenSession
from controller.leader.drain_check import DrainChecker
from controller.leader.outbox import Outbox
from controller.leader.request_decoding import Malformed, read_request
from controller.leader.subscription_registry import SubscriptionRegistry
from controller.leadership.transitions import Event
from controller.retention.pruner import DeleteData, Pruner
from controller.retention.trimmer import Trimmer
from controller.scaling.autoscaler import Autoscaler
from controller.settings.load import IngestSettings, RetentionSettings, ScalingSettings
from controller.state.dedup_window import WINDOW
from controller.state.shard_state import ShardState
from coordinator.decisions.refusal import Refusal
from coordinator.ports import CoordinatorSettings
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.protocol import messages as m
from headgate.transport.port import Transport
from metrics import events

SUCCESSOR_CHECK_INTERVAL_SECONDS = 1.0
"""How often an idle leader looks at the next number."""
TICK_INTERVAL_SECONDS = 0.25
"""How often deadlines (heartbeats, grace, revocations) are looked at."""
MAX_DELAYED_REFUSALS = 1000
"""Most refusals that wait at a time; a client beyond that gets no answer and tries again even later."""

Arrival = TypeVar("Arrival", bytes, Delivery)

log = structlog.get_logger(__name__)


class ShardLeader:
    """The leader of one shard, from its reign chunk to its end."""

    def __init__(
        self,
        *,
        cluster: str,
        instance: str,
        state: ShardState,
        ledger: Ledger,
        transport: Transport,
        ingest: IngestSettings,
        subscriptions: CoordinatorSettings,
        scaling: ScalingSettings,
        retention: RetentionSettings,
        delete_data: DeleteData,
        observer: events.Observer,
        drain_checker: DrainChecker | None,
        now_ms: Callable[[], int],
        rng: random.Random,
        yields_to_contender: Callable[[], bool],
        open_session: OpenSession | None = None,
        new_trimmer: Callable[[GroupCommit], Trimmer] | None = None,
        backlog_source: BacklogSource | None = None,
        backlog_interval_seconds: float = BACKLOG_INTERVAL_SECONDS,
    ) -> None:
        """``state`` ends with the reign chunk and belongs to this reign; None: no devices, no trimming, no Spark."""
        self.state = state
        self.leader_epoch = state.leader_epoch
        self._shard = state.shard
        self._cluster = cluster
        self._instance = instance
        self._transport = transport
        self._ingest = ingest
        self._pipelining = ingest.pipelining
        self._observer = observer
        self._now_ms = now_ms
        self._delayed: set[asyncio.TimerHandle] = set()
        self._broker_lost_at: float | None = None
        self._serving = False
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()
        self.autoscaler = Autoscaler(
            state=state,
            apply_entries=self._apply_entries,
            settings=scaling,
            observer=observer,
            now_ms=now_ms,
        )
        self.commit = GroupCommit(
            ledger,
            state,
            now_ms=now_ms,
            observer=observer,
            write_timeout_seconds=ingest.write_timeout_seconds,
            unreachable_seconds=ingest.unreachable_seconds,
            yields_to_contender=yields_to_contender,
            on_durable=self._on_head_advanced,
            on_records=self.autoscaler.sample,
        )
        self._outbox = Outbox(
            cluster=cluster,
            shard=state.shard,
            leader_epoch=state.leader_epoch,
            instance=instance,
            transport=transport,
            commit=self.commit,
        )
        self.pruner = Pruner(
            state=state,
            commit=self.commit,
            apply_entries=self._apply_entries,
            delete_data=delete_data,
            settings=retention,
            observer=observer,
            now_ms=now_ms,
            rng=rng,
        )
        self.subscription_registry = SubscriptionRegistry(
            state=state,
            commit=self.commit,
            push=self._outbox.push,
            settings=subscriptions,
            observer=observer,
            drain_checker=drain_checker,
            now_ms=now_ms,
            rng=rng,
        )
        self.devices = DeviceIntake(
            cluster=cluster,
            state=state,
            commit=self.commit,
            observer=observer,
            now_ms=now_ms,
            enabled=ingest.mqtt_devices,
        )
        self.backlogs = BacklogService(
            state=state,
            source=backlog_source,
            observer=observer,
            now_ms=now_ms,
            interval_seconds=backlog_interval_seconds,
        )
        self._open_session = open_session
        self.trimmer = None if new_trimmer is None else new_trimmer(self.commit)
        self._handlers: dict[type[m.RequestBody], Handler] = dict(
            (
                *topic_commands.COMMANDS,
                *topic_import.COMMANDS,
                *subscription_commands.COMMANDS,
                *self.subscription_registry.handlers(),
                *self.pruner.handlers(),
                handler(m.ProduceBatch, self._handle_batch),
                handler(m.AcknowledgeBatch, self._handle_batch),
                handler(m.DescribeBacklog, self._describe_backlog),
            )
        )

    async def serve(self) -> None:
        """Lead until the reign ends; raises TermEndedError, or whatever a bug raised. Cancel it to end it at once."""
        requests = m.requests_topic(self._cluster, self._shard)
        self._serving = True
        try:
            self.subscription_registry.restore()
            await self._transport.subscribe(requests, self._on_request)
            self.connection_changed(self._transport.connected)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.commit.run(), name=f"commit-{self._shard}")
                tasks.create_task(self._run_timers(), name=f"watch-{self._shard}")
                tasks.create_task(self.pruner.run(), name=f"prune-{self._shard}")
                tasks.create_task(self.backlogs.run(), name=f"backlogs-{self._shard}")
                tasks.create_task(self._fail_with_handler(), name=f"failure-{self._shard}")
                if self.trimmer is not None:
                    tasks.create_task(self.trimmer.run(), name=f"trim-{self._shard}")
                if self._open_session is not None:
                    opening = partial(self._open_session, self._shard, self._on_delivery)
                    tasks.create_task(self.devices.subscriptions.run(opening), name=f"devices-{self._shard}")
        except BaseExceptionGroup as group:
            ended, bugs = group.split(TermEndedError)
            if bugs is not None or ended is None:
                raise
            raise ended.exceptions[0] from None
        finally:
            self._serving = False
            for handle in self._delayed:
                handle.cancel()
            await self.subscription_registry.close()
            await self._transport.unsubscribe(requests)

    async def hand_over(self) -> None:
        """Take no more requests, and wait until everything accepted is durable."""
        self._serving = False
        await self.commit.flush()

    def announcement(self) -> m.LeaderAnnouncement:
        """Return what clients are told of this reign."""
        return m.LeaderAnnouncement(
            shard=self._shard,
            leader_epoch=self.leader_epoch,
            instance=self._instance,
            pipelining=self._pipelining,
            window=WINDOW,
        )

    def switch_pipelining(self, on: bool) -> None:
        """Let producers keep several batches in flight, or one at a time; tells them at once."""
        self._pipelining = on
        self._announce()

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _on_request(self, _: str, payload: bytes) -> None:
        self._dispatch(self._handle_request, payload)

    def _on_delivery(self, delivery: Delivery) -> None:
        self._dispatch(self.devices.accept, delivery)

    def _dispatch(self, handle: Callable[[Arrival], None], arrival: Arrival) -> None:
        """Handle what arrived, as long as this reign serves."""
        if not self._serving:
            return
        try:
            handle(arrival)
        except Exception as error:  # noqa: BLE001 - a bug: it ends the reign and the process, in `_fail_with_handler`
            self._failure = error
            self._serving = False
            self._failed.set()

    async def _fail_with_handler(self) -> None:
        """Raise what a message handler raised: on the broker's side of the call nobody could catch it."""
        await self._failed.wait()
        assert self._failure is not None, "woken without a failure"
        raise self._failure

    def _handle_request(self, payload: bytes) -> None:
        request = read_request(payload)
        if isinstance(request, Malformed):
            self._observer.observe(events.MalformedMessageReceived(reason=request.kind))
            log.debug("request.malformed", shard=self._shard, reason=request.reason, size_bytes=len(payload))
            if request.address is not None:
                known = request.address
                self._outbox.refuse(known.client_id, known.request_id, Refusal("invalid", request.reason))
            return
        refusal = judge_term(request, self.leader_epoch)
        if refusal is None:
            self._finish(request, self._handlers[type(request.body)](request, self.state))
        else:
            self._refuse_for_other_term(request, refusal)

    def _refuse_for_other_term(self, request: m.Request, refusal: Refusal) -> None:
        self._observer.observe(events.BatchJudged(shard=self._shard, verdict=refusal.verdict))
        if not refusal.delayed:
            self._refuse(request, refusal)
            return
        self._observer.observe(events.RequestWithoutEpochRejected(shard=self._shard))
        if len(self._delayed) < MAX_DELAYED_REFUSALS:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(self._ingest.missing_epoch_rejection_delay_seconds, self._refuse, request, refusal)
            self._delayed = {waiting for waiting in self._delayed if waiting.when() > loop.time()} | {handle}

    def _handle_batch(self, batch: Batch, _: str) -> Outcome:
        judgement = judge_batch(batch, self.state, self.commit.durable)
        outcome: Outcome
        verdict: events.BatchVerdict
        match judgement:
            case Duplicate():
                rejected = [(segment, "it did not count when this batch was taken") for segment in judgement.rejected]
                body = m.Committed(placements=judgement.placements, duplicate=True, rejected=rejected)
                verdict, outcome = "duplicate", AfterChunk(judgement.chunk, body)
            case Accept():
                outcome = self._acknowledge(batch) if isinstance(batch, m.AcknowledgeBatch) else self._store(batch)
                verdict = outcome.verdict if isinstance(outcome, Refusal) else "accept"
            case Refusal():
                verdict, outcome = judgement.verdict, judgement
        self._observer.observe(events.BatchJudged(shard=self._shard, verdict=verdict))
        return outcome

    def _acknowledge(self, batch: m.AcknowledgeBatch) -> m.Committed | Refusal:
        """Apply the acknowledgements that count, and reply which do not."""
        rejected = self.subscription_registry.acknowledge(batch)
        if isinstance(rejected, Refusal):
            return rejected
        self.commit.batch_accepted()
        return m.Committed(rejected=rejected)

    def _store(self, batch: m.ProduceBatch) -> m.Committed | Refusal:
        """Route the records of an accepted batch and add them to the next chunk."""
        reason = oversized_reason(batch)
        if reason is not None:
            return Refusal("invalid", reason)
        if self.commit.queued_bytes > self._ingest.queue_bytes:
            return Refusal("unavailable", f"more than {self._ingest.queue_bytes} bytes wait to be written")
        entry = route_batch(self.state.topics[batch.topic], batch, self.commit.records())
        self.commit.propose(entry)
        self.commit.batch_accepted()
        return m.Committed(placements=entry.placements)

    def _describe_backlog(self, request: m.DescribeBacklog, _: str) -> Outcome:
        """Reply to the only request that waits for another process: the Spark process counts first."""
        refusal = self.subscription_registry.refuse_unknown(request.topic, request.subscription)
        return refusal or Deferred(partial(self.backlogs.answer_later, request))

    def _finish(self, request: m.Request, outcome: Outcome) -> None:
        """Send the reply that ``outcome`` asks for, once the chunk it depends on is durable."""
        match outcome:
            case Refusal():
                self._refuse(request, outcome)
            case AfterChunk(chunk, body):
                self._outbox.reply(request.client_id, request.request_id, body, chunk)
            case Deferred(start):
                start(partial(self._reply, request))
            case Decision(entries, answer):
                if entries:
                    self._apply_entries(entries)
                reply = partial(self._reply, request, answer(self.state))
                if any(isinstance(entry, e.TopicCreated | e.TopicDeleted) for entry in entries):
                    # The reply to a creation also promises that devices may publish.
                    self.devices.subscriptions.topics_changed(reply)
                else:
                    reply()
            case _:
                self._reply(request, outcome)

    def _reply(self, request: m.Request, body: m.AnyReplyBody) -> None:
        self._outbox.reply(request.client_id, request.request_id, body, self.commit.newest)

    def _apply_entries(self, entries: Sequence[e.AnyEntry]) -> None:
        self.subscription_registry.before_entries(entries)
        self.commit.propose(*entries)
        self.subscription_registry.after_entries(entries)

    def on_presence(self, presence: m.Presence) -> None:
        """Tell that a client came or went."""
        if self._serving:
            self.subscription_registry.on_presence(presence)

    # --- what leaves --------------------------------------------------------------------------------------------------

    def _on_head_advanced(self, number: int) -> None:
        self._outbox.announce_head(number)

    def _refuse(self, request: m.Request, refusal: Refusal) -> None:
        self._outbox.refuse(request.client_id, request.request_id, refusal)

    def connection_changed(self, connected: bool) -> None:
        """Tell that the broker came or went; announces again each time: it may have lost what it retained."""
        if not self._serving:
            return
        if not connected:
            self._broker_lost_at = self._broker_lost_at or asyncio.get_running_loop().time()
            return
        self._broker_lost_at = None
        self._announce()

    def _announce(self) -> None:
        """Say who leads, if this reign serves. Out of reach of the broker it is said on the next connection."""
        if self._serving:
            self._outbox.announce_leader(self.announcement())

    # --- the tasks ----------------------------------------------------------------------------------------------------

    async def _run_timers(self) -> None:
        """Look at deadlines, at the broker, and at the next number while idle."""
        loop = asyncio.get_running_loop()
        checked_at = loop.time()
        while True:
            await asyncio.sleep(TICK_INTERVAL_SECONDS)
            self.subscription_registry.tick()
            self._expire_producers()
            self.autoscaler.tick()
            if (
                self._broker_lost_at is not None
                and loop.time() - self._broker_lost_at > self._ingest.unreachable_seconds
            ):
                seconds = round(loop.time() - self._broker_lost_at, 1)
                raise TermEndedError(Event.BROKER_UNREACHABLE, f"the broker has been out of reach for {seconds} s")
            if loop.time() - checked_at >= SUCCESSOR_CHECK_INTERVAL_SECONDS:
                checked_at = loop.time()
                await self.commit.check_for_successor()

    def _expire_producers(self) -> None:
        """Forget producers that were idle too long, and the least recently used ones beyond the limit."""
        producers = self.state.producers
        oldest = self._now_ms() - int(self._ingest.producer_idle_seconds * 1000)
        surplus = len(producers) - self._ingest.max_producers
        expired: list[int] = []
        for producer_id, producer in producers.items():
            idle = producer.last_at_ms < oldest and producer.last_chunk <= self.commit.durable
            over = len(expired) < surplus and producer.last_chunk <= self.commit.durable
            if not idle and not over:
                break
            expired.append(producer_id)
        if expired:
            self.commit.propose(e.ProducersExpired(producer_ids=expired))
