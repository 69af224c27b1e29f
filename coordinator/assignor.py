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

from coordinator.balancing import handover
from coordinator.balancing.affinity import heirs_of
from coordinator.balancing.balance import owners
from coordinator.balancing.bucket_split import pools
from coordinator.decisions.gate import Gate, open_gate
from coordinator.ports import CoordinatorObserver, LedgerPort
from coordinator.reporting.description import grant_of
from coordinator.reporting.explanation import Held
from coordinator.state.subscription import RegisteredConsumer, Subscription
from coordinator.state.topic_view import TopicView
from headgate.model import entries as e
from headgate.model.bucket_ranges import Place, Share, bounds_of, overlap, segment_of
from headgate.protocol import messages as m

GRANTS_PER_PUSH = 1000
"""Grants in one push, so that it stays far below the largest message."""

log = structlog.get_logger(__name__)


class Assignment:
    """Who reads which segments and shares of one subscription, during one reign."""

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
        self._revoking = {p: now for p, holding in subscription.holdings.items() if holding.revoked_at_ms is not None}
        """Revoked segment or share → since when this leader has known it to wait for its holder."""
        self._promised: dict[Place, str] = {}
        """Revoked segment that stays whole → who gets it next."""
        self._moving: dict[Place, tuple[float, e.ReleaseReason]] = {}
        """What is between two holders → since when, and how the last one let go."""
        self._gate: Gate | None = None
        self._blocked_told = 0
        self._held: dict[str, list[Place]] | None = None
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
    def unread(self) -> list[int]:
        """Segments that are not read to their end yet, blocked ones included."""
        return [*self.gate.grantable, *self.gate.blocked]

    @property
    def settled(self) -> bool:
        """Whether no segment is on its way from one holder to another."""
        return not self._revoking

    def grants(self, name: str) -> list[m.Grant]:
        """Return all that ``name`` may read; what it has been told to finish is not among it."""
        return [self._grant(place) for place in self._held_by(name) if place not in self._revoking]

    def held(self) -> dict[int, list[Held]]:
        """Return segment → who holds it or a share of it, for `coordinator.reporting.explanation`."""
        now = self._clock()
        held: dict[int, list[Held]] = {}
        for place, holding in sorted(self._subscription.holdings.items()):
            since = self._revoking.get(place)
            each = Held(
                consumer=holding.consumer,
                buckets=place.buckets if isinstance(place, Share) else "",
                waited_seconds=None if since is None else now - since,
                heir=self._promised.get(place),
            )
            held.setdefault(segment_of(place), []).append(each)
        return held

    # --- what happens -------------------------------------------------------------------------------------------------

    def facts_changed(self) -> None:
        """Forget the gate: drained facts, the type or the order changed."""
        self._gate = None

    def layout_changed(self) -> None:
        """Forget segments that are gone from the layout, and the gate with them."""
        self._gate = self._held = None
        for known in (self._revoking, self._moving):
            for place in [place for place in known if segment_of(place) not in self._topic.layout.segments]:
                del known[place]

    def holder_gone(self, name: str) -> None:
        """Note that what ``name`` holds is about to be free, because its consumer leaves the record."""
        for place in self._held_by(name):
            since = self._revoking.pop(place, None)
            if since is not None:
                self._moving[place] = (since, "holder_left")
        self._held = None

    def look(
        self,
        reason: str,
        *,
        heirs: Mapping[Place, Sequence[str]] | None = None,
        answered: str | None = None,
        timed_out: AbstractSet[Place] = frozenset(),
        confirmed: AbstractSet[Place] = frozenset(),
    ) -> None:
        """Compare what should be with what is, and do what may be done now.

        ``heirs``: who should rather get what has just become free. ``answered`` learns of its grants from the answer to
        its own request. ``timed_out``: what `late` returned. ``confirmed``: what its holder has finished with.
        """
        subscription, gate = self._subscription, self.gate
        target = self._target(gate, heirs or {})
        moves = handover.plan(
            handover.Standing(
                target=target,
                holdings=subscription.holdings,
                consumers=subscription.consumers,
                retired=gate.retired,
                confirmed=confirmed,
                timed_out=timed_out,
            ),
        )
        self._carry_out(moves, reason, answered)
        self._promised = {place: target[place] for place in self._revoking if place in target}

    def confirm(self, segment: int, name: str, generation: int) -> None:
        """Pass a revoked segment on, now that its holder has finished; anything else changes nothing."""
        place = self._subscription.held_at(segment, generation)
        if place not in self._revoking or self._subscription.holdings[place].consumer != name:
            return
        if place not in self._promised:
            # It is cut, or joined with others: what is granted now depends on who else has let go.
            self.look("confirmed", confirmed={place})
            return
        # Who gets it was decided by the last look, and nothing changed since: no need to look at all segments again.
        standing = handover.Standing(
            target={place: self._promised[place]},
            holdings={place: self._subscription.holdings[place]},
            consumers=self._subscription.consumers,
            confirmed={place},
        )
        self._carry_out(handover.plan(standing), "confirmed", None)

    def rewind(self) -> dict[Place, Sequence[str]]:
        """Take everything from everybody, because positions moved; return who held it."""
        former = {place: (holding.consumer,) for place, holding in self._subscription.holdings.items()}
        self._gate = None
        releases: list[tuple[Place, e.ReleaseReason]] = [(place, "rewound") for place in sorted(former)]
        self._carry_out(handover.Moves(releases=tuple(releases)), "sought", None)
        return dict(former)

    def let_go(self, segments: Iterable[int]) -> None:
        """Take ``segments``, which are about to be pruned, from whoever holds them; nobody gets them."""
        pruned = set(segments)
        releases: list[tuple[Place, e.ReleaseReason]] = [
            (place, "pruned") for place in sorted(self._subscription.holdings) if segment_of(place) in pruned
        ]
        for place, _ in releases:
            self._revoking.pop(place, None)
        self._carry_out(handover.Moves(releases=tuple(releases)), "pruned", None)

    def late(self, now_ms: int, timeout_seconds: float) -> frozenset[Place]:
        """Return the revoked segments and shares whose holder did not confirm in time."""
        now = self._clock()
        return handover.timed_out(
            self._subscription.holdings,
            now_ms=now_ms,
            timeout_seconds=timeout_seconds,
            waited_seconds={place: now - since for place, since in self._revoking.items()},
        )

    def push_again(self, name: str, known: Iterable[tuple[int, int]] | None) -> None:
        """Send again what ``name`` may have missed.

        ``known`` is what it says it has, as (segment, generation). None: it does not say; then only revocations
        that wait for its confirmation are sent again.
        """
        holdings = self._subscription.holdings
        revoked = [self._revocation(p) for p in sorted(self._revoking) if holdings[p].consumer == name]
        granted: list[m.Grant] = []
        if known is not None:
            said = set(known)
            granted = [grant for grant in self.grants(name) if (grant.segment, grant.generation) not in said]
            mine = {(segment_of(place), holdings[place].generation) for place in self._held_by(name)}
            revoked += [m.Revocation(segment=s, generation=g, final=True) for s, g in sorted(said - mine)]
        if granted or revoked:
            self._push(self._subscription.consumers[name], granted, revoked)

    def close(self) -> None:
        """Take this subscription's blocked segments off the count."""
        self._tell_blocked(0)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _target(self, gate: Gate, heirs: Mapping[Place, Sequence[str]]) -> dict[Place, str]:
        """Return what should be read by whom, with segments cut where there are more consumers than segments."""
        subscription = self._subscription
        holders = {p: holding.consumer for p, holding in subscription.holdings.items() if p not in self._revoking}
        everybody = {place: holding.consumer for place, holding in subscription.holdings.items()}
        able = {name: consumer.shares for name, consumer in subscription.consumers.items()}
        target: dict[Place, str] = {}
        for pool in pools(subscription.type, gate.grantable, able, holders):
            wanted = {**heirs_of(everybody, self._topic.layout, pool.places), **heirs}
            target |= owners(subscription, pool, holders, wanted)
        return target

    def _carry_out(self, moves: handover.Moves, reason: str, answered: str | None) -> None:
        if not moves:
            return
        holdings, consumers = self._subscription.holdings, self._subscription.consumers
        revoked: dict[str, list[m.Revocation]] = {}
        for place, how in moves.releases:
            if how != "confirmed":
                revoked.setdefault(holdings[place].consumer, []).append(self._revocation(place, final=True))
        for place in moves.revocations:
            revoked.setdefault(holdings[place].consumer, []).append(self._revocation(place))
        self._propose(moves)
        self._note(moves)
        granted: dict[str, list[Place]] = {}
        for place, name in moves.grants:
            if name != answered:
                granted.setdefault(name, []).append(place)
        for name in sorted(consumers.keys() & (revoked.keys() | granted.keys())):
            self._push(consumers[name], [self._grant(p) for p in granted.get(name, ())], revoked.get(name, []))
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
            e.SegmentReleased(**self._named(place), generation=holdings[place].generation, reason=how)
            for place, how in moves.releases
        ]
        entries += [
            e.SegmentRevoked(**self._named(place), generation=holdings[place].generation) for place in moves.revocations
        ]
        entries += [
            e.SegmentGranted(**self._named(place), consumer=name, generation=generation)
            for generation, (place, name) in enumerate(moves.grants, self._subscription.next_generation)
        ]
        self._ledger.propose(*entries)
        self._held = None

    def _named(self, place: Place) -> dict[str, int]:
        """Return the fields by which an entry names ``place`` of this subscription."""
        first_bucket, end_bucket = bounds_of(place)
        return {
            "topic_id": self._topic.topic_id,
            "subscription_id": self._subscription.subscription_id,
            "segment": segment_of(place),
            "first_bucket": first_bucket,
            "end_bucket": end_bucket,
        }

    def _note(self, moves: handover.Moves) -> None:
        """Keep the time of what is under way, and tell the observer."""
        now = self._clock()
        for place, how in moves.releases:
            since = self._revoking.pop(place, None)
            if since is not None and how != "drained":
                self._moving[place] = (since, how)
        for place in moves.revocations:
            self._revoking[place] = now
            self._observer.segment_revoked()
        for place, _ in moves.grants:
            self._observer.segment_granted()
            for moved in [place] if place in self._moving else [p for p in self._moving if overlap(p, place)]:
                since, how = self._moving.pop(moved)
                self._observer.handover_finished(now - since, how)

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

    def _grant(self, place: Place) -> m.Grant:
        return grant_of(self._subscription, self._topic, place)

    def _revocation(self, place: Place, *, final: bool = False) -> m.Revocation:
        first_bucket, end_bucket = bounds_of(place)
        return m.Revocation(
            segment=segment_of(place),
            generation=self._subscription.holdings[place].generation,
            final=final,
            first_bucket=first_bucket,
            end_bucket=end_bucket,
        )

    def _held_by(self, name: str) -> list[Place]:
        if self._held is None:
            self._held = {}
            for place in sorted(self._subscription.holdings):
                self._held.setdefault(self._subscription.holdings[place].consumer, []).append(place)
        return self._held.get(name, [])

    def _tell_blocked(self, count: int) -> None:
        if count != self._blocked_told:
            self._observer.blocked_changed(count - self._blocked_told)
            self._blocked_told = count
