"""Decides which segments of a topic a subscription may read now. Pure.

The rules, in order of precedence:

1. A sealed, drained segment is retired. CHECKPOINT retires none, nor does an unknown type.
2. In a gated subscription (STREAM in strict order) a segment is grantable if and only if every ancestor is drained, at
   any depth. An empty segment is drained at once, but its undrained ancestors still block its children.
3. An ancestor that is missing from the layout was pruned, hence drained (controller.retention.policy, rule 3).
4. In other subscriptions (QUEUE, CHECKPOINT, order ``none``, type unknown) no segment waits.
5. A blocked segment names the nearest undrained ancestors that block it, nearest first, then by id.
6. A sealed segment that ends at or before the start position is drained at once: no record of it
   was ever due, so there is nothing to count.
7. A segment is blocked since it was created, or since the subscription was created, moved or reordered, if
   that came later. All of it is in the ledger, so a new leader tells the same time.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from headgate.model.entries import Order, SubscriptionType
from headgate.model.layout import Layout

MAX_NAMED_BLOCKERS: Final = 5
"""Limit for the ancestors that a blocked segment names: a long chain would name each ancestor in each descendant."""


@dataclass(frozen=True, slots=True)
class Gate:
    """All segments of one layout, each in exactly one of three groups."""

    grantable: tuple[int, ...]
    """Segments that may be read, by id."""
    blocked: Mapping[int, tuple[int, ...]]
    """Segment → the nearest undrained ancestors that block it, nearest first, at most `MAX_NAMED_BLOCKERS`."""
    retired: frozenset[int]


def is_gated(subscription_type: SubscriptionType | None, order: Order) -> bool:
    """Return whether children wait for their ancestors: only in a STREAM in strict order."""
    return subscription_type == SubscriptionType.STREAM and order == "strict"


def tracks_acknowledgements(subscription_type: SubscriptionType | None) -> bool:
    """Return whether the type has drained segments: CHECKPOINT and an unknown type acknowledge nothing."""
    return subscription_type in (SubscriptionType.STREAM, SubscriptionType.QUEUE)


def compute_gate(
    layout: Layout, drained: AbstractSet[int], subscription_type: SubscriptionType | None, order: Order
) -> Gate:
    """Return the grantable, blocked and retired segments of ``layout``; ``drained`` comes from the ledger."""
    retired = layout.sealed & drained if tracks_acknowledgements(subscription_type) else frozenset()
    waiting = _behind_undrained(layout, drained) if is_gated(subscription_type, order) else set()
    return Gate(
        grantable=tuple(s for s in sorted(layout.segments) if s not in retired and s not in waiting),
        blocked=_Blocked(layout, frozenset(drained), sorted(waiting - retired)),
        retired=retired,
    )


class _Blocked(Mapping[int, tuple[int, ...]]):
    """The blocked segments, each with its blockers (rule 5), found on access and remembered for its descendants."""

    def __init__(self, layout: Layout, drained: frozenset[int], blocked: Iterable[int]) -> None:
        self._layout = layout
        self._drained = drained
        self._blocked = dict.fromkeys(blocked)
        self._nearest: dict[int, list[tuple[int, int]]] = {}
        """Segment → its nearest undrained ancestors as (distance, id), sorted, at most `MAX_NAMED_BLOCKERS`."""

    def __getitem__(self, segment: int) -> tuple[int, ...]:
        if segment not in self._blocked:
            raise KeyError(segment)
        pending = [segment]
        while pending:
            segments = self._layout.segments
            parents = [parent for parent in segments[pending[-1]].parents if parent in segments]
            unknown = [parent for parent in parents if parent not in self._nearest]
            if unknown:
                pending += unknown
            else:
                self._nearest[pending.pop()] = self._nearest_behind(parents)
        return tuple(ancestor for _, ancestor in self._nearest[segment])

    def _nearest_behind(self, parents: list[int]) -> list[tuple[int, int]]:
        """Return the nearest undrained of ``parents`` and of their nearest ones: no other ancestor is nearer."""
        distances: dict[int, int] = {}
        for parent in parents:
            near = [(distance + 1, ancestor) for distance, ancestor in self._nearest[parent]]
            for distance, ancestor in near if parent in self._drained else [(1, parent), *near]:
                distances[ancestor] = min(distance, distances.get(ancestor, distance))
        return sorted((distance, ancestor) for ancestor, distance in distances.items())[:MAX_NAMED_BLOCKERS]

    def __contains__(self, segment: object) -> bool:
        return segment in self._blocked

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocked)

    def __len__(self) -> int:
        return len(self._blocked)


def blocked_since_ms(layout: Layout, blocked: Iterable[int], gated_since_ms: int) -> int | None:
    """Return since when the longest of the ``blocked`` segments is blocked (rule 7); None: there is none.

    ``gated_since_ms``: as in `shard.state.subscription.Subscription`. Times are ledger times.
    """
    oldest_ms = min((layout.segments[segment].created_at_ms for segment in blocked), default=None)
    return None if oldest_ms is None else max(oldest_ms, gated_since_ms)


def undrained_sealed(layout: Layout, drained: AbstractSet[int]) -> frozenset[int]:
    """Return the sealed segments that are not recorded as drained: those that a drain poll asks about."""
    return layout.sealed - drained


def drained_without_count(
    layout: Layout,
    drained: AbstractSet[int],
    subscription_type: SubscriptionType | None,
    start_positions: Mapping[int, int],
) -> list[int]:
    """Return the sealed segments that are not recorded as drained but need no drain check (rule 6), by id.

    ``start_positions``: segment → its position at the creation or the last seek, default 0.
    """
    if not tracks_acknowledgements(subscription_type):
        return []
    return sorted(
        segment_id
        for segment_id in undrained_sealed(layout, drained)
        if (end := layout.segments[segment_id].end_offset) is not None and end <= start_positions.get(segment_id, 0)
    )


def _behind_undrained(layout: Layout, drained: AbstractSet[int]) -> set[int]:
    """Return the segments with an undrained ancestor. Ids rise, so parents precede their children."""
    waiting: set[int] = set()
    for segment_id in sorted(layout.segments):
        for parent in layout.segments[segment_id].parents:
            if parent in waiting or (parent in layout.segments and parent not in drained):
                waiting.add(segment_id)
                break
    return waiting
