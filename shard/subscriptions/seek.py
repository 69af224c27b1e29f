"""Decides the position of each segment after a seek: what is below it counts as acknowledged. Pure.

1. ``earliest`` is the first record of each segment. ``latest`` is the current end of each, sealed
   ones included, so no older record is delivered.
2. Explicit positions name segments of the layout and offsets from 0 to the segment's end. Anything
   else is rejected, not clamped, and the reason lists the choices.
3. In strict order, the descendants of a named segment that is not at its end restart at 0, at any
   depth, unless they are named too.
4. In strict order, no record is skipped implicitly: a position above 0 after an ancestor that is
   not at its end is rejected, with the positions to add.
5. All other segments keep their positions.

Pulsar's scalable topics keep drained facts across a seek, so rewound records of a sealed segment
wait for a change of leader. Kafka resets only a group without members. Here the entry revokes the
facts, and consumers keep running.
"""

from collections.abc import Mapping
from typing import Literal

from headgate.model.layout import Layout
from headgate.model.text import listed

SeekTarget = Literal["earliest", "latest"] | Mapping[int, int]
"""A named position, or segment → offset."""


def seek_positions(
    seek_target: SeekTarget, *, layout: Layout, ends: Mapping[int, int], positions: Mapping[int, int], gated: bool
) -> dict[int, int] | str:
    """Return segment → new position for each moved or named segment, or why the seek is rejected.

    ``ends``: segment → the offset after its last record. ``positions``: segment → current position,
    default 0. ``gated``: children wait for their ancestors.
    """
    if seek_target == "earliest":
        return dict.fromkeys(sorted(layout.segments), 0)
    if seek_target == "latest":
        return {segment: ends[segment] for segment in sorted(layout.segments)}
    assert not isinstance(seek_target, str), f"unknown seek target {seek_target!r}"
    if not seek_target:
        return "no position is given: name at least one segment with its offset"
    for segment, offset in sorted(seek_target.items()):
        if segment not in layout.segments:
            return f"there is no segment {segment}; the segments are {listed(sorted(layout.segments))}"
        if offset > ends[segment]:
            return f"segment {segment} ends at {ends[segment]}; {offset} is beyond it: choose 0 to {ends[segment]}"
    moved = {segment: seek_target[segment] for segment in sorted(seek_target)}
    if not gated:
        return moved
    behind_named = layout.descendants({segment for segment, offset in seek_target.items() if offset < ends[segment]})
    moved.update(dict.fromkeys(behind_named - seek_target.keys(), 0))
    if above_start := [segment for segment, offset in sorted(seek_target.items()) if offset > 0]:
        after = {**positions, **moved}
        behind_unread = layout.descendants(
            {segment for segment in layout.segments if after.get(segment, 0) < ends[segment]}
        )
        for segment in above_start:
            if segment in behind_unread:
                return _skipped_records_error(segment, seek_target[segment], layout, ends, after)
    return dict(sorted(moved.items()))


def _skipped_records_error(
    segment: int, offset: int, layout: Layout, ends: Mapping[int, int], positions: Mapping[int, int]
) -> str:
    """Return why ``segment`` cannot be at ``offset``: it would skip records of its ancestors (rule 4)."""
    unread = {a: ends[a] - positions.get(a, 0) for a in sorted(layout.ancestors(segment))}
    unread = {a: count for a, count in unread.items() if count > 0}
    unread_ancestors = listed([f"{a} ({positions.get(a, 0)} of {ends[a]})" for a in unread])
    choices = listed([f"{a}={ends[a]}" for a in unread], separator=" ")
    return (
        f"segment {segment} at {offset} comes after unread records of segment {unread_ancestors}: "
        f"choose {segment}=0, or add {choices} to skip {sum(unread.values())} records"
    )
