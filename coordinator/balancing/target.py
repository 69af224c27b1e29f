"""Decide which consumer should read which segment.

This module is the whole policy and nothing but the policy: a `AssignmentInput` in, an owner per segment out. It does
not know which segments are blocked (coordinator.decisions.gate), nor how they are cut when there are more consumers
than segments (coordinator.balancing.bucket_split: a share is assigned like a segment), nor how a segment gets from one
consumer to another (coordinator.balancing.handover). A segment that is being given up is free here: its holder has
been told to finish already.

The rules, in order of precedence:

1. Every grantable segment has exactly one owner, as long as there is a consumer.
2. No consumer owns more than one segment above any other (``max - min <= 1``).
3. As few segments as possible are taken from a consumer that holds them: one is moved only if rule 2 forces it.
4. A free segment goes to its first heir with room, in the order in which they are given (for a child: whoever reads
   its parent), unless rule 2 or 3 forbids it.
5. Ties are decided by consumer name and segment id, so equal situations have equal targets, whatever order they arrive
   in and on whatever machine.

Rule 3 holds because every consumer keeps as many segments as its quota allows, and the larger quotas go first to those
who hold more than the smaller one: each of them saves one move, and there is no other move to save.

The cost is linear in the number of segments, plus the sorting of names and of what moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headgate.model.bucket_ranges import SegmentSlice

SliceT = TypeVar("SliceT", bound=SegmentSlice)


@dataclass(frozen=True, slots=True)
class AssignmentInput(Generic[SliceT]):
    """What one subscription looks like at one instant. What is said of segments is true of shares as well."""

    grantable: Collection[SliceT]
    """Segments that somebody should read; each one once."""
    consumers: Collection[str]
    """Names of all registered consumers; each one once."""
    holders: Mapping[SliceT, str]
    """Segment → who holds it and was not told to give it up. Segments and consumers not named above are ignored."""
    preferred_owners: Mapping[SliceT, Sequence[str]] = field(default_factory=dict)
    """Free segment → who should rather get it, best first."""


def assign(assignment_input: AssignmentInput[SliceT]) -> dict[SliceT, str]:
    """Return segment → owner for every grantable segment; empty if there is no consumer."""
    if not assignment_input.consumers:
        return {}
    owners: dict[SliceT, str] = {}
    free: list[SliceT] = []
    held: dict[str, list[SliceT]] = {name: [] for name in assignment_input.consumers}
    holder_of = assignment_input.holders.get
    for segment in assignment_input.grantable:
        holder = holder_of(segment)
        if holder is None or holder not in held:
            free.append(segment)
        else:
            held[holder].append(segment)
            owners[segment] = holder
    quota, larger = divmod(len(assignment_input.grantable), len(held))
    quotas = _Quotas(quota, larger, {name: len(segments) for name, segments in held.items()})
    for name in quotas.above_quota():
        segments = sorted(held[name])
        kept = quotas.reduce_to_quota(name)
        for segment in segments[kept:]:
            del owners[segment]
            free.append(segment)
    free.sort()
    _assign_free(free, assignment_input.preferred_owners, quotas, owners)
    return owners


class _Quotas:
    """How much room each consumer has: ``quota`` for everyone, one more for ``larger`` of them."""

    def __init__(self, quota: int, larger: int, counts: dict[str, int]) -> None:
        self._quota = quota
        self._larger = larger
        self.counts = counts

    def above_quota(self) -> list[str]:
        """Return who holds more than the smaller quota, by name: whoever of them keeps one more saves one move."""
        return sorted(name for name, count in self.counts.items() if count > self._quota)

    def reduce_to_quota(self, name: str) -> int:
        """Cut ``name`` down to the larger quota while there is one, else to the smaller; return how many it keeps."""
        kept = self._quota
        if self._larger > 0:
            self._larger -= 1
            kept += 1
        self.counts[name] = kept
        return kept

    def try_assign(self, name: str) -> bool:
        """Give ``name`` one segment more if it has room; tell whether it had."""
        count = self.counts.get(name)
        if count is None or count > self._quota:
            return False
        if count == self._quota:
            if self._larger == 0:
                return False
            self._larger -= 1
        self.counts[name] = count + 1
        return True

    def open_slots(self) -> list[str]:
        """Return a name for every place left: the smaller quotas first, each by name."""
        names = sorted(name for name, count in self.counts.items() if count <= self._quota)
        short = [(name, self._quota - self.counts[name]) for name in names if self.counts[name] < self._quota]
        smaller = [name for name, count in short for _ in range(count)]
        return smaller + names[: self._larger]


def _assign_free(
    free: list[SliceT],
    preferred_owners: Mapping[SliceT, Sequence[str]],
    quotas: _Quotas,
    owners: dict[SliceT, str],
) -> None:
    """Place the ``free`` segments, which are sorted: first with their heirs, then where there is room."""
    unassigned: list[SliceT] = []
    for segment in free:
        for name in preferred_owners.get(segment, ()):
            if quotas.try_assign(name):
                owners[segment] = name
                break
        else:
            unassigned.append(segment)
    if unassigned:
        owners.update(zip(unassigned, quotas.open_slots(), strict=True))
