"""One reign: requests in, one chunk after another out, replies once they are durable.

A request is decoded, judged and folded in one go, without waiting, in the order in which it arrived. Whatever is said
about it leaves when the chunk it depends on stands. The decisions are elsewhere: verdicts, placement, topic commands,
and one SubscriptionCoordinator per subscription. This module carries them out.

A reign ends by an exception out of `serve` (`ReignEndedError`), or because it is told to hand over. A bug ends it too,
and with it the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import structlog

from controller import topic_commands as commands
from controller.device_intake import Delivery, DeviceIntake, DeviceObserver, OpenSession
from controller.group_commit import CommitObserver, GroupCommit, ReignEndedError
from controller.leadership import Event
from controller.placement import oversized, place
from controller.settings import IngestSettings
from controller.state import WINDOW, ShardState
from controller.subscription_room import DrainCheck, SubscriptionRoom
from controller.verdicts import Accept, Duplicate, Refuse, judge_batch, judge_reign
from coordinator.ports import CoordinatorObserver, CoordinatorSettings
from headgate import entries as e
from headgate import messages as m
from headgate.ledger import Ledger
from headgate.transport import Transport

LOOK_SECONDS = 1.0
"""How often an idle leader looks at the next number."""
TICK_SECONDS = 0.25
"""How often deadlines (heartbeats, grace, revocations) are looked at."""
DELAYED_REFUSALS = 1000
"""Most refusals that wait at a time; a client beyond that gets no answer and tries again even later."""

Arrival = TypeVar("Arrival", bytes, Delivery)

log = structlog.get_logger(__name__)


class LeaderObserver(CommitObserver, CoordinatorObserver, DeviceObserver, Protocol):
    """Who is told of what a leader does (metrics)."""

    def batch_judged(self, shard: int, verdict: str) -> None:
        """Tell the verdict on one batch."""

    def batch_durable(self, shard: int, seconds: float) -> None:
        """Tell how long an accepted batch took from judging to durable."""

    def message_malformed(self, reason: str) -> None:
        """Tell of a message that is not of the protocol."""

    def epochless_refused(self, shard: int) -> None:
        """Tell of a batch from a client too old to be safe."""


class _Address(msgspec.Struct):
    """What can be read of a request that cannot be read."""

    request_id: m.Natural
    client_id: m.Name
    protocol: int = m.PROTOCOL_VERSION


_ADDRESS: msgspec.msgpack.Decoder[_Address] = msgspec.msgpack.Decoder(_Address)


class ShardReign:
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
        observer: LeaderObserver,
        drain_check: DrainCheck | None,
        now_ms: Callable[[], int],
        rng: random.Random,
        makes_room: Callable[[], bool],
        open_session: OpenSession | None = None,
    ) -> None:
        """``state`` ends with the reign chunk of ``instance``, and belongs to this reign from now on.

        ``open_session`` gives the session of plain devices; None: they are not taken in.
        """
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
        self.commit = GroupCommit(
            ledger,
            state,
            now_ms=now_ms,
            observer=observer,
            write_timeout_seconds=ingest.write_timeout_seconds,
            unreachable_seconds=ingest.unreachable_seconds,
            makes_room=makes_room,
            on_durable=self._announce_head,
        )
        self.room = SubscriptionRoom(
            state=state,
            commit=self.commit,
            send=self._send,
            settings=subscriptions,
            observer=observer,
            drain_check=drain_check,
            now_ms=now_ms,
            rng=rng,
        )
        self.devices = DeviceIntake(
            cluster=cluster,
            state=state,
            commit=self.commit,
            observer=observer,
            now_ms=now_ms,
        )
        self._open_session = open_session

    async def serve(self) -> None:
        """Lead until the reign ends; raises ReignEndedError, or whatever a bug raised. Cancel it to end it at once."""
        requests = m.requests_topic(self._cluster, self._shard)
        self._serving = True
        try:
            self.room.restore()
            await self._transport.subscribe(requests, self._on_request)
            self.connection_changed(self._transport.connected)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.commit.run(), name=f"commit-{self._shard}")
                tasks.create_task(self._watch(), name=f"watch-{self._shard}")
                tasks.create_task(self._fail_with_handler(), name=f"failure-{self._shard}")
                if self._open_session is not None:
                    session = self._open_session(self._shard, self._on_delivery)
                    tasks.create_task(self.devices.run(session), name=f"devices-{self._shard}")
        except BaseExceptionGroup as group:
            ended, bugs = group.split(ReignEndedError)
            if bugs is not None or ended is None:
                raise
            raise ended.exceptions[0] from None
        finally:
            self._serving = False
            for handle in self._delayed:
                handle.cancel()
            await self.room.close()
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
        self._guard(self._handle, payload)

    def _on_delivery(self, delivery: Delivery) -> None:
        self._guard(self.devices.take, delivery)

    def _guard(self, handle: Callable[[Arrival], None], arrival: Arrival) -> None:
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

    def _handle(self, payload: bytes) -> None:
        if len(payload) > m.MAX_MESSAGE_BYTES:
            self._malformed(
                payload, "too_large", f"a message has {len(payload)} bytes; the limit is {m.MAX_MESSAGE_BYTES}"
            )
            return
        try:
            request = m.decode_request(payload)
        except msgspec.ValidationError as error:
            self._malformed(payload, "invalid", f"not a request of protocol {m.PROTOCOL_VERSION}: {error}")
            return
        except msgspec.DecodeError as error:
            self._malformed(payload, "not_msgpack", f"not msgpack: {error}")
            return
        if request.protocol != m.PROTOCOL_VERSION:
            self._malformed(payload, "protocol", "")
            return
        refusal = judge_reign(request, self.leader_epoch)
        if refusal is not None:
            self._refuse_for_other_reign(request, refusal)
        elif isinstance(request, m.ProduceBatch | m.AcknowledgeBatch):
            self._batch(request)
        else:
            self._command(request)

    def _refuse_for_other_reign(self, request: m.AnyRequest, refusal: Refuse) -> None:
        self._observer.batch_judged(self._shard, refusal.verdict)
        if not refusal.delayed:
            self._refuse(request, refusal)
            return
        self._observer.epochless_refused(self._shard)
        if len(self._delayed) < DELAYED_REFUSALS:
            loop = asyncio.get_running_loop()
            handle = loop.call_later(self._ingest.refuse_epochless_after_seconds, self._refuse, request, refusal)
            self._delayed = {waiting for waiting in self._delayed if waiting.when() > loop.time()} | {handle}

    def _batch(self, batch: m.ProduceBatch | m.AcknowledgeBatch) -> None:
        judgement = judge_batch(batch, self.state, self.commit.durable)
        if isinstance(judgement, Accept):
            judgement = self._take(batch) or judgement
        if isinstance(judgement, Refuse):
            self._observer.batch_judged(self._shard, judgement.verdict)
            self._refuse(batch, judgement)
        elif isinstance(judgement, Duplicate):
            self._observer.batch_judged(self._shard, "duplicate")
            reply = m.Committed(
                request_id=batch.request_id,
                leader_epoch=self.leader_epoch,
                placements=judgement.placements,
                duplicate=True,
            )
            self._reply(batch.client_id, reply, judgement.chunk)

    def _take(self, batch: m.ProduceBatch | m.AcknowledgeBatch) -> Refuse | None:
        """Fold an accepted batch and promise the reply; a Refuse if what it carries cannot be taken after all."""
        refused: list[tuple[int, str]] = []
        placements: list[e.Placement] | None = None
        if isinstance(batch, m.AcknowledgeBatch):
            outcome = self.room.acknowledge(batch)
            if isinstance(outcome, Refuse):
                return outcome
            refused = outcome
        else:
            reason = oversized(batch)
            if reason is not None:
                return Refuse("invalid", reason)
            if self.commit.queued_bytes > self._ingest.queue_bytes:
                return Refuse("unavailable", f"more than {self._ingest.queue_bytes} bytes wait to be written")
            entry = place(self.state.topics[batch.topic], batch, self.commit.records())
            self.commit.propose(entry)
            placements = entry.placements
        self._observer.batch_judged(self._shard, "accept")
        reply = m.Committed(
            request_id=batch.request_id,
            leader_epoch=self.leader_epoch,
            placements=placements,
            refused=refused,
        )
        loop = asyncio.get_running_loop()
        judged_at = loop.time()
        self.commit.when_durable(
            self.commit.newest,
            lambda: self._observer.batch_durable(self._shard, loop.time() - judged_at),
        )
        self._reply(batch.client_id, reply, self.commit.newest)
        return None

    def _command(self, request: m.AnyRequest) -> None:
        decision = self._decide(request)
        if isinstance(decision, Refuse):
            self._refuse(request, decision)
            return
        if isinstance(decision, commands.Decision):
            if decision.entries:
                self.commit.propose(*decision.entries)
                self.room.after(decision.entries)
                if any(isinstance(entry, e.TopicCreated | e.TopicDeleted) for entry in decision.entries):
                    # The answer to a creation says that devices may begin.
                    answer = decision.answer(self.state, request.request_id)
                    self.devices.topics_changed(partial(self._reply, request.client_id, answer, self.commit.newest))
                    return
            decision = decision.answer(self.state, request.request_id)
        self._reply(request.client_id, decision, self.commit.newest)

    def _decide(self, request: m.AnyRequest) -> commands.Decision | Refuse | m.Reply:
        match request:
            case m.OpenProducer():
                return commands.open_producer(request, self.state)
            case m.CreateTopic():
                return commands.create_topic(request, self.state)
            case m.DeleteTopic():
                return commands.delete_topic(request, self.state)
            case m.SplitSegment():
                return commands.split_segment(request, self.state)
            case m.MergeSegments():
                return commands.merge_segments(request, self.state)
            case m.ListTopics():
                return commands.list_topics()
            case m.DescribeTopic():
                return commands.describe_topic(request, self.state)
            case m.DeleteSubscription():
                return commands.delete_subscription(request, self.state)
            case _:
                return self.room.decide(request)

    def presence(self, presence: m.Presence) -> None:
        """Tell that a client came or went."""
        if self._serving:
            self.room.presence(presence)

    # --- what leaves --------------------------------------------------------------------------------------------------

    def _reply(self, client_id: str, reply: m.Reply, chunk: int) -> None:
        """Send ``reply`` once ``chunk`` is durable."""
        topic, payload = m.replies_topic(self._cluster, client_id), m.encode(reply)
        self.commit.when_durable(chunk, partial(self._publish, topic, payload))

    def _send(self, client_id: str, message: m.Push) -> None:
        """Send ``message`` once everything folded so far is durable."""
        topic, payload = m.replies_topic(self._cluster, client_id), m.encode(message)
        self.commit.when_durable(self.commit.newest, partial(self._publish, topic, payload))

    def _refuse(self, request: m.AnyRequest, refusal: Refuse) -> None:
        reply = m.Refused(
            request_id=request.request_id,
            leader_epoch=self.leader_epoch,
            verdict=refusal.verdict,
            reason=refusal.reason,
            instance=self._instance,
        )
        if refusal.proved:
            self.commit.prove()
            self._reply(request.client_id, reply, self.commit.newest)
        else:
            self._publish(m.replies_topic(self._cluster, request.client_id), m.encode(reply))

    def _malformed(self, payload: bytes, kind: str, reason: str) -> None:
        try:
            address = m.decode(_ADDRESS, payload)
        except msgspec.DecodeError:
            address = None
        if address is not None and address.protocol != m.PROTOCOL_VERSION:
            # Whatever else is wrong with it is wrong only by our version.
            kind = "protocol"
            reason = f"a request of protocol {address.protocol}; this leader speaks {m.PROTOCOL_VERSION}"
        self._observer.message_malformed(kind)
        log.debug("request.malformed", shard=self._shard, reason=reason, size_bytes=len(payload))
        if address is None:
            return  # Nobody to answer.
        refused = m.Refused(
            request_id=address.request_id,
            leader_epoch=self.leader_epoch,
            verdict="invalid",
            reason=reason,
            instance=self._instance,
        )
        self._publish(m.replies_topic(self._cluster, address.client_id), m.encode(refused))

    def _announce_head(self, number: int) -> None:
        head = m.HeadAnnouncement(shard=self._shard, leader_epoch=self.leader_epoch, head=number)
        self._transport.publish(m.head_topic(self._cluster, self._shard), m.encode(head))

    def _publish(self, topic: str, payload: bytes) -> None:
        # What is lost here was lost to a broker out of reach: the client asks again.
        self._transport.publish(topic, payload)

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
            topic = m.leader_topic(self._cluster, self._shard)
            self._transport.publish(topic, m.encode(self.announcement()), retain=True)

    # --- the tasks ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at deadlines, at the broker, and at the next number while idle."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.room.tick()
            self._expire_producers()
            if (
                self._broker_lost_at is not None
                and loop.time() - self._broker_lost_at > self._ingest.unreachable_seconds
            ):
                seconds = round(loop.time() - self._broker_lost_at, 1)
                raise ReignEndedError(Event.BROKER_UNREACHABLE, f"the broker has been out of reach for {seconds} s")
            if loop.time() - looked_at >= LOOK_SECONDS:
                looked_at = loop.time()
                await self.commit.look_for_successor()

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
