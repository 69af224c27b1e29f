"""Decide which consumer should read which segment.

This module is the whole policy and nothing but the policy: a `Situation` in, an owner per segment out. It does not know
which segments are blocked (coordinator.decisions.gate), nor how they are cut when there are more consumers than segments
(coordinator.balancing.bucket_split: a share is assigned like a segment), nor how a segment gets from one consumer to another
(coordinator.balancing.handover). A segment that is being given up is free here: its holder has been told to finish already.

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

from headgate.model.bucket_ranges import Place

PlaceT = TypeVar("PlaceT", bound=Place)


@dataclass(frozen=True, slots=True)
class Situation(Generic[PlaceT]):
    """What one subscription looks like at one instant. What is said of segments is true of shares as well."""

    grantable: Collection[PlaceT]
    """Segments that somebody should read; each one once."""
    consumers: Collection[str]
    """Names of all registered consumers; each one once."""
    holders: Mapping[PlaceT, str]
    """Segment → who holds it and was not told to give it up. Segments and consumers not named above are ignored."""
    heirs: Mapping[PlaceT, Sequence[str]] = field(default_factory=dict)
    """Free segment → who should rather get it, best first."""


def assign(situation: Situation[PlaceT]) -> dict[PlaceT, str]:
    """Return segment → owner for every grantable segment; empty if there is no consumer."""
    if not situation.consumers:
        return {}
    owners: dict[PlaceT, str] = {}
    free: list[PlaceT] = []
    held: dict[str, list[PlaceT]] = {name: [] for name in situation.consumers}
    holder_of = situation.holders.get
    for segment in situation.grantable:
        holder = holder_of(segment)
        if holder is None or holder not in held:
            free.append(segment)
        else:
            held[holder].append(segment)
            owners[segment] = holder
    quota, larger = divmod(len(situation.grantable), len(held))
    spare = _Spare(quota, larger, {name: len(segments) for name, segments in held.items()})
    for name in spare.overfull():
        segments = sorted(held[name])
        kept = spare.keep(name)
        for segment in segments[kept:]:
            del owners[segment]
            free.append(segment)
    free.sort()
    _fill(free, situation.heirs, spare, owners)
    return owners


class _Spare:
    """How much room each consumer has: ``quota`` for everyone, one more for ``larger`` of them."""

    def __init__(self, quota: int, larger: int, counts: dict[str, int]) -> None:
        self._quota = quota
        self._larger = larger
        self.counts = counts

    def overfull(self) -> list[str]:
        """Return who holds more than the smaller quota, by name: whoever of them keeps one more saves one move."""
        return sorted(name for name, count in self.counts.items() if count > self._quota)

    def keep(self, name: str) -> int:
        """Cut ``name`` down to the larger quota while there is one, else to the smaller; return how many it keeps."""
        kept = self._quota
        if self._larger > 0:
            self._larger -= 1
            kept += 1
        self.counts[name] = kept
        return kept

    def take(self, name: str) -> bool:
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

    def places(self) -> list[str]:
        """Return a name for every place left: the smaller quotas first, each by name."""
        names = sorted(name for name, count in self.counts.items() if count <= self._quota)
        short = [(name, self._quota - self.counts[name]) for name in names if self.counts[name] < self._quota]
        smaller = [name for name, count in short for _ in range(count)]
        return smaller + names[: self._larger]


def _fill(
    free: list[PlaceT],
    heirs: Mapping[PlaceT, Sequence[str]],
    spare: _Spare,
    owners: dict[PlaceT, str],
) -> None:
    """Place the ``free`` segments, which are sorted: first with their heirs, then where there is room."""
    strays: list[PlaceT] = []
    for segment in free:
        for name in heirs.get(segment, ()):
            if spare.take(name):
                owners[segment] = name
                break
        else:
            strays.append(segment)
    if strays:
        owners.update(zip(strays, spare.places(), strict=True))
