"""Decide where a seek leaves a subscription, segment by segment.

Values in, positions or a reason out. Everything below a position counts as acknowledged, everything from it on is
delivered again. Who reads what afterwards is for the gate and the target, as always.

The rules:

1. ``earliest`` is the first record of every segment of the layout; ``latest`` is the end of every segment as of now,
   the sealed ones included, so nothing older is ever read.
2. Positions name segments of the layout, and offsets from 0 to the segment's end. Anything else is rejected, with the
   choices that there are. Nothing is moved to "the nearest": who asks for too much has mistaken something.
3. In strict order, what comes after a named segment that is not at its end begins again at 0: its descendants, at any
   depth, unless they are named themselves.
4. In strict order nothing is passed over unasked: a position above 0 behind an ancestor that is not at its end is
   rejected. The reason says what to name beside it.
5. Every other segment stays where it is.
6. A sealed segment whose position is its end is drained from that moment on: there is nothing left to count.

Apache Pulsar's scalable topics leave drained facts standing over a seek, so that rewound records of a sealed segment
are given to nobody until the leader changes; Kafka resets only a group without members. Here the entry takes the facts
back, and consumers run on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headgate.model.layout import Layout, SegmentState

SeekTarget = Literal["earliest", "latest"] | Mapping[int, int]
"""A place, or segment → offset."""


def seek_positions(
    seek_target: SeekTarget,
    *,
    layout: Layout,
    ends: Mapping[int, int],
    positions: Mapping[int, int],
    gated: bool,
) -> dict[int, int] | str:
    """Return segment → new position for every segment that is moved or named, or the reason why this cannot be.

    ``ends``: segment → the offset after its last record, ``positions``: segment → where the subscription is (0 if it is
    missing). ``gated``: children wait for their ancestors.
    """
    if seek_target == "earliest":
        return dict.fromkeys(sorted(layout.segments), 0)
    if seek_target == "latest":
        return {segment: ends[segment] for segment in sorted(layout.segments)}
    assert not isinstance(seek_target, str), f"no place {seek_target!r}"
    if not seek_target:
        return "no position is given: name at least one segment and its offset"
    for segment, offset in sorted(seek_target.items()):
        if segment not in layout.segments:
            known = ", ".join(map(str, sorted(layout.segments)))
            return f"there is no segment {segment}; the segments are {known}"
        if offset > ends[segment]:
            return f"segment {segment} ends at {ends[segment]}; {offset} is beyond it: choose 0 to {ends[segment]}"
    moved = {segment: seek_target[segment] for segment in sorted(seek_target)}
    if not gated:
        return moved
    for segment in sorted(layout.segments.keys() - seek_target.keys()):
        if any(a in seek_target and seek_target[a] < ends[a] for a in layout.ancestors(segment)):
            moved[segment] = 0
    for segment, offset in sorted(seek_target.items()):
        if offset > 0 and (reason := _skipped_records_error(segment, offset, layout, ends, {**positions, **moved})):
            return reason
    return dict(sorted(moved.items()))


def drained_by_seek(layout: Layout, positions: Mapping[int, int]) -> list[int]:
    """Return the sealed segments of which ``positions`` leave nothing to read."""
    found: list[int] = []
    for segment, offset in sorted(positions.items()):
        known = layout.segments[segment]
        if known.state is SegmentState.SEALED and known.end_offset is not None and offset >= known.end_offset:
            found.append(segment)
    return found


def _skipped_records_error(
    segment: int,
    offset: int,
    layout: Layout,
    ends: Mapping[int, int],
    positions: Mapping[int, int],
) -> str | None:
    """Return why ``segment`` cannot be at ``offset``: ancestors whose records would be passed over (rule 4)."""
    unread = {a: ends[a] - positions.get(a, 0) for a in sorted(layout.ancestors(segment))}
    unread = {a: count for a, count in unread.items() if count > 0}
    if not unread:
        return None
    unread_ancestors = ", ".join(f"{a} ({positions.get(a, 0)} of {ends[a]})" for a in unread)
    choices = " ".join(f"{a}={ends[a]}" for a in unread)
    return (
        f"segment {segment} at {offset} stands behind records that are not read, in segment {unread_ancestors}: "
        f"choose {segment}=0, or {choices} beside it to pass over {sum(unread.values())} records"
    )
