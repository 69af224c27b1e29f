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
from coordinator.balancing.balance import compute_target
from coordinator.decisions.gate import Gate, compute_gate
from coordinator.ports import LedgerPort, PushMessage
from coordinator.reporting.description import build_grant
from coordinator.reporting.explanation import SegmentHolder
from coordinator.state.subscription import RegisteredConsumer, Subscription
from coordinator.state.topic_view import TopicView
from headgate.model import entries as e
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, bucket_bounds, overlaps, segment_of
from headgate.protocol import messages as m
from metrics import events

MAX_GRANTS_PER_PUSH = 1000
"""Grants in one push, so that it stays far below the largest message."""

log = structlog.get_logger(__name__)


class Assignor:
    """Who reads which segments and shares of one subscription, during one reign."""

    def __init__(
        self,
        *,
        subscription: Subscription,
        topic: TopicView,
        ledger: LedgerPort,
        push: PushMessage,
        leader_epoch: int,
        observer: events.Observer,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` returns monotonic seconds. Revocations under way count from the ledger's time or from now."""
        self._subscription = subscription
        self._topic = topic
        self._ledger = ledger
        self._push = push
        self._leader_epoch = leader_epoch
        self._observer = observer
        self._clock = clock
        self._log = log.bind(topic=topic.name, subscription=subscription.name)
        now = clock()
        self._revoking = {p: now for p, holding in subscription.holdings.items() if holding.revoked_at_ms is not None}
        """Revoked segment or share → since when this leader has known it to wait for its holder."""
        self._next_owner: dict[SegmentSlice, str] = {}
        """Revoked segment that stays whole → who gets it next."""
        self._in_handover: dict[SegmentSlice, tuple[float, e.ReleaseReason]] = {}
        """What is between two holders → since when, and how the last one let go."""
        self._gate: Gate | None = None
        self._reported_blocked = 0
        self._held_by_consumer: dict[str, list[SegmentSlice]] | None = None
        """Consumer → what it holds, revoked or not; None after a change."""

    # --- what is ------------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> Gate:
        """Which segments may be read now."""
        if self._gate is None:
            subscription, layout = self._subscription, self._topic.layout
            self._gate = compute_gate(layout, subscription.drained, subscription.type, subscription.order)
            self._report_blocked(len(self._gate.blocked))
        return self._gate

    @property
    def unfinished_segments(self) -> list[int]:
        """Segments that are not read to their end yet, blocked ones included."""
        return [*self.gate.grantable, *self.gate.blocked]

    @property
    def handovers_complete(self) -> bool:
        """Whether no segment is on its way from one holder to another."""
        return not self._revoking

    def grants(self, name: str) -> list[m.Grant]:
        """Return all that ``name`` may read; what it has been told to finish is not among it."""
        return [
            self._build_grant(segment_slice)
            for segment_slice in self._slices_held_by(name)
            if segment_slice not in self._revoking
        ]

    def holders(self) -> dict[int, list[SegmentHolder]]:
        """Return segment → who holds it or a share of it, for `coordinator.reporting.explanation`."""
        now = self._clock()
        held: dict[int, list[SegmentHolder]] = {}
        for segment_slice, holding in sorted(self._subscription.holdings.items()):
            since = self._revoking.get(segment_slice)
            each = SegmentHolder(
                consumer=holding.consumer,
                buckets=segment_slice.buckets if isinstance(segment_slice, BucketRange) else "",
                waited_seconds=None if since is None else now - since,
                next_owner=self._next_owner.get(segment_slice),
            )
            held.setdefault(segment_of(segment_slice), []).append(each)
        return held

    # --- what happens -------------------------------------------------------------------------------------------------

    def invalidate_gate(self) -> None:
        """Forget the gate: drained facts, the type or the order changed."""
        self._gate = None

    def layout_changed(self) -> None:
        """Forget segments that are gone from the layout, and the gate with them."""
        self._gate = self._held_by_consumer = None
        for known in (self._revoking, self._in_handover):
            for segment_slice in [
                segment_slice for segment_slice in known if segment_of(segment_slice) not in self._topic.layout.segments
            ]:
                del known[segment_slice]

    def holder_removed(self, name: str) -> None:
        """Note that what ``name`` holds is about to be free, because its consumer leaves the record."""
        for segment_slice in self._slices_held_by(name):
            since = self._revoking.pop(segment_slice, None)
            if since is not None:
                self._in_handover[segment_slice] = (since, "holder_left")
        self._held_by_consumer = None

    def reconcile(
        self,
        reason: str,
        *,
        preferred_owners: Mapping[SegmentSlice, Sequence[str]] | None = None,
        requester: str | None = None,
        timed_out: AbstractSet[SegmentSlice] = frozenset(),
        confirmed: AbstractSet[SegmentSlice] = frozenset(),
    ) -> None:
        """Compare what should be with what is, and do what may be done now.

        ``preferred_owners``: who should rather get what has just become free. ``requester`` learns of its grants from
        the answer to its own request. ``timed_out``: what `overdue_revocations` returned. ``confirmed``: what its
        holder has finished with.
        """
        subscription, gate = self._subscription, self.gate
        target = self._compute_target(gate, preferred_owners or {})
        moves = handover.plan(
            handover.HandoverState(
                target=target,
                holdings=subscription.holdings,
                consumers=subscription.consumers,
                retired=gate.retired,
                confirmed=confirmed,
                timed_out=timed_out,
            ),
        )
        self._apply_moves(moves, reason, requester)
        self._next_owner = {
            segment_slice: target[segment_slice] for segment_slice in self._revoking if segment_slice in target
        }

    def confirm(self, segment: int, name: str, generation: int) -> None:
        """Pass a revoked segment on, now that its holder has finished; anything else changes nothing."""
        segment_slice = self._subscription.held_at(segment, generation)
        if segment_slice not in self._revoking or self._subscription.holdings[segment_slice].consumer != name:
            return
        if segment_slice not in self._next_owner:
            # It is cut, or joined with others: what is granted now depends on who else has let go.
            self.reconcile("confirmed", confirmed={segment_slice})
            return
        # Who gets it was decided by the last look, and nothing changed since: no need to look at all segments again.
        state = handover.HandoverState(
            target={segment_slice: self._next_owner[segment_slice]},
            holdings={segment_slice: self._subscription.holdings[segment_slice]},
            consumers=self._subscription.consumers,
            confirmed={segment_slice},
        )
        self._apply_moves(handover.plan(state), "confirmed", None)

    def release_all(self) -> dict[SegmentSlice, Sequence[str]]:
        """Take everything from everybody, because positions moved; return who held it."""
        former = {segment_slice: (holding.consumer,) for segment_slice, holding in self._subscription.holdings.items()}
        self._gate = None
        releases: list[tuple[SegmentSlice, e.ReleaseReason]] = [
            (segment_slice, "rewound") for segment_slice in sorted(former)
        ]
        self._apply_moves(handover.Moves(releases=tuple(releases)), "positions changed", None)
        return dict(former)

    def release_pruned(self, segments: Iterable[int]) -> None:
        """Take ``segments``, which are about to be pruned, from whoever holds them; nobody gets them."""
        pruned = set(segments)
        releases: list[tuple[SegmentSlice, e.ReleaseReason]] = [
            (segment_slice, "pruned")
            for segment_slice in sorted(self._subscription.holdings)
            if segment_of(segment_slice) in pruned
        ]
        for segment_slice, _ in releases:
            self._revoking.pop(segment_slice, None)
        self._apply_moves(handover.Moves(releases=tuple(releases)), "pruned", None)

    def overdue_revocations(self, now_ms: int, timeout_seconds: float) -> frozenset[SegmentSlice]:
        """Return the revoked segments and shares whose holder did not confirm in time."""
        now = self._clock()
        return handover.timed_out(
            self._subscription.holdings,
            now_ms=now_ms,
            timeout_seconds=timeout_seconds,
            waited_seconds={segment_slice: now - since for segment_slice, since in self._revoking.items()},
        )

    def resend(self, name: str, known: Iterable[tuple[int, int]] | None) -> None:
        """Send again what ``name`` may have missed.

        ``known`` is what it says it has, as (segment, generation). None: it does not say; then only revocations
        that wait for its confirmation are sent again.
        """
        holdings = self._subscription.holdings
        revoked = [self._build_revocation(p) for p in sorted(self._revoking) if holdings[p].consumer == name]
        granted: list[m.Grant] = []
        if known is not None:
            said = set(known)
            granted = [grant for grant in self.grants(name) if (grant.segment, grant.generation) not in said]
            mine = {
                (segment_of(segment_slice), holdings[segment_slice].generation)
                for segment_slice in self._slices_held_by(name)
            }
            revoked += [m.Revocation(segment=s, generation=g, final=True) for s, g in sorted(said - mine)]
        if granted or revoked:
            self._notify(self._subscription.consumers[name], granted, revoked)

    def close(self) -> None:
        """Take this subscription's blocked segments off the count."""
        self._report_blocked(0)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _compute_target(
        self, gate: Gate, preferred_owners: Mapping[SegmentSlice, Sequence[str]]
    ) -> dict[SegmentSlice, str]:
        holdings = self._subscription.holdings
        return compute_target(
            self._subscription,
            self._topic.layout,
            gate.grantable,
            {name: consumer.supports_bucket_ranges for name, consumer in self._subscription.consumers.items()},
            {held: holding.consumer for held, holding in holdings.items() if held not in self._revoking},
            all_holders={held: holding.consumer for held, holding in holdings.items()},
            preferred_owners=preferred_owners,
        )

    def _apply_moves(self, moves: handover.Moves, reason: str, requester: str | None) -> None:
        if not moves:
            return
        holdings, consumers = self._subscription.holdings, self._subscription.consumers
        revoked: dict[str, list[m.Revocation]] = {}
        for segment_slice, how in moves.releases:
            if how != "confirmed":
                revoked.setdefault(holdings[segment_slice].consumer, []).append(
                    self._build_revocation(segment_slice, final=True)
                )
        for segment_slice in moves.revocations:
            revoked.setdefault(holdings[segment_slice].consumer, []).append(self._build_revocation(segment_slice))
        self._propose_moves(moves)
        self._record_moves(moves)
        granted: dict[str, list[SegmentSlice]] = {}
        for segment_slice, name in moves.grants:
            if name != requester:
                granted.setdefault(name, []).append(segment_slice)
        for name in sorted(consumers.keys() & (revoked.keys() | granted.keys())):
            self._notify(consumers[name], [self._build_grant(p) for p in granted.get(name, ())], revoked.get(name, []))
        self._log.info(
            "assignment.changed",
            reason=reason,
            released=len(moves.releases),
            revoked=len(moves.revocations),
            granted=len(moves.grants),
            blocked=len(self.gate.blocked),
        )

    def _propose_moves(self, moves: handover.Moves) -> None:
        holdings = self._subscription.holdings
        entries: list[e.AnyEntry] = [
            e.SegmentReleased(
                **self._entry_fields(segment_slice), generation=holdings[segment_slice].generation, reason=how
            )
            for segment_slice, how in moves.releases
        ]
        entries += [
            e.SegmentRevoked(**self._entry_fields(segment_slice), generation=holdings[segment_slice].generation)
            for segment_slice in moves.revocations
        ]
        entries += [
            e.SegmentGranted(**self._entry_fields(segment_slice), consumer=name, generation=generation)
            for generation, (segment_slice, name) in enumerate(moves.grants, self._subscription.next_generation)
        ]
        self._ledger.propose(*entries)
        self._held_by_consumer = None

    def _entry_fields(self, segment_slice: SegmentSlice) -> dict[str, int]:
        """Return the fields by which an entry names ``segment_slice`` of this subscription."""
        first_bucket, end_bucket = bucket_bounds(segment_slice)
        return {
            "topic_id": self._topic.topic_id,
            "subscription_id": self._subscription.subscription_id,
            "segment": segment_of(segment_slice),
            "first_bucket": first_bucket,
            "end_bucket": end_bucket,
        }

    def _record_moves(self, moves: handover.Moves) -> None:
        """Keep the time of what is under way, and tell the observer."""
        now = self._clock()
        for segment_slice, how in moves.releases:
            since = self._revoking.pop(segment_slice, None)
            if since is not None and how != "drained":
                self._in_handover[segment_slice] = (since, how)
        for segment_slice in moves.revocations:
            self._revoking[segment_slice] = now
            self._observer.observe(events.SegmentRevoked())
        for segment_slice, _ in moves.grants:
            self._observer.observe(events.SegmentGranted())
            for moved in (
                [segment_slice]
                if segment_slice in self._in_handover
                else [p for p in self._in_handover if overlaps(p, segment_slice)]
            ):
                since, how = self._in_handover.pop(moved)
                self._observer.observe(events.HandoverFinished(seconds=now - since, reason=how))

    def _notify(self, consumer: RegisteredConsumer, granted: list[m.Grant], revoked: list[m.Revocation]) -> None:
        for begin in range(0, max(len(granted), 1), MAX_GRANTS_PER_PUSH):
            message = m.AssignmentChanged(
                topic=self._topic.name,
                subscription=self._subscription.name,
                consumer=consumer.consumer,
                incarnation=consumer.incarnation,
                leader_epoch=self._leader_epoch,
                granted=granted[begin : begin + MAX_GRANTS_PER_PUSH],
                revoked=revoked if begin == 0 else [],
            )
            self._push(consumer.client_id, message)

    def _build_grant(self, segment_slice: SegmentSlice) -> m.Grant:
        return build_grant(self._subscription, self._topic, segment_slice)

    def _build_revocation(self, segment_slice: SegmentSlice, *, final: bool = False) -> m.Revocation:
        first_bucket, end_bucket = bucket_bounds(segment_slice)
        return m.Revocation(
            segment=segment_of(segment_slice),
            generation=self._subscription.holdings[segment_slice].generation,
            final=final,
            first_bucket=first_bucket,
            end_bucket=end_bucket,
        )

    def _slices_held_by(self, name: str) -> list[SegmentSlice]:
        if self._held_by_consumer is None:
            self._held_by_consumer = {}
            for segment_slice in sorted(self._subscription.holdings):
                self._held_by_consumer.setdefault(self._subscription.holdings[segment_slice].consumer, []).append(
                    segment_slice
                )
        return self._held_by_consumer.get(name, [])

    def _report_blocked(self, count: int) -> None:
        if count != self._reported_blocked:
            self._observer.observe(events.BlockedSegmentsChanged(change=count - self._reported_blocked))
            self._reported_blocked = count
