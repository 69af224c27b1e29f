"""What a shard knows of one subscription: a fold over its ledger entries.

A `Subscription` is changed by `apply` alone, and `apply` never judges: an entry in the ledger is a fact. Everything
here survives a change of leader. What does not survive (who answered a moment ago, which poll sleeps) belongs to
coordinator.subscription_coordinator.

Positions: for STREAM one number per segment, below which everything is acknowledged. For QUEUE also the ranges
acknowledged above it. CHECKPOINT acknowledges nothing. Once consumers that share a segment are at different places in
it, this is kept for each of its key buckets, until all buckets agree again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from coordinator.state.acknowledged import Acknowledged
from headgate.model import entries as e
from headgate.model.bucket_ranges import Place, place_of, segment_of
from headgate.model.hashing import KEY_BUCKETS

DEPARTED_MS = 600_000
"""How long a program that left is remembered: far longer than a broker keeps a message on its way."""
REMEMBERED_DEPARTURES = 1000

SubscriptionEntry = (
    e.SubscriptionTyped
    | e.Sought
    | e.RecordsAcknowledged
    | e.ConsumerRegistered
    | e.ConsumerDisconnected
    | e.ConsumerReconnected
    | e.ConsumerGone
    | e.SegmentGranted
    | e.SegmentRevoked
    | e.SegmentReleased
    | e.SegmentsDrained
    | e.SegmentsWeighed
)


@dataclass(slots=True)
class RegisteredConsumer:
    """A consumer on record."""

    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Since when its grace period runs; None while it is connected."""
    shares: bool = False
    """Whether it can read a share of a segment; clients of the first version cannot."""
    capacity: int = 100
    """What it can do, in percent of an ordinary consumer; counts where the balance is by load."""


@dataclass(frozen=True, slots=True)
class Departed:
    """A program that left, or was replaced, or whose subscription was deleted."""

    consumer: str
    incarnation: int
    client_id: str
    at_ms: int


def is_among(programs: Iterable[Departed], consumer: str, incarnation: int, client_id: str) -> bool:
    """Tell whether this very program is one of ``programs``."""
    wanted = (consumer, incarnation, client_id)
    return any((gone.consumer, gone.incarnation, gone.client_id) == wanted for gone in programs)


@dataclass(slots=True)
class Holding:
    """Who holds a segment, or a share of one."""

    consumer: str
    generation: int
    revoked_at_ms: int | None = None
    """Since when the holder has been asked to finish; None while the grant stands."""


@dataclass(frozen=True, slots=True)
class LastSeek:
    """What the newest seek did, so that the same command asked again gets the same answer."""

    token: str
    moves: tuple[tuple[int, int, int], ...]
    """(segment, position before, position after), by segment."""


