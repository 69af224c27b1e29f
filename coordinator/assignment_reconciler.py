"""Applies what gate, target and handover decide for one subscription: entries and messages.

Each event is followed by one idempotent reconciliation, which sends each affected consumer its differences. The state
kept between reconciliations is a cache: it can be recomputed from the `Subscription` and the topic.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from types import MappingProxyType

import structlog
from msgspec.structs import replace

from coordinator.context import SubscriptionContext
from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, overlaps, segment_of, slice_fields
from headgate.protocol.replies import AssignmentChanged, Grant, Revocation
from metrics import events
from metrics.label_values import HandoverReason
from shard.balancing import handover
from shard.balancing.balance import compute_target
from shard.reporting.description import build_grant
from shard.reporting.explanation import SegmentHolder
from shard.state.consumers import Holding, RegisteredConsumer
from shard.subscriptions.gate import Gate, blocked_since_ms, compute_gate, is_gated

MAX_GRANTS_PER_PUSH = 1000
"""Limit that keeps a message far below the maximum message size."""
MAX_MOVES_PER_TURN = 200
"""Releases, revocations and grants that one turn of the event loop makes at most: about 5 ms, besides the target."""
MAX_REPEATED_GRANTS = 1000
"""Grants that one heartbeat repeats at most, and as many revocations. The next heartbeat repeats more."""

NO_HOLDERS: Mapping[SegmentSlice, str] = MappingProxyType({})
CONFIRMED = "confirmed"
"""The reason of moves that follow from the confirmation of revocations."""

log = structlog.get_logger(__name__)


class AssignmentReconciler:
    """The assignment of one subscription during one leader term."""

    def __init__(self, context: SubscriptionContext, record_uncounted: Callable[[], bool]) -> None:
        """``record_uncounted``: see `DrainMonitor.record_uncounted`."""
        self._context = context
        self._record_uncounted = record_uncounted
        self._subscription, self._topic = subscription, topic = context.subscription, context.topic
        self._clock = asyncio.get_running_loop().time
        self._waiting_preferences: dict[SegmentSlice, Sequence[str]] | None = None
        """Preferred owners of a reconciliation that continues in a later turn; None: none does."""
        self._closed = False
        self._log = log.bind(topic=topic.name, subscription=subscription.name)
        now = self._clock()
        self._revoking = {
            held: now for held, holding in subscription.holdings.items() if holding.revoked_at_ms is not None
        }
        """Revoked slice → since when this leader has waited for its holder."""
        self._next_owner: dict[SegmentSlice, str] = {}
        """Revoked slice that is not divided or joined → its next owner."""
        self._in_handover: dict[SegmentSlice, tuple[float, HandoverReason]] = {}
        """Slice between two holders → when its revocation started, and why it was released."""
        self._withdrawn: frozenset[int] = frozenset()
        """Segments that are pruned once they have no holder."""
        self._gate: Gate | None = None
        self._blocked_since_ms: int | None = None
        self._held_by_consumer: dict[str, list[SegmentSlice]] | None = None
        """Consumer → the slices it holds, revoked ones included; None after a change."""

    # Queries

    @property
    def gate(self) -> Gate:
        if self._gate is None:
            subscription, layout = self._subscription, self._topic.layout
            self._gate = compute_gate(layout, subscription.drained, subscription.type, subscription.order)
            self._blocked_since_ms = blocked_since_ms(layout, self._gate.blocked, subscription.gated_since_ms)
        return self._gate

    @property
    def blocked_since_ms(self) -> int | None:
        """Ledger time since which the longest blocked segment is blocked; None: none is."""
        return self._blocked_since_ms if self.gate.blocked else None

    def blocking_segments(self) -> list[int]:
        """Return the readable segments that block others. The others do not advance."""
        if not self.gate.blocked:
            return []
        return [s for s in self.gate.grantable if self._topic.layout.segments[s].children]

    @property
    def handovers_complete(self) -> bool:
        """Whether no revocation is pending, and no move waits for a later turn."""
        return not self._revoking and self._waiting_preferences is None

    def grants(self, name: str) -> list[Grant]:
        """Return the grants of ``name``, without revoked ones."""
        return self._build_grants(held for held in self._slices_held_by(name) if held not in self._revoking)

    def holders(self) -> dict[int, list[SegmentHolder]]:
        """Return segment → its holders, for `shard.reporting.explanation`."""
        now = self._clock()
        held: defaultdict[int, list[SegmentHolder]] = defaultdict(list)
        for segment_slice, holding in sorted(self._subscription.holdings.items()):
            each = SegmentHolder(consumer=holding.consumer, segment_slice=segment_slice)
            if holding.revoked_at_ms is not None:
                since = self._revoking.get(segment_slice)
                each = replace(
                    each,
                    waited_seconds=None if since is None else now - since,
                    revoked_at_ms=holding.revoked_at_ms,
                    next_owner=self._next_owner.get(segment_slice),
                )
            held[segment_of(segment_slice)].append(each)
        return held

    # Events

    def invalidate_gate(self) -> None:
        """Recompute the gate, and who is next, on next use: drained segments, the type or the order changed."""
        self._gate = None
        self._next_owner.clear()

    def layout_changed(self) -> None:
        """Drop what is outdated after a split, merge or prune, already applied.

        `SubscriptionCoordinator.adapt` must follow.
        """
        self._gate = self._held_by_consumer = None
        self._withdrawn = frozenset(self._topic.layout.segments.keys() & self._withdrawn)
        self._next_owner.clear()
        for known in (self._revoking, self._in_handover):
            for pruned in [each for each in known if segment_of(each) not in self._topic.layout.segments]:
                del known[pruned]

    def holder_removed(self, name: str) -> None:
        """Record that the holdings of ``name`` are about to be released, because the consumer is removed."""
        for segment_slice in self._slices_held_by(name):
            since = self._revoking.pop(segment_slice, None)
            if since is not None:
                self._in_handover[segment_slice] = (since, "holder_left")
        if self._held_by_consumer is not None:
            self._held_by_consumer.pop(name, None)

    def reconcile(
        self,
        reason: str,
        *,
        preferred_owners: Mapping[SegmentSlice, Sequence[str]] | None = None,
        requester: str | None = None,
        timed_out: AbstractSet[SegmentSlice] = frozenset(),
        stalled: Mapping[SegmentSlice, str] = NO_HOLDERS,
        confirmed: AbstractSet[SegmentSlice] = frozenset(),
    ) -> None:
        """Record what is drained without a count, compare the holdings with the target, and make all moves allowed now.

        ``preferred_owners`` override affinity for slices that have just become free. ``requester``
        learns its grants from the response to its own request. ``timed_out`` comes from
        `overdue_revocations`, ``stalled`` from `ProgressMonitor.check`. ``confirmed``: slices whose
        holder has finished. At most `MAX_MOVES_PER_TURN` moves are made; a later turn makes the others.
        """
        if self._record_uncounted():
            self.invalidate_gate()
        subscription, gate = self._subscription, self.gate
        preferred = {**(self._waiting_preferences or {}), **(preferred_owners or {})}
        target = self._compute_target(gate, preferred, stalled)
        moves = handover.plan(
            handover.HandoverState(
                target=target,
                holdings=subscription.holdings,
                consumers=subscription.consumers,
                retired=gate.retired,
                confirmed=confirmed,
                timed_out=timed_out,
                stalled=stalled,
            )
        )
        now = moves.first(MAX_MOVES_PER_TURN)
        if now != moves:
            self._continue_later(preferred)
        else:
            self._waiting_preferences = None
        self._apply_moves(now, reason, requester)
        self._next_owner = {revoked: target[revoked] for revoked in self._revoking if revoked in target}

    def _continue_later(self, preferred_owners: dict[SegmentSlice, Sequence[str]]) -> None:
        if self._waiting_preferences is None:
            self._context.later(len(self._topic.layout.segments), self._continue)
        self._waiting_preferences = preferred_owners

    def _continue(self) -> None:
        if self._waiting_preferences is not None and not self._closed:
            preferred, self._waiting_preferences = self._waiting_preferences, None
            self.reconcile("continued", preferred_owners=preferred)

    def confirm(self, name: str, released: Iterable[tuple[int, int]]) -> None:
        """Release revoked slices that ``name`` has finished. Any other confirmation changes nothing.

        ``released``: (segment, generation) of each.
        """
        holdings = self._subscription.holdings
        found = {self._subscription.holdings.held_at(segment, generation) for segment, generation in released}
        confirmed = {
            each for each in found if each is not None and each in self._revoking and holdings[each].consumer == name
        }
        if not confirmed:
            return
        if not confirmed <= self._next_owner.keys():
            # A slice is divided or joined: what can be granted depends on the other holders.
            self.reconcile(CONFIRMED, confirmed=confirmed)
            return
        # The last reconciliation decided the next owners, and nothing has changed since.
        state = handover.HandoverState(
            target={each: self._next_owner.pop(each) for each in confirmed},
            holdings={each: holdings[each] for each in confirmed},
            consumers=self._subscription.consumers,
            confirmed=confirmed,
        )
        self._apply_moves(handover.plan(state), CONFIRMED, None)

    def positions_changed(self, former: Mapping[SegmentSlice, Holding]) -> None:
        """Tell the ``former`` holders that a seek has ended their grants, and grant the segments again.

        If the topic has more segments than `MAX_MOVES_PER_TURN`, later turns do so.
        """
        self._gate = self._held_by_consumer = None
        self._in_handover.update({held: (since, "rewound") for held, since in self._revoking.items()})
        self._revoking.clear()
        self._log.info("grants.ended", reason="positions changed", segments=len(former))
        notify = partial(self._notify_all, [(held, holding, True) for held, holding in former.items()], {})
        preferred = {held: (holding.consumer,) for held, holding in former.items()}
        if len(self._topic.layout.segments) > MAX_MOVES_PER_TURN:
            self._context.later(len(former), notify)
            self._continue_later({**(self._waiting_preferences or {}), **preferred})
        else:
            notify()
            self.reconcile("positions changed", preferred_owners=preferred)

    def withdraw(self, segments: Iterable[int]) -> set[int]:
        """Let the holders of ``segments``, which are to be pruned, give them back; return those that are still held.

        Only if children wait for them: a former holder would deliver what it has queued after records of the children.
        Those of an earlier call that are not among them can be granted again.
        """
        subscription = self._subscription
        waited_for = is_gated(subscription.type, subscription.order)
        withdrawn = frozenset(segments) - subscription.drained if waited_for else frozenset()
        if withdrawn != self._withdrawn:
            self._withdrawn = withdrawn
            self._continue_later(self._waiting_preferences or {})
        return {segment_of(held) for held in subscription.holdings.held_in(withdrawn)} if withdrawn else set()

    def release_pruned(self, segments: AbstractSet[int]) -> None:
        """Release ``segments``, which are about to be pruned, without granting them again."""
        released = sorted(self._subscription.holdings.held_in(segments))
        for held in released:
            self._revoking.pop(held, None)
        self._apply_moves(handover.Moves(releases=tuple((held, "pruned") for held in released)), "pruned", None)

    def overdue_revocations(self, timeout_seconds: float) -> frozenset[SegmentSlice]:
        """Return the revoked slices whose holder did not confirm to this leader in time.

        A wall clock would end the time before the holder's lease, if it is set or differs from the previous leader's.
        """
        now = self._clock()
        return frozenset(revoked for revoked, since in self._revoking.items() if now - since >= timeout_seconds)

    def resend(self, name: str, known: Iterable[tuple[int, int]] | None) -> None:
        """Send ``name`` again what it may have missed.

        ``known``: the (segment, generation) pairs that the consumer reports as held. Without it,
        only pending revocations are sent again. At most `MAX_REPEATED_GRANTS` of each are sent.
        """
        holdings = self._subscription.holdings
        pending = (each for each in sorted(self._revoking) if holdings[each].consumer == name)
        revoked = [_revocation(each, holdings[each]) for each in islice(pending, MAX_REPEATED_GRANTS)]
        granted: list[Grant] = []
        if known is not None:
            reported = set(known)
            held = {(segment_of(each), holdings[each].generation): each for each in self._slices_held_by(name)}
            lost = (each for key, each in held.items() if key not in reported and each not in self._revoking)
            granted = self._build_grants(islice(lost, MAX_REPEATED_GRANTS))
            ended = sorted(reported - held.keys())[:MAX_REPEATED_GRANTS]
            revoked += [Revocation(segment=s, generation=g, final=True) for s, g in ended]
        if granted or revoked:
            self._notify(self._subscription.consumers[name], granted, revoked)

    def close(self) -> None:
        """Make no further moves."""
        self._closed = True

    def _compute_target(
        self, gate: Gate, preferred_owners: Mapping[SegmentSlice, Sequence[str]], stalled: Mapping[SegmentSlice, str]
    ) -> dict[SegmentSlice, str]:
        """Return slice → owner. A consumer that makes no progress keeps whole segments, and gets no further one."""
        holdings, consumers = self._subscription.holdings, self._subscription.consumers
        slow = {name for name, each in consumers.items() if each.stalled_at_ms is not None}.union(stalled.values())
        if len(slow) == len(consumers):
            slow.clear()
        readable = dict.fromkeys(segment for segment in gate.grantable if segment not in self._withdrawn)
        kept = {
            held: holding.consumer
            for held, holding in (holdings.items() if slow else ())
            if holding.consumer in slow and held in readable and held not in self._revoking and held not in stalled
        }
        return kept | compute_target(
            self._subscription,
            self._topic.layout,
            [segment for segment in readable if segment not in kept],
            {name: each.supports_bucket_ranges for name, each in consumers.items() if name not in slow},
            {held: holding.consumer for held, holding in holdings.items() if held not in self._revoking},
            all_holders={held: holding.consumer for held, holding in holdings.items()},
            preferred_owners=preferred_owners,
        )

    def _apply_moves(self, moves: handover.Moves, reason: str, requester: str | None) -> None:
        if not moves:
            return
        holdings = self._subscription.holdings
        ended = [(held, holdings[held], True) for held, how in moves.releases if how != "confirmed"]
        ended += [(held, holdings[held], False) for held in moves.revocations]
        self._propose_moves(moves)
        self._record_moves(moves)
        granted: defaultdict[str, list[SegmentSlice]] = defaultdict(list)
        for free, name in moves.grants:
            if name != requester:
                granted[name].append(free)
        if len(ended) > MAX_MOVES_PER_TURN:  # Releases only, which are one decision: their holders can wait for a turn.
            self._context.later(len(ended), partial(self._notify_all, ended, granted))
        else:
            self._notify_all(ended, granted)
        counts = {
            "reason": reason,
            "released": len(moves.releases),
            "revoked": len(moves.revocations),
            "granted": len(moves.grants),
            "blocked": len(self.gate.blocked),
        }
        if reason == CONFIRMED:  # a rebalance is one line, and each segment that moves has a confirmation
            self._log.debug("assignment.changed", **counts)
        else:
            self._log.info("assignment.changed", **counts)

    def _notify_all(
        self, ended: Iterable[tuple[SegmentSlice, Holding, bool]], granted: Mapping[str, Iterable[SegmentSlice]]
    ) -> None:
        """Notify the consumers. ``ended``: former holdings, and whether their holders need not confirm any more."""
        revoked: defaultdict[str, list[Revocation]] = defaultdict(list)
        for held, holding, final in ended:
            revoked[holding.consumer].append(_revocation(held, holding, final=final))
        consumers = self._subscription.consumers
        for name in sorted(consumers.keys() & (revoked.keys() | granted.keys())):
            self._notify(consumers[name], self._build_grants(granted.get(name, ())), revoked.get(name, []))

    def _propose_moves(self, moves: handover.Moves) -> None:
        holdings, ids = self._subscription.holdings, self._subscription.ids
        entries: list[e.AnyEntry] = [
            e.SegmentReleased(**ids, **slice_fields(held), generation=holdings[held].generation, reason=how)
            for held, how in moves.releases
        ]
        entries += [
            e.SegmentRevoked(**ids, **slice_fields(held), generation=holdings[held].generation)
            for held in moves.revocations
        ]
        entries += [
            e.SegmentGranted(**ids, **slice_fields(free), consumer=name, generation=generation)
            for generation, (free, name) in enumerate(moves.grants, self._subscription.holdings.next_generation)
        ]
        self._context.ledger.propose(*entries)
        self._held_by_consumer = None

    def _record_moves(self, moves: handover.Moves) -> None:
        """Record the times of pending moves, and report events."""
        now = self._clock()
        for segment_slice, how in moves.releases:
            since = self._revoking.pop(segment_slice, None)
            match how:
                case "confirmed" | "timed_out" | "holder_left" if since is not None:
                    self._in_handover[segment_slice] = (since, how)
        for segment_slice in moves.revocations:
            self._revoking[segment_slice] = now
            self._context.observer.observe(events.SegmentRevoked())
        for segment_slice, _ in moves.grants:
            self._context.observer.observe(events.SegmentGranted())
            for moved in (
                [segment_slice]
                if segment_slice in self._in_handover
                else [each for each in self._in_handover if overlaps(each, segment_slice)]
            ):
                began, reason = self._in_handover.pop(moved)
                self._context.observer.observe(events.HandoverFinished(seconds=now - began, reason=reason))

    def _notify(self, consumer: RegisteredConsumer, granted: list[Grant], revoked: list[Revocation]) -> None:
        for begin in range(0, max(len(granted), 1), MAX_GRANTS_PER_PUSH):
            message = AssignmentChanged(
                topic=self._topic.name,
                subscription=self._subscription.name,
                consumer=consumer.consumer,
                incarnation=consumer.incarnation,
                leader_epoch=self._context.leader_epoch,
                granted=granted[begin : begin + MAX_GRANTS_PER_PUSH],
                revoked=revoked if begin == 0 else [],
            )
            self._context.push(consumer.client_id, message)

    def _build_grants(self, slices: Iterable[SegmentSlice]) -> list[Grant]:
        if not slices:
            return []
        ledger = self._context.ledger
        build = partial(build_grant, self._subscription, self._topic, durable=ledger.durable, now_ms=ledger.now_ms())
        return list(map(build, slices))

    def _slices_held_by(self, name: str) -> list[SegmentSlice]:
        if self._held_by_consumer is None:
            slices: defaultdict[str, list[SegmentSlice]] = defaultdict(list)
            for held, holding in self._subscription.holdings.items():
                slices[holding.consumer].append(held)
            self._held_by_consumer = {consumer: sorted(each) for consumer, each in slices.items()}
        return self._held_by_consumer.get(name, [])


def _revocation(held: SegmentSlice, holding: Holding, *, final: bool = False) -> Revocation:
    return Revocation(**slice_fields(held), generation=holding.generation, final=final)
