"""Decides which consumer should own which segment, by load. Pure.

A key is a segment or a bucket range. All arithmetic is on integers, so each machine computes the same target.

A consumer's *level* is its load divided by its capacity. Its *fair load* is the fair level times its capacity. The fair
level is the mean level, without each key heavier than a fair load and one consumer for it: otherwise all other
consumers would stay below the mean, and each change would search for a balance that does not exist.

The rules, in order of precedence:

1. Each key has exactly one owner, as long as there is a consumer.
2. A held key moves only if its holder or receiver deviates from its fair load by more than `TOLERANCE_PERCENT`. That
   consumer is brought within half of it, so that the next small change causes no move.
3. A key only moves downhill: the receiver ends below the giver's former level.
4. The heaviest key that does not overshoot the fair load moves first: the fewest moves.
5. Free keys are assigned by descending weight: to the first preferred owner that stays within the
   tolerance, else to the consumer with the lowest resulting level.
6. Ties are broken by key and name: equal inputs give equal targets, in any input order.

Tested consequences: recomputing a reached target moves nothing. If a consumer remains beyond the
tolerance, its level exceeds the lowest by at most its lightest key over the receiver's capacity. A
free key raises no level above the mean by more than its weight over the mean capacity (Graham's
bound). The number of moves is not minimal: that is bin packing.

Rule 3 makes the search terminate: each move replaces the giver's level by two lower ones. At most n² steps (Brucker,
Hurink, Werner 1996); in practice each key moves once. The cost is that of sorting, times the distinct capacities.

Balancers without rules 2 and 3 oscillate: KCL with a relative band of ±10 % (PR 1814), Pulsar (PRs
12604, 13915, 17456).
"""

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from headgate.model.layout import SegmentSlice

TOLERANCE_PERCENT = 20
"""Allowed deviation from the fair load. It exceeds the random error of smoothed weights over several
keys, and a consumer that runs at two thirds of its capacity does not notice it."""

KeyT = TypeVar("KeyT", bound=SegmentSlice)


def assign_by_load(
    grantable: Collection[KeyT],
    capacities: Mapping[str, int],
    holders: Mapping[KeyT, str],
    weights: Mapping[KeyT, int],
    preferred_owners: Mapping[KeyT, Sequence[str]] | None = None,
) -> dict[KeyT, str]:
    """Return key → owner for all grantable keys; empty if there is no consumer.

    Args:
        grantable: the keys to assign, without duplicates.
        capacities: registered consumer → its capacity, at least 1. Only the proportions matter.
        holders: key → its holder, unless revoked. Unknown keys and consumers are ignored.
        weights: key → its weight, at least 1. The default is the mean of the others.
        preferred_owners: free key → its preferred owners, best first.
    """
    if not capacities:
        return {}
    known = {key: weights[key] for key in grantable if key in weights}
    mean = sum(known.values()) // len(known) if known else 1
    all_weights = {key: known.get(key, mean) for key in grantable}
    table: _LoadTable[KeyT] = _LoadTable(capacities, fair_level(all_weights.values(), capacities.values()))
    free: list[tuple[int, KeyT]] = []
    for key, weight in all_weights.items():
        holder = holders.get(key)
        if holder is None or holder not in capacities:
            free.append((-weight, key))
        else:
            table.assign(holder, weight, key)
    table.sort()
    for negative, key in sorted(free):
        able = (name for name in (preferred_owners or {}).get(key, ()) if name in capacities)
        preferred = next((name for name in able if table.has_capacity(name, -negative)), None)
        table.assign(preferred or table.least_loaded_after(-negative), -negative, key, in_order=True)
    while table.relieve_overloaded() | table.fill_underloaded():
        pass
    return {key: name for name, keys in table.keys.items() for _, key in keys}


def fair_level(weights: Collection[int], capacities: Collection[int]) -> tuple[int, int]:
    """Return the fair level as (load, capacity).

    That is the mean, without the keys that exceed it alone. Each such key is left out together with a consumer, the
    heaviest key with the largest consumer, because its owner stays above the others in any case.
    """
    load, capacity = sum(weights), sum(capacities)
    for weight, consumer_capacity in zip(sorted(weights, reverse=True), sorted(capacities, reverse=True), strict=False):
        if weight * capacity <= load * consumer_capacity or consumer_capacity == capacity:
            break
        load, capacity = load - weight, capacity - consumer_capacity
    return load, capacity