@dataclass(slots=True)
class Subscription:
    """One subscription of one topic."""

    topic_id: int
    topic: str
    subscription_id: int
    name: str
    type: e.SubscriptionType | None
    order: e.Order
    positions: dict[int, int] = field(default_factory=dict)
    """Segment → offset below which everything is acknowledged, in every bucket; one that is missing begins at 0."""
    above: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """QUEUE: segment → sorted, disjoint ranges (first, end) acknowledged above the position, in every bucket."""
    by_bucket: dict[int, list[Acknowledged]] = field(default_factory=dict)
    """Segment whose buckets differ → what is acknowledged in each of them; it has nothing in ``above`` then."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """External topics: segment → where its next holder goes on, in the words of its source."""
    seek_generation: int = 0
    last_seek: LastSeek | None = None
    drained: set[int] = field(default_factory=set)
    consumers: dict[str, RegisteredConsumer] = field(default_factory=dict)
    departed: list[Departed] = field(default_factory=list)
    """The latest last, so that a late copy of a registration brings nobody back."""
    holdings: dict[Place, Holding] = field(default_factory=dict)
    """Whole segment or share → who holds it; no two of them overlap."""
    next_generation: int = 1
    balance: e.Balance = "count"
    weights: dict[int, int] = field(default_factory=dict)
    """Segment → how heavy it is; where the balance is by load, and once it was measured."""
    unused_since_ms: int | None = None
    """Since when it has had no consumer; None while it has one."""
    _places: dict[int, Place] = field(init=False, repr=False, compare=False)
    """Generation → what is held at it."""

    def __post_init__(self) -> None:
        """Index what is held."""
        self._places = {holding.generation: place for place, holding in self.holdings.items()}

    @classmethod
    def created(cls, entry: e.SubscriptionCreated, topic: str) -> Subscription:
        """Return the subscription that ``entry`` brings into being."""
        return cls(
            topic_id=entry.topic_id,
            topic=topic,
            subscription_id=entry.subscription_id,
            name=entry.subscription,
            type=entry.subscription_type,
            order=entry.order,
            balance=entry.balance,
            positions=dict(entry.positions),
        )

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.positions.get(segment, 0)

    def has_departed(self, consumer: str, incarnation: int, client_id: str) -> bool:
        """Tell whether this very program left, or was replaced, not long ago."""
        return is_among(self.departed, consumer, incarnation, client_id)

    def programs(self, at_ms: int) -> list[Departed]:
        """Return who must not come back should this be deleted at ``at_ms``: who has departed, and who is here."""
        here = [
            Departed(known.consumer, known.incarnation, known.client_id, at_ms) for known in self.consumers.values()
        ]
        return self.departed + here

    def acknowledged_in(self, segment: int, bucket: int) -> Acknowledged:
        """Return what is acknowledged in one bucket; to be looked at, not changed."""
        if segment in self.by_bucket:
            return self.by_bucket[segment][bucket]
        return Acknowledged(self.position(segment), self.above.get(segment, []))

    def held_by(self, consumer: str) -> list[Place]:
        """Return what ``consumer`` holds, revoked or not, in order."""
        return sorted(place for place, holding in self.holdings.items() if holding.consumer == consumer)

    def held_at(self, segment: int, generation: int) -> Place | None:
        """Return what of ``segment`` is held at ``generation``: it, a share of it, or nothing."""
        place = self._places.get(generation)
        return None if place is None or segment_of(place) != segment else place

    def apply(self, entry: SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry; ``at_ms`` is its chunk's time."""
        match entry:
            case e.RecordsAcknowledged():
                self._acknowledge(entry)
            case e.SegmentGranted():
                place = place_of(entry.segment, entry.first_bucket, entry.end_bucket)
                self.holdings[place] = Holding(entry.consumer, entry.generation)
                self._places[entry.generation] = place
                self.next_generation = max(self.next_generation, entry.generation + 1)
            case e.SegmentRevoked():
                self.holdings[place_of(entry.segment, entry.first_bucket, entry.end_bucket)].revoked_at_ms = at_ms
            case e.SegmentReleased():
                self._let_go(place_of(entry.segment, entry.first_bucket, entry.end_bucket))
            case e.SegmentsDrained():
                if entry.seek_generation == self.seek_generation:
                    self.drained.update(entry.segments)
            case e.ConsumerRegistered():
                self.consumers[entry.consumer] = RegisteredConsumer(
                    entry.consumer, entry.incarnation, entry.client_id, shares=entry.shares, capacity=entry.capacity
                )
                self.unused_since_ms = None
            case e.ConsumerDisconnected():
                self.consumers[entry.consumer].disconnected_at_ms = at_ms
            case e.ConsumerReconnected():
                self.consumers[entry.consumer].disconnected_at_ms = None
            case e.ConsumerGone():
                self._remember_departure(self.consumers.pop(entry.consumer), entry.reason, at_ms)
                self.unused_since_ms = None if self.consumers else at_ms
                for place in self.held_by(entry.consumer):
                    self._let_go(place)
            case e.SubscriptionTyped():
                self.type, self.order, self.balance = entry.subscription_type, entry.order, entry.balance
            case e.SegmentsWeighed():
                self.weights.update(entry.weights)
            case e.Sought():
                moves = tuple((s, self.position(s), to) for s, to in sorted(entry.positions.items()))
                self.seek_generation, self.last_seek = entry.seek_generation, LastSeek(entry.token, moves)
                self.positions.update(entry.positions)
                for segment in entry.positions:
                    self.above.pop(segment, None)
                    self.checkpoints.pop(segment, None)
                    self.by_bucket.pop(segment, None)
                # A fact drained under the old positions proves nothing under the new ones.
                self.drained.difference_update(entry.positions)
            case _:
                assert_never(entry)

    def forget_segments(self, segments: list[int]) -> None:
        """Drop what is known of pruned segments."""
        for place in [place for place in self.holdings if segment_of(place) in segments]:
            self._let_go(place)
        for segment in segments:
            self.positions.pop(segment, None)
            self.above.pop(segment, None)
            self.checkpoints.pop(segment, None)
            self.by_bucket.pop(segment, None)
            self.drained.discard(segment)
            self.weights.pop(segment, None)

    def _remember_departure(self, gone: RegisteredConsumer, reason: e.LeaveReason, at_ms: int) -> None:
        kept = [known for known in self.departed if at_ms - known.at_ms < DEPARTED_MS]
        if reason in ("left", "replaced"):
            kept.append(Departed(gone.consumer, gone.incarnation, gone.client_id, at_ms))
        self.departed = kept[-REMEMBERED_DEPARTURES:]

    def _let_go(self, place: Place) -> None:
        del self._places[self.holdings.pop(place).generation]

    def _acknowledge(self, entry: e.RecordsAcknowledged) -> None:
        if entry.seek_generation != self.seek_generation:
            return
        self.checkpoints.update(entry.checkpoints)
        for part in entry.ranges:
            if part.end_bucket or part.segment in self.by_bucket:
                self._acknowledge_buckets(part)
            elif self.type == "QUEUE":
                known = Acknowledged(self.position(part.segment), self.above.pop(part.segment, []))
                known.take(part.first_offset, part.end_offset)
                self._agree(part.segment, known)
            else:
                self.positions[part.segment] = max(self.position(part.segment), part.end_offset)

    def _acknowledge_buckets(self, part: e.AcknowledgedRange) -> None:
        segment = part.segment
        known = self.by_bucket.get(segment)
        if known is None:
            ranges = self.above.pop(segment, [])
            known = [Acknowledged(self.position(segment), list(ranges)) for _ in range(KEY_BUCKETS)]
        for progress in known[part.first_bucket : part.end_bucket or KEY_BUCKETS]:
            if self.type == "QUEUE":
                progress.take(part.first_offset, part.end_offset)
            else:
                progress.reach(part.end_offset)
        if all(progress == known[0] for progress in known):
            self.by_bucket.pop(segment, None)
            self._agree(segment, known[0])
        else:
            self.by_bucket[segment] = known
            self.positions[segment] = min(progress.position for progress in known)

    def _agree(self, segment: int, progress: Acknowledged) -> None:
        """Note what is acknowledged in every bucket of ``segment``."""
        self.positions[segment] = progress.position
        if progress.above:
            self.above[segment] = progress.above
