"""Decides which segments of a topic a subscription may read now. Pure.

The rules, in order of precedence:

1. A sealed, drained segment is retired. CHECKPOINT retires none, nor does an unknown type.
2. In a gated subscription (STREAM in strict order) a segment is grantable if and only if every
   ancestor is drained, at any depth. An empty segment is drained at once, but its undrained
   ancestors still block its children.
3. An ancestor that is missing from the layout was pruned, hence drained.
4. In other subscriptions (QUEUE, CHECKPOINT, order ``none``, type unknown) no segment waits.
5. A blocked segment names the undrained ancestors that block it, nearest first, then by id.
6. A sealed segment that ends at or before the start position is drained at once: no record of it
   was ever due, so there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

from headgate.model.entries import Order, SubscriptionType
from headgate.model.layout import Layout, SegmentState


@dataclass(frozen=True, slots=True)
class Gate:
    """All segments of one layout, each in exactly one of three groups."""

    grantable: tuple[int, ...]
    """Segments that may be read, by id."""
    blocked: Mapping[int, tuple[int, ...]]
    """Segment → the undrained ancestors that block it, nearest first."""
    retired: frozenset[int]
    """Sealed and drained."""


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
    retired = frozenset(
        segment_id
        for segment_id in drained
        if tracks_acknowledgements(subscription_type)
        and segment_id in layout.segments
        and layout.segments[segment_id].state is SegmentState.SEALED
    )
    waiting = _behind_undrained(layout, drained) if is_gated(subscription_type, order) else set()
    segments = sorted(layout.segments)
    return Gate(
        grantable=tuple(s for s in segments if s not in retired and s not in waiting),
        blocked=MappingProxyType({s: _blockers(layout, drained, s) for s in segments if s in waiting - retired}),
        retired=retired,
    )


def undrained_sealed(layout: Layout, drained: AbstractSet[int]) -> frozenset[int]:
    """Return the sealed segments that are not recorded as drained: those that a drain poll asks about."""
    return frozenset(
        segment_id
        for segment_id, segment in layout.segments.items()
        if segment.state is SegmentState.SEALED and segment_id not in drained
    )


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


def nearest_ancestors(layout: Layout, segment: int) -> list[list[int]]:
    """Return the ancestors of ``segment`` in ``layout`` by generation, nearest first; each once, sorted by id."""
    generations: list[list[int]] = []
    seen: set[int] = set()
    pending = {segment}
    while pending:
        parents = {p for s in pending for p in layout.segments[s].parents if p in layout.segments} - seen
        if parents:
            generations.append(sorted(parents))
        seen |= parents
        pending = parents
    return generations


def _behind_undrained(layout: Layout, drained: AbstractSet[int]) -> set[int]:
    """Return the segments with an undrained ancestor. Ids rise, so parents precede their children."""
    waiting: set[int] = set()
    for segment_id in sorted(layout.segments):
        for parent in layout.segments[segment_id].parents:
            if parent in waiting or (parent in layout.segments and parent not in drained):
                waiting.add(segment_id)
                break
    return waiting


def _blockers(layout: Layout, drained: AbstractSet[int], segment: int) -> tuple[int, ...]:
    return tuple(
        ancestor
        for generation in nearest_ancestors(layout, segment)
        for ancestor in generation
        if ancestor not in drained
    )