class _LoadTable(Generic[KeyT]):
    """The keys and loads of all consumers. Levels are compared by cross-multiplication, which is exact."""

    def __init__(self, capacities: Mapping[str, int], fair: tuple[int, int]) -> None:
        self.keys: dict[str, list[tuple[int, KeyT]]] = {name: [] for name in sorted(capacities)}
        """Consumer → (weight, key), ascending after `sort`."""
        self._capacities = capacities
        self._fair_load, self._fair_capacity = fair
        self._loads = dict.fromkeys(self.keys, 0)
        self._by_load: dict[int, list[tuple[int, str]]] = {}
        """Capacity → heap of (load, consumer). Outdated entries are dropped when they reach the top."""

    def assign(self, name: str, weight: int, key: KeyT, *, in_order: bool = False) -> None:
        if in_order:
            insort(self.keys[name], (weight, key))
            self._change(name, weight)
        else:
            self.keys[name].append((weight, key))
            self._loads[name] += weight

    def sort(self) -> None:
        """Sort the assigned keys and build the heaps."""
        for name, keys in self.keys.items():
            keys.sort()
            self._by_load.setdefault(self._capacities[name], []).append((self._loads[name], name))
        for heap in self._by_load.values():
            heapify(heap)

    def has_capacity(self, name: str, weight: int) -> bool:
        """Return whether ``name`` stays within the tolerance with ``weight`` more."""
        return self._excess(name, weight) * 100 <= self._fair_load * self._capacities[name] * TOLERANCE_PERCENT

    def least_loaded_after(self, weight: int) -> str:
        """Return the consumer with the lowest level after adding ``weight``."""
        best: tuple[int, int, str] | None = None
        for capacity in sorted(self._by_load, reverse=True):
            load, name = self._least_loaded(capacity)
            if best is None or (load + weight) * best[1] < (best[0] + weight) * capacity:
                best = (load, capacity, name)
        assert best is not None, "no consumer to assign to"
        return best[2]

    def relieve_overloaded(self) -> bool:
        """Move keys away from overloaded consumers while that helps; return whether anything moved."""
        moved = False
        for name in self.keys:
            if not self.has_capacity(name, 0):
                moved |= self._offload(name)
        return moved

    def fill_underloaded(self) -> bool:
        """Move keys to underloaded consumers while that helps; return whether anything moved."""
        moved = False
        for capacity in sorted(self._by_load, reverse=True):
            moved |= self._fill_capacity_class(capacity)
        return moved

    def _excess(self, name: str, more: int = 0) -> int:
        """Return the load of ``name`` plus ``more``, minus its fair load, times the fair capacity."""
        return (self._loads[name] + more) * self._fair_capacity - self._fair_load * self._capacities[name]

    def _level(self, name: str) -> int:
        """Return the level as a rounded integer, for sorting."""
        return (self._loads[name] << 32) // self._capacities[name]

    def _tolerance(self, name: str) -> int:
        """Return the deviation to which rule 2 reduces a consumer, scaled like `_excess`."""
        return self._fair_load * self._capacities[name] * TOLERANCE_PERCENT // 200

    def _offload(self, giver: str) -> bool:
        moved = False
        while self.keys[giver] and self._excess(giver) > self._tolerance(giver):
            index = self._choose(giver, self._excess(giver), self.least_loaded_after)
            if index is None:
                break
            self._move(giver, index, self.least_loaded_after(self.keys[giver][index][0]))
            moved = True
        return moved

    def _fill_capacity_class(self, capacity: int) -> bool:
        """Move keys to the least loaded consumer of this capacity until it needs none or no giver helps.

        A giver that cannot help the least loaded consumer cannot help the others, so it is tried once.
        """
        moved = False
        givers = [(-self._level(name), name) for name in self.keys if self.keys[name]]
        heapify(givers)
        receiver = self._least_loaded(capacity)[1]
        is_underloaded = self._is_underloaded(receiver)
        while givers and is_underloaded:
            negative, giver = heappop(givers)
            if -negative != self._level(giver):
                heappush(givers, (-self._level(giver), giver))
                continue
            index = self._choose(giver, -self._excess(receiver), lambda _, name=receiver: name)  # type: ignore[misc]
            if index is None:
                continue
            self._move(giver, index, receiver)
            moved = True
            heappush(givers, (-self._level(giver), giver))
            if -self._excess(receiver) <= self._tolerance(receiver):
                receiver = self._least_loaded(capacity)[1]
                is_underloaded = self._is_underloaded(receiver)
        return moved

    def _is_underloaded(self, name: str) -> bool:
        return -self._excess(name) * 100 > self._fair_load * self._capacities[name] * TOLERANCE_PERCENT

    def _choose(self, giver: str, most: int, receiver_of: Callable[[int], str]) -> int | None:
        """Return the index of the heaviest helpful key up to ``most``, else of the lightest; None if none helps.

        A lighter key helps wherever a heavier one does, so this is a binary search.
        """
        keys = self.keys[giver]

        def helps(weight: int) -> bool:
            receiver = receiver_of(weight)
            after, before = self._loads[receiver] + weight, self._loads[giver]
            return receiver != giver and after * self._capacities[giver] < before * self._capacities[receiver]

        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            weight = keys[middle][0]
            if weight * self._fair_capacity <= most and helps(weight):
                low = middle + 1
            else:
                high = middle
        if low > 0:
            return low - 1
        return 0 if keys and helps(keys[0][0]) else None

    def _move(self, giver: str, index: int, receiver: str) -> None:
        weight, key = self.keys[giver].pop(index)
        self._change(giver, -weight)
        self.assign(receiver, weight, key, in_order=True)

    def _change(self, name: str, weight: int) -> None:
        self._loads[name] += weight
        heappush(self._by_load[self._capacities[name]], (self._loads[name], name))

    def _least_loaded(self, capacity: int) -> tuple[int, str]:
        heap = self._by_load[capacity]
        while heap[0][0] != self._loads[heap[0][1]]:
            heappop(heap)
        return heap[0]
