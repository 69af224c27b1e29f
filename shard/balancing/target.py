"""Decides which consumer should own which segment, by count. Pure.

A bucket range is assigned like a segment. A revoked segment counts as free. The rules, in order of
precedence:

1. Each grantable segment has exactly one owner, as long as there is a consumer.
2. No consumer owns more than one segment more than any other.
3. A held segment moves only if rule 2 requires it.
4. A free segment goes to its first preferred owner below quota (for a child, the holder of its
   parent), unless rule 2 or 3 forbids it.
5. Ties are broken by consumer name and segment id: equal inputs give equal targets, in any input
   order.

Rule 3 holds because each consumer keeps as many segments as its quota allows, and the larger quotas
go first to consumers that hold more than the smaller one: each saves one move, and no other can be
saved.

The cost is linear in the segments, plus sorting the names and the moved segments.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from headgate.model.hashing import SegmentSlice

SliceT = TypeVar("SliceT", bound=SegmentSlice)


def assign(
    grantable: Collection[SliceT],
    consumers: Collection[str],
    holders: Mapping[SliceT, str],
    preferred_owners: Mapping[SliceT, Sequence[str]] | None = None,
) -> dict[SliceT, str]:
    """Return segment → owner for every grantable segment; empty if there is no consumer. Segments may be bucket ranges.

    ``holders``: segment → its holder, unless revoked; unknown segments and consumers are ignored. ``preferred_owners``:
    free segment → its preferred owners, best first.
    """
    if not consumers:
        return {}
    owners: dict[SliceT, str] = {}
    free: list[SliceT] = []
    held: dict[str, list[SliceT]] = {name: [] for name in consumers}
    for segment in grantable:
        holder = holders.get(segment)
        if holder is None or holder not in held:
            free.append(segment)
        else:
            held[holder].append(segment)
            owners[segment] = holder
    quota, larger = divmod(len(grantable), len(held))
    quotas = _Quotas(quota, larger, {name: len(segments) for name, segments in held.items()})
    for name in quotas.above_quota():
        free += sorted(held[name])[quotas.reduce_to_quota(name) :]
    free.sort()
    _assign_free(free, preferred_owners or {}, quotas, owners)
    return owners


class _Quotas:
    """The quotas of all consumers: ``quota`` for each, one more for ``larger`` of them."""

    def __init__(self, quota: int, larger: int, counts: dict[str, int]) -> None:
        self._quota = quota
        self._larger = larger
        self.counts = counts

    def above_quota(self) -> list[str]:
        """Return the consumers above the smaller quota, by name: each larger quota given to one saves a move."""
        return sorted(name for name, count in self.counts.items() if count > self._quota)

    def reduce_to_quota(self, name: str) -> int:
        """Reduce ``name`` to the larger quota if one is left, else to the smaller; return its new count."""
        count = self._quota
        if self._larger > 0:
            self._larger -= 1
            count += 1
        self.counts[name] = count
        return count

    def try_assign(self, name: str) -> bool:
        """Assign one more segment to ``name`` if it is below its quota; return whether it was."""
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
        """Return one name per open slot: the smaller quotas first, sorted by name."""
        names = sorted(name for name, count in self.counts.items() if count <= self._quota)
        smaller = [name for name in names for _ in range(self._quota - self.counts[name])]
        return smaller + names[: self._larger]


def _assign_free(
    free: list[SliceT], preferred_owners: Mapping[SliceT, Sequence[str]], quotas: _Quotas, owners: dict[SliceT, str]
) -> None:
    """Assign the sorted ``free`` segments: first to preferred owners, then to any open slot."""
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
