"""Carry out what gate, target and handover decide for one subscription: entries for the ledger, pushes to consumers.

One look follows every event. It asks the three pure modules, proposes their moves and tells the consumers concerned
what they gain and lose: differences only, each with its generation and this reign's epoch. A look that finds nothing
to do does nothing, so looking once too often is harmless.

What is kept between two looks (the gate of this layout, who is promised what, since when a holder is waited for) could
be worked out anew from the `Subscription` and the topic; it is never the only copy of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import structlog

from coordinator import handover
from coordinator.description import grant_of
from coordinator.gate import Gate, nearest_ancestors, open_gate
from coordinator.ports import CoordinatorObserver, LedgerPort
from coordinator.subscription import RegisteredConsumer, Subscription
from coordinator.target import Situation, assign
from coordinator.topic_view import TopicView
from headgate import entries as e
from headgate import messages as m

GRANTS_PER_PUSH = 1000
"""Grants in one push, so that it stays far below the largest message."""

log = structlog.get_logger(__name__)


class Assignment:
    """Who reads which segment of one subscription, during one reign."""

    def __init__(
        self,
        *,
        subscription: Subscription,
        topic: TopicView,
        ledger: LedgerPort,
        leader_epoch: int,
        observer: CoordinatorObserver,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` returns monotonic seconds. Revocations under way count from the ledger's time or from now."""
        self._subscription = subscription
        self._topic = topic
        self._ledger = ledger
        self._leader_epoch = leader_epoch
        self._observer = observer
        self._clock = clock
        self._log = log.bind(topic=topic.name, subscription=subscription.name)
        now = clock()
        self._revoking = {s: now for s, holding in subscription.holdings.items() if holding.revoked_at_ms is not None}
        """Revoked segment → since when this leader has known it to wait for its holder."""
        self._promised: dict[int, str] = {}
        """Revoked segment → who gets it next."""
        self._moving: dict[int, tuple[float, e.ReleaseReason]] = {}
        """Segment between two holders → since when, and how the last one let go."""
        self._gate: Gate | None = None
        self._blocked_told = 0
        self._held: dict[str, list[int]] | None = None
        """Consumer → what it holds, revoked or not; None after a change."""

    # --- what is ------------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """Which segments may be read now."""
        if self._gate is None:
            subscription, layout = self._subscription, self._topic.layout
            self._gate = open_gate(layout, subscription.drained, subscription.type, subscription.order)
            self._tell_blocked(len(self._gate.blocked))
        return self._gate

    @property
    def settled(self) -> bool:
        """Whether no segment is on its way from one holder to another."""
        return not self._revoking

    def grants(self, name: str) -> list[m.Grant]:
        """Return all that ``name`` may read; what it has been told to finish is not among it."""
        return [self._grant(segment) for segment in self._held_by(name) if segment not in self._revoking]

    # --- what happens -------------------------------------------------------------------------------------------------

    def facts_changed(self) -> None:
        """Forget the gate: drained facts, the type or the order changed."""
        self._gate = None

    def layout_changed(self) -> None:
        """Forget segments that are gone from the layout, and the gate with them."""
        self._gate = self._held = None
        for known in (self._revoking, self._moving):
            for segment in [segment for segment in known if segment not in self._topic.layout.segments]:
                del known[segment]

    def holder_gone(self, name: str) -> None:
        """Note that what ``name`` holds is about to be free, because its consumer leaves the record."""
        for segment in self._held_by(name):
            since = self._revoking.pop(segment, None)
            if since is not None:
                self._moving[segment] = (since, "holder_left")
        self._held = None

    def look(
        self,
        reason: str,
        *,
        heirs: Mapping[int, Sequence[str]] | None = None,
        answered: str | None = None,
        timed_out: AbstractSet[int] = frozenset(),
    ) -> None:
        """Compare what should be with what is, and do what may be done now.

        ``heirs``: who should rather get a segment that has just become free. ``answered`` learns of its grants
        from the answer to its own request. ``timed_out``: what `late` returned.
        """
        subscription, gate = self._subscription, self.gate
        target = assign(
            Situation(
                grantable=gate.grantable,
                consumers=subscription.consumers,
                holders={
                    s: holding.consumer for s, holding in subscription.holdings.items() if s not in self._revoking
                },
                heirs={**self._heirs(gate), **(heirs or {})},
            ),
        )
        moves = handover.plan(
            handover.Standing(
                target=target,
                holdings=subscription.holdings,
                consumers=subscription.consumers,
                retired=gate.retired,
                timed_out=timed_out,
            ),
        )
        self._carry_out(moves, reason, answered)
        self._promised = {segment: target[segment] for segment in self._revoking if segment in target}

    def confirm(self, segment: int, name: str, generation: int) -> None:
        """Pass a revoked segment on, now that its holder has finished; anything else changes nothing."""
        holding = self._subscription.holdings.get(segment)
        if holding is None or (holding.consumer, holding.generation) != (name, generation):
            return
        if segment not in self._revoking:
            return
        # Who gets it was decided by the last look, and nothing changed since: no need to look at all segments again.
        standing = handover.Standing(
            target={segment: self._promised[segment]} if segment in self._promised else {},
            holdings={segment: holding},
            consumers=self._subscription.consumers,
            confirmed={segment},
        )
        self._carry_out(handover.plan(standing), "confirmed", None)

    def rewind(self) -> dict[int, Sequence[str]]:
        """Take everything from everybody, because positions moved; return who held it."""
        former = {segment: (holding.consumer,) for segment, holding in self._subscription.holdings.items()}
        self._gate = None
        releases: list[tuple[int, e.ReleaseReason]] = [(segment, "rewound") for segment in sorted(former)]
        self._carry_out(handover.Moves(releases=tuple(releases)), "sought", None)
        return dict(former)

    def late(self, now_ms: int, timeout_seconds: float) -> frozenset[int]:
        """Return the revoked segments whose holder did not confirm in time."""
        now = self._clock()
        return handover.timed_out(
            self._subscription.holdings,
            now_ms=now_ms,
            timeout_seconds=timeout_seconds,
            waited_seconds={segment: now - since for segment, since in self._revoking.items()},
        )

    def push_again(self, name: str, known: Iterable[tuple[int, int]] | None) -> None:
        """Send again what ``name`` may have missed.

        ``known`` is what it says it has, as (segment, generation). None: it does not say; then only revocations
        that wait for its confirmation are sent again.
        """
        holdings = self._subscription.holdings
        revoked = [self._revocation(s) for s in sorted(self._revoking) if holdings[s].consumer == name]
        granted: list[m.Grant] = []
        if known is not None:
            said = set(known)
            granted = [grant for grant in self.grants(name) if (grant.segment, grant.generation) not in said]
            mine = {(segment, holdings[segment].generation) for segment in self._held_by(name)}
            revoked += [m.Revocation(segment=s, generation=g, final=True) for s, g in sorted(said - mine)]
        if granted or revoked:
            self._push(self._subscription.consumers[name], granted, revoked)

    def close(self) -> None:
        """Take this subscription's blocked segments off the count."""
        self._tell_blocked(0)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _heirs(self, gate: Gate) -> dict[int, Sequence[str]]:
        """Return for each free child who holds, or held until this very look, its nearest held ancestors."""
        holdings, layout = self._subscription.holdings, self._topic.layout
        heirs: dict[int, Sequence[str]] = {}
        for segment in gate.grantable:
            if segment in holdings or not layout.segments[segment].parents:
                continue
            for generation in nearest_ancestors(layout, segment):
                names = [holdings[ancestor].consumer for ancestor in generation if ancestor in holdings]
                if names:
                    heirs[segment] = names
                    break
        return heirs

    def _carry_out(self, moves: handover.Moves, reason: str, answered: str | None) -> None:
        if not moves:
            return
        holdings, consumers = self._subscription.holdings, self._subscription.consumers
        revoked: dict[str, list[m.Revocation]] = {}
        for segment, how in moves.releases:
            if how != "confirmed":
                revoked.setdefault(holdings[segment].consumer, []).append(self._revocation(segment, final=True))
        for segment in moves.revocations:
            revoked.setdefault(holdings[segment].consumer, []).append(self._revocation(segment))
        self._propose(moves)
        self._note(moves)
        granted: dict[str, list[int]] = {}
        for segment, name in moves.grants:
            if name != answered:
                granted.setdefault(name, []).append(segment)
        for name in sorted(consumers.keys() & (revoked.keys() | granted.keys())):
            self._push(consumers[name], [self._grant(s) for s in granted.get(name, ())], revoked.get(name, []))
        self._log.info(
            "assignment.changed",
            reason=reason,
            released=len(moves.releases),
            revoked=len(moves.revocations),
            granted=len(moves.grants),
            blocked=len(self.gate.blocked),
        )

    def _propose(self, moves: handover.Moves) -> None:
        holdings = self._subscription.holdings
        entries: list[e.AnyEntry] = [
            e.SegmentReleased(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                segment=segment,
                generation=holdings[segment].generation,
                reason=how,
            )
            for segment, how in moves.releases
        ]
        entries += [
            e.SegmentRevoked(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                segment=segment,
                generation=holdings[segment].generation,
            )
            for segment in moves.revocations
        ]
        entries += [
            e.SegmentGranted(
                topic_id=self._topic.topic_id,
                subscription_id=self._subscription.subscription_id,
                segment=segment,
                consumer=name,
                generation=generation,
            )
            for generation, (segment, name) in enumerate(moves.grants, self._subscription.next_generation)
        ]
        self._ledger.propose(*entries)
        self._held = None

    def _note(self, moves: handover.Moves) -> None:
        """Keep the time of what is under way, and tell the observer."""
        now = self._clock()
        for segment, how in moves.releases:
            since = self._revoking.pop(segment, None)
            if since is not None and how != "drained":
                self._moving[segment] = (since, how)
        for segment in moves.revocations:
            self._revoking[segment] = now
            self._observer.segment_revoked()
        for segment, _ in moves.grants:
            self._observer.segment_granted()
            moved = self._moving.pop(segment, None)
            if moved is not None:
                self._observer.handover_finished(now - moved[0], moved[1])

    def _push(self, consumer: RegisteredConsumer, granted: list[m.Grant], revoked: list[m.Revocation]) -> None:
        for begin in range(0, max(len(granted), 1), GRANTS_PER_PUSH):
            message = m.AssignmentChanged(
                topic=self._topic.name,
                subscription=self._subscription.name,
                consumer=consumer.consumer,
                incarnation=consumer.incarnation,
                leader_epoch=self._leader_epoch,
                granted=granted[begin : begin + GRANTS_PER_PUSH],
                revoked=revoked if begin == 0 else [],
            )
            self._ledger.push(consumer.client_id, message)

    def _grant(self, segment: int) -> m.Grant:
        return grant_of(self._subscription, self._topic, segment)

    def _revocation(self, segment: int, *, final: bool = False) -> m.Revocation:
        return m.Revocation(segment=segment, generation=self._subscription.holdings[segment].generation, final=final)

    def _held_by(self, name: str) -> list[int]:
        if self._held is None:
            self._held = {}
            for segment, holding in sorted(self._subscription.holdings.items()):
                self._held.setdefault(holding.consumer, []).append(segment)
        return self._held.get(name, [])

    def _tell_blocked(self, count: int) -> None:
        if count != self._blocked_told:
            self._observer.blocked_changed(count - self._blocked_told)
            self._blocked_told = count
