"""Run one subscription on the leader of its shard: who reads what, who is alive, and when children are let through.

Nothing is decided here that could be decided without a clock: the gate, the target, the handover, sessions and
acknowledgements are pure modules. This one keeps the time, asks them, writes what follows into the ledger, and tells
consumers. All that must outlive a leader is in the `Subscription`, which the ledger changes; what is kept here
(who was heard when, what sleeps) begins anew with each reign.

The rules:

1. What a consumer is told follows from entries proposed before, in the same call; it leaves once they are durable.
2. Every event (register, leave, eviction, layout, drain, seek, time-out) is followed by one look at gate, target and
   handover. A look that finds nothing to do does nothing, so looking once too often is harmless.
3. A consumer that registers learns all that it holds from the answer, and from nowhere else.
4. A new leader changes nothing that need not change: grants, generations and running grace periods stand. Connected
   consumers get a heartbeat window to be heard in. Nothing is sent to them before they register again.
5. The gate follows the type and order on record. The drain checker is installed for types that acknowledge, once the
   type is known; it is never taken away. Without a checker the gate of a STREAM still holds its children back.
6. Polling goes on only while there is a consumer and something to ask about.
7. Whatever was lost on the way is sent again with the heartbeat that shows the lack.

Methods never wait, apart from `close`. They return whole answers; the leader sends them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog

from coordinator.assignor import Assignor
from coordinator.decisions import acknowledgements, sessions
from coordinator.decisions.gate import Gate, tracks_acknowledgements, undrained_sealed
from coordinator.decisions.refusal import Refusal
from coordinator.decisions.registration import judge_registration, replaced_reason
from coordinator.drain_poller import DrainPoller
from coordinator.load_watch import LoadMonitor
from coordinator.ports import (
    CoordinatorSettings,
    DrainCheck,
    LedgerPort,
    PushMessage,
)
from coordinator.reporting.description import describe, fenced_push
from coordinator.reporting.drain_rate import DrainRate
from coordinator.reporting.explanation import ExplanationContext
from coordinator.reporting.idle_reasons import idle_reasons
from coordinator.state.subscription import RegisteredConsumer, Subscription
from coordinator.state.topic_view import TopicView
from headgate.model import entries as e
from headgate.model.bucket_ranges import SegmentSlice
from headgate.protocol import messages as m
from metrics import events

log = structlog.get_logger(__name__)


class SubscriptionCoordinator:
    """One subscription during one reign."""

    def __init__(
        self,
        *,
        subscription: Subscription,
        topic: TopicView,
        ledger: LedgerPort,
        push: PushMessage,
        drain_check: DrainCheck | None,
        leader_epoch: int,
        settings: CoordinatorSettings,
        now_ms: Callable[[], int],
        rng: random.Random,
        observer: events.Observer | None = None,
    ) -> None:
        """Take up ``subscription`` as the ledger left it; needs a running loop, proposes and sends nothing yet.

        Without ``drain_check`` the children of a STREAM wait until `install_drain_checker` provides one.
        """
        self._subscription = subscription
        self._topic = topic
        self._ledger = ledger
        self._push = push
        self._drain_check = drain_check
        self._leader_epoch = leader_epoch
        self._settings = settings
        self._now_ms = now_ms
        self._rng = rng
        self._observer: events.Observer = events.NoopObserver() if observer is None else observer
        self._log = log.bind(topic=topic.name, subscription=subscription.name)
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._started_at = now
        self._last_seen_at = dict.fromkeys(subscription.consumers, now)
        self._end_reached_at: dict[int, float] = {}
        """Sealed segment, not known to be drained → when its last acknowledgement was seen here."""
        self._restored = False
        self._drain_rate = DrainRate()
        self._poller: DrainPoller | None = None
        self._checked_seek_generation = subscription.seek_generation
        self._assignor = Assignor(
            subscription=subscription,
            topic=topic,
            ledger=ledger,
            push=push,
            leader_epoch=leader_epoch,
            observer=self._observer,
            clock=self._loop.time,
        )
        self._load_monitor = LoadMonitor(subscription=subscription, topic=topic, ledger=ledger, observer=self._observer)
        if tracks_acknowledgements(subscription.type):
            self.install_drain_checker(drain_check)

    # --- what others may ask ------------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """Which segments may be read now."""
        return self._assignor.gate

    @property
    def blocked(self) -> Mapping[int, tuple[int, ...]]:
        """Segment that waits → the undrained ancestors that it waits for, nearest first."""
        return self._assignor.gate.blocked

    @property
    def handovers_complete(self) -> bool:
        """Whether no grant waits for a handover."""
        return self._assignor.handovers_complete

    def describe(self) -> m.SubscriptionDescription:
        """Return the subscription as people and programs see it."""
        return describe(self._subscription, self._topic, self._assignor.gate)

    def explanation_context(self) -> ExplanationContext:
        """Return what `coordinator.reporting.explanation` needs to know beside the ledger."""
        return ExplanationContext(
            now_ms=self._now_ms(),
            revoke_timeout_seconds=self._settings.revoke_timeout_seconds,
            grace_seconds=self._settings.grace_seconds,
            held=self._assignor.holders(),
            has_drain_checker=self._poller is not None,
            next_poll_seconds=None if self._poller is None else self._poller.next_poll_seconds,
            rates=self._drain_rate.rates(),
            idle=idle_reasons(self._subscription, self.gate),
        )

    def install_drain_checker(self, drain_check: DrainCheck | None) -> None:
        """Start polling ``drain_check``, at once if an end is reached. No-op if it is None or one is installed."""
        if drain_check is None:
            self._log.warning("drain_checker.missing", reason="sealed segments stay undrained, so their children wait")
            return
        if self._poller is not None:
            return
        self._poller = DrainPoller(
            pending=self._undrained,
            check=partial(self._run_drain_check, drain_check),
            on_drained=self._on_drained,
            on_poll=lambda outcome: self._observer.observe(events.DrainPollCompleted(outcome=outcome)),
            min_seconds=self._settings.poll_min_seconds,
            max_seconds=self._settings.poll_max_seconds,
            check_timeout_seconds=self._settings.poll_check_timeout_seconds,
            rng=self._rng,
            name=f"{self._topic.name}/{self._subscription.name}",
        )
        self._log.debug("drain_checker.installed", type=self._subscription.type)
        self._wake_poller()

    async def close(self) -> None:
        """Stop polling; returns once nothing runs any more."""
        self._assignor.close()
        if self._poller is not None:
            await self._poller.close()

    # --- what consumers ask -------------------------------------------------------------------------------------------

    def register(self, request: m.RegisterConsumer, client_id: str) -> m.Registered | Refusal:
        """Let a consumer join, come back, or take over its name; the answer holds all that it may read now."""
        known = self._subscription.consumers.get(request.consumer)
        judged = judge_registration(self._subscription, request, client_id)
        if isinstance(judged, Refusal):
            return judged
        if judged.configured is not None:
            self._reconfigure(judged.configured, request.consumer)
        if judged.claim is sessions.Claim.CURRENT:
            self._record_contact(request.consumer)
            if judged.capacity_changed:
                self._propose_registration(request, client_id)
            if judged.configured is not None or judged.capacity_changed:
                self._assignor.reconcile("configuration changed", requester=request.consumer)
            self._assignor.resend(request.consumer, None)
        else:
            self._join(request, client_id, known)
        self._wake_poller()
        return m.Registered(
            topic_id=self._topic.topic_id,
            subscription_id=self._subscription.subscription_id,
            grants=self._assignor.grants(request.consumer),
            head=self._ledger.durable,
            blocked=len(self.blocked),
            heartbeat_interval_seconds=self._settings.heartbeat_interval_seconds,
        )

    def heartbeat(self, request: m.Heartbeat, client_id: str) -> m.HeartbeatReply | Refusal:
        """Note that a consumer lives, and send again what it lacks."""
        known = self._subscription.consumers.get(request.consumer)
        if known is None or request.incarnation > known.incarnation:
            return Refusal(
                "out_of_order",
                f"consumer {request.consumer!r} is not registered: register first",
                after_proposed=True,
            )
        if sessions.judge_claim(known, request.incarnation, client_id) is not sessions.Claim.CURRENT:
            return Refusal("fenced", replaced_reason(self._subscription, request.consumer), after_proposed=True)
        if self._record_contact(request.consumer):
            self._wake_poller()
        self._assignor.resend(request.consumer, request.held)
        return m.HeartbeatReply(
            head=self._ledger.durable,
            blocked=len(self.blocked),
            stable=self.handovers_complete,
        )

    def leave(self, request: m.LeaveConsumer, client_id: str) -> m.Done:
        """Free at once what the consumer holds; a stale leave changes nothing."""
        if self._is_current(request, client_id):
            self._remove_consumers([request.consumer], "left")
        return m.Done()

    def confirm_revoked(self, request: m.ConfirmRevoked, client_id: str) -> m.Done:
        """Pass a revoked segment on; a confirmation that fits no revocation changes nothing."""
        if self._is_current(request, client_id):
            self._assignor.confirm(request.segment, request.consumer, request.generation)
        return m.Done()

    def acknowledge(self, batch: m.AcknowledgeBatch) -> list[tuple[int, str]]:
        """Record what counts of ``batch``; return (segment, reason) for what does not.

        If an acknowledgement reaches a sealed end, the drain check runs at once.
        """
        judgement = acknowledgements.judge(self._subscription, self._topic, batch)
        self._ledger.propose(judgement.entry)
        reached = {part.segment for part in judgement.entry.ranges if self._is_end_reached(part.segment)}
        if reached and self._poller is not None:
            self._record_reached_ends(reached)
            self._poller.poll_now()
        return judgement.rejected

    # --- what the leader tells ----------------------------------------------------------------------------------------

    def client_disconnected(self, client_id: str) -> None:
        """Note that a client is cut off; the will of a client that has been replaced changes nothing."""
        names = [
            name
            for name, consumer in self._subscription.consumers.items()
            if consumer.client_id == client_id and consumer.disconnected_at_ms is None
        ]
        self._mark_disconnected(sorted(names))

    def client_connected(self, client_id: str) -> None:
        """Note that a client is connected. A silent consumer of it is not back before it says so itself."""
        for name, consumer in self._subscription.consumers.items():
            if consumer.client_id == client_id and consumer.disconnected_at_ms is None:
                self._last_seen_at[name] = self._loop.time()

    def release_pruned(self, segments: Iterable[int]) -> None:
        """Take ``segments`` from whoever holds them: they are about to be pruned."""
        self._assignor.release_pruned(segments)

    def layout_changed(self) -> None:
        """Follow a split, merge or prune, folded already."""
        self._assignor.layout_changed()
        self._end_reached_at = {s: at for s, at in self._end_reached_at.items() if s in self._topic.layout.segments}
        self._assignor.reconcile("layout changed")
        self._wake_poller()

    def positions_changed(self) -> None:
        """Follow a seek, folded already: everybody begins again at the new positions, with new generations."""
        self._log.warning("subscription.seek_completed", seek_generation=self._subscription.seek_generation)
        self._observer.observe(events.SubscriptionSeekCompleted())
        self._end_reached_at.clear()
        self._assignor.reconcile("positions changed", preferred_owners=self._assignor.release_all())
        self._wake_poller()

    def order_changed(self) -> None:
        """Follow a change of the order, folded already: what must wait from now on is revoked from who reads it."""
        self._log.warning("subscription.order_changed", order=self._subscription.order)
        self._assignor.invalidate_gate()
        self._assignor.reconcile("order changed")
        self._wake_poller()

    def subscription_deleted(self) -> None:
        """Tell all consumers that the subscription, or its topic, is gone; that is folded already."""
        for consumer in self._subscription.consumers.values():
            fenced = fenced_push(self._subscription, consumer, self._leader_epoch, "the subscription was deleted")
            self._push(consumer.client_id, fenced)
            self._observer.observe(events.ConsumerRemoved(reason="subscription_deleted"))

    def drain_checker_ready(self) -> None:
        """Ask again at once: the drain checker answers now, and may have been away when it was asked last."""
        self._wake_poller()

    def tick(self) -> None:
        """Look at all deadlines; raises what a bug in the drain poller raised."""
        if self._poller is not None:
            self._poller.raise_failure()
        if not self._restored:
            self._restored = True
            self._assignor.reconcile("restored")
        expired = sessions.find_expired(
            self._subscription.consumers,
            self._last_seen_at,
            now_seconds=self._loop.time(),
            now_ms=self._now_ms(),
            heartbeat_interval_seconds=self._settings.heartbeat_interval_seconds,
            grace_seconds=self._settings.grace_seconds,
        )
        self._mark_disconnected(expired.disconnected)
        now = self._loop.time()
        if self._load_monitor.is_due(now) and self._load_monitor.add_sample(now, self._assignor.unfinished_segments):
            self._assignor.reconcile("weights changed")
        if expired.evicted:
            self._remove_consumers(expired.evicted, "evicted")
        late = self._assignor.overdue_revocations(self._now_ms(), self._settings.revoke_timeout_seconds)
        blocking = {ancestor for ancestors in self.blocked.values() for ancestor in ancestors}
        self._drain_rate.add_sample(self._loop.time(), {s: self._subscription.position(s) for s in blocking})
        if late:
            self._log.warning("revocation.timed_out", segments=[str(segment_slice) for segment_slice in sorted(late)])
            self._assignor.reconcile("revocation timed out", timed_out=late)

    # --- consumers ----------------------------------------------------------------------------------------------------

    def _join(self, request: m.RegisterConsumer, client_id: str, known: RegisteredConsumer | None) -> None:
        preferred_owners: dict[SegmentSlice, Sequence[str]] = {}
        if known is not None:
            # The newer one wins, and loudly: its predecessor may be alive and reading.
            preferred_owners = dict.fromkeys(self._subscription.held_by(known.consumer), (known.consumer,))
            reason = f"incarnation {request.incarnation} at client {client_id!r} took its place"
            self._log.warning(
                "consumer.replaced", consumer=known.consumer, incarnation=known.incarnation, reason=reason
            )
            self._unregister([known.consumer], "replaced", reason)
        self._propose_registration(request, client_id)
        self._last_seen_at[request.consumer] = self._loop.time()
        self._observer.observe(events.ConsumerRegistered())
        self._assignor.reconcile("consumer registered", preferred_owners=preferred_owners, requester=request.consumer)

    def _propose_registration(self, request: m.RegisterConsumer, client_id: str) -> None:
        self._ledger.propose(
            e.ConsumerRegistered(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                consumer=request.consumer,
                incarnation=request.incarnation,
                client_id=client_id,
                supports_bucket_ranges=request.supports_bucket_ranges,
                capacity=request.capacity,
            ),
        )

    def _record_contact(self, name: str) -> bool:
        """Note that a registered consumer lives; tell whether it had been silent."""
        self._last_seen_at[name] = self._loop.time()
        consumer = self._subscription.consumers[name]
        if consumer.disconnected_at_ms is None:
            return False
        self._ledger.propose(
            e.ConsumerReconnected(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                consumer=name,
                incarnation=consumer.incarnation,
            ),
        )
        self._log.info("consumer.reconnected", consumer=name)
        self._observer.observe(events.ConsumerReconnected())
        return True

    def _mark_disconnected(self, names: Iterable[str]) -> None:
        for name in names:
            self._last_seen_at[name] = self._loop.time()
            self._ledger.propose(
                e.ConsumerDisconnected(
                    topic_id=self._topic.topic_id,
                    subscription_id=self._subscription.subscription_id,
                    consumer=name,
                    incarnation=self._subscription.consumers[name].incarnation,
                ),
            )
            self._log.info("consumer.disconnected", consumer=name, grace_seconds=self._settings.grace_seconds)
            self._observer.observe(events.ConsumerDisconnected())

    def _remove_consumers(self, names: Sequence[str], reason: e.LeaveReason) -> None:
        fenced = f"silent for {self._settings.grace_seconds:g} s: register again" if reason == "evicted" else None
        self._log.info("consumer.removed", consumers=list(names), reason=reason)
        self._unregister(names, reason, fenced)
        self._assignor.reconcile(f"consumer {reason}")
        self._wake_poller()

    def _unregister(self, names: Iterable[str], reason: e.LeaveReason, fenced: str | None) -> None:
        """Take ``names`` off the record and free what they hold; tell them why unless ``fenced`` is None."""
        for name in names:
            consumer = self._subscription.consumers[name]
            self._assignor.holder_removed(name)
            self._ledger.propose(
                e.ConsumerRemoved(
                    topic_id=self._topic.topic_id,
                    subscription_id=self._subscription.subscription_id,
                    consumer=name,
                    incarnation=consumer.incarnation,
                    reason=reason,
                ),
            )
            if fenced is not None:
                self._push(consumer.client_id, fenced_push(self._subscription, consumer, self._leader_epoch, fenced))
            del self._last_seen_at[name]
            self._observer.observe(events.ConsumerRemoved(reason=reason))

    def _reconfigure(self, configured: e.SubscriptionConfigured, consumer: str) -> None:
        """Put type, order and balance on record; from a type that acknowledges on, drains are asked about."""
        subscription = self._subscription
        self._log.warning(
            "subscription.configured",
            type=configured.subscription_type,
            order=configured.order,
            previous_order=subscription.order,
            balance=configured.balance,
            consumer=consumer,
        )
        self._ledger.propose(configured)
        self._assignor.invalidate_gate()
        if tracks_acknowledgements(subscription.type) and self._poller is None:
            self.install_drain_checker(self._drain_check)

    def _is_current(self, request: m.LeaveConsumer | m.ConfirmRevoked, client_id: str) -> bool:
        known = self._subscription.consumers.get(request.consumer)
        claim = sessions.judge_claim(known, request.incarnation, client_id)
        return claim is sessions.Claim.CURRENT

    # --- draining -----------------------------------------------------------------------------------------------------

    def _undrained(self) -> frozenset[int]:
        """Return what to ask about: nothing while nobody is registered, or nothing is acknowledged at all."""
        subscription = self._subscription
        if not subscription.consumers or not tracks_acknowledgements(subscription.type):
            return frozenset()
        return undrained_sealed(self._topic.layout, subscription.drained)

    async def _run_drain_check(self, drain_check: DrainCheck, segments: frozenset[int]) -> frozenset[int]:
        # The result holds for the current positions: a seek before it arrives invalidates it.
        self._checked_seek_generation = self._subscription.seek_generation
        return await drain_check(self._subscription, segments)

    def _on_drained(self, answer: frozenset[int]) -> None:
        """Put on record what is drained, and let the children through."""
        if self._checked_seek_generation != self._subscription.seek_generation:
            return
        segments = sorted(answer & undrained_sealed(self._topic.layout, self._subscription.drained))
        if not segments:
            return
        self._ledger.propose(
            e.SegmentsDrained(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                segments=segments,
                seek_generation=self._checked_seek_generation,
            ),
        )
        now = self._loop.time()
        last = max((self._end_reached_at.pop(segment, self._started_at) for segment in segments), default=now)
        self._log.info("segments.drained", segments=segments, waited_seconds=round(now - last, 3))
        self._observer.observe(events.SegmentsDrained(count=len(segments), waited_seconds=now - last))
        self._assignor.invalidate_gate()
        # The poller goes on at its shortest pause by itself; what it has just been told needs no other question.
        self._assignor.reconcile("drained")

    def _is_end_reached(self, segment: int) -> bool:
        """Tell whether a segment is sealed, acknowledged to its end, and not on record as drained."""
        known = self._topic.layout.segments.get(segment)
        return (
            known is not None
            and known.end_offset is not None
            and segment not in self._subscription.drained
            and self._subscription.position(segment) >= known.end_offset
        )

    def _wake_poller(self) -> None:
        """Begin polling again after progress: at once if there is an end that the acknowledgements have reached."""
        if self._poller is None:
            return
        reached = [segment for segment in self._undrained() if self._is_end_reached(segment)]
        self._record_reached_ends(reached)
        if reached:
            self._poller.poll_now()
        else:
            self._poller.reset()

    def _record_reached_ends(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._end_reached_at.setdefault(segment, self._loop.time())
