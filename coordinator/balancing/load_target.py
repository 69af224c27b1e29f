"""Decide which consumer should read which segment, by load: coordinator.balancing.target for weighted segments.

This module is the whole policy and nothing but the policy: a `WeightedAssignmentInput` in, an owner per key out. It
does not know where weights come from (coordinator.balancing.weights). A key is a segment, or whatever else is given to
consumers as one piece; it only has to be hashable and sortable. Integers alone are used, so every machine comes to the
same target.

A consumer's *level* is its load per capacity, its *fair load* is the fair level times its capacity. The fair level is
the mean; keys that alone are heavier than a fair load do not count, nor does one consumer for each of them. (Otherwise
all others would lie below the mean for ever, and every change would set off a search for a balance that cannot be.)

The rules, in order of precedence:

1. Every key has exactly one owner, as long as there is a consumer.
2. A held key stays where it is unless its holder, or the consumer that it goes to, is further than `TOLERANCE_PERCENT`
   from its fair load. Then the consumer concerned is brought to within half of the tolerance, not to the limit itself,
   so that the next small change does not move something again.
3. A key moves only downhill: the receiver ends below the level at which the giver was.
4. Of the keys that may move, the heaviest that does not overshoot the fair load goes first, because that needs the
   fewest moves.
5. A free key, the heaviest first, goes to its first heir that stays within the tolerance, else to whoever ends lowest.
6. Ties are decided by key and name, so equal situations have equal targets, whatever order they arrive in.

What follows, and is tested: looking again moves nothing. Who is still beyond the tolerance could not be brought nearer
by moving any one key, so it is ahead of the lowest level by at most its lightest key on the receiver's capacity. A free
key is never put where the level would exceed the mean by more than the key's weight per mean capacity (Graham's bound
for list scheduling). What is not promised is the fewest moves of all: that is bin packing.

Rule 3 makes the search end: each move replaces the giver's level by two lower ones. Moves to the lowest machine need at
most n² steps (Brucker, Hurink, Werner 1996); in practice each key moves once. The cost is that of sorting, times
the number of different capacities.

Others balance by load without rules 2 and 3, and are known to move things to and fro: KCL (idle leases move for ever
under a relative band of ±10 %, PR 1814), Pulsar (what is unloaded makes the receiver the most loaded one, PRs 12604,
13915, 17456).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

TOLERANCE_PERCENT = 20
"""How far a load may be from its fair share: above what damped weights are off by chance when there are some keys each,
below what a reader of two thirds of its capacity notices."""


class Key(Hashable, Protocol):
    """What is given to consumers as one piece."""

    def __lt__(self, other: Any, /) -> bool:
        """Keys have an order."""


KeyT = TypeVar("KeyT", bound=Key)


@dataclass(frozen=True, slots=True)
class WeightedAssignmentInput(Generic[KeyT]):
    """What one subscription looks like at one instant."""

    grantable: Collection[KeyT]
    """What somebody should read; each one once."""
    capacities: Mapping[str, int]
    """Name of every registered consumer → what it can do, at least 1; only the proportions count."""
    holders: Mapping[KeyT, str]
    """Key → who holds it and was not told to give it up. Keys and consumers not named above are ignored."""
    weights: Mapping[KeyT, int]
    """Key → its weight; counts as 1 where it is less. What is missing weighs the mean of the others."""
    preferred_owners: Mapping[KeyT, Sequence[str]] = field(default_factory=dict)
    """Free key → who should rather get it, best first."""


def assign_by_load(assignment_input: WeightedAssignmentInput[KeyT]) -> dict[KeyT, str]:
    """Return key → owner for everything grantable; empty if there is no consumer."""
    if not assignment_input.capacities:
        return {}
    weights = _weights(assignment_input)
    table: _LoadTable[KeyT] = _LoadTable(
        assignment_input.capacities, fair_level(weights.values(), assignment_input.capacities.values())
    )
    free: list[tuple[int, KeyT]] = []
    for key, weight in weights.items():
        holder = assignment_input.holders.get(key)
        if holder is None or holder not in assignment_input.capacities:
            free.append((-weight, key))
        else:
            table.assign(holder, weight, key)
    table.sort()
    for negative, key in sorted(free):
        preferred_owners = (
            name for name in assignment_input.preferred_owners.get(key, ()) if name in assignment_input.capacities
        )
        preferred = next((name for name in preferred_owners if table.has_capacity(name, -negative)), None)
        table.assign(preferred or table.least_loaded_after(-negative), -negative, key, in_order=True)
    while table.relieve_overloaded() | table.fill_underloaded():
        pass
    return {key: name for name, keys in table.keys.items() for _, key in keys}


def _weights(assignment_input: WeightedAssignmentInput[KeyT]) -> dict[KeyT, int]:
    known = {
        key: max(1, assignment_input.weights[key])
        for key in assignment_input.grantable
        if key in assignment_input.weights
    }
    mean = max(1, sum(known.values()) // len(known)) if known else 1
    return {key: known.get(key, mean) for key in assignment_input.grantable}


def fair_level(weights: Collection[int], capacities: Collection[int]) -> tuple[int, int]:
    """Return the level that everybody could have, as (load, capacity).

    That is the mean, unless there are keys that alone are more than it: each of those is counted out together with a
    consumer, the heaviest with the largest, because whatever moves it stays above the others.
    """
    load, capacity = sum(weights), sum(capacities)
    for weight, consumer_capacity in zip(sorted(weights, reverse=True), sorted(capacities, reverse=True), strict=False):
        if weight * capacity <= load * consumer_capacity or consumer_capacity == capacity:
            break
        load, capacity = load - weight, capacity - consumer_capacity
    return load, capacity


class _LoadTable(Generic[KeyT]):
    """What each consumer carries. Levels are compared by products, because quotients of integers are not exact."""

    def __init__(self, capacities: Mapping[str, int], fair: tuple[int, int]) -> None:
        self.keys: dict[str, list[tuple[int, KeyT]]] = {name: [] for name in sorted(capacities)}
        """Consumer → (weight, key), rising once `sort` was called."""
        self._capacities = capacities
        self._fair_load, self._fair_capacity = fair
        self._loads = dict.fromkeys(self.keys, 0)
        self._by_load: dict[int, list[tuple[int, str]]] = {}
        """Capacity → heap of (load, consumer); entries that are no longer true are dropped when they come up."""

    def assign(self, name: str, weight: int, key: KeyT, *, in_order: bool = False) -> None:
        """Let ``name`` carry ``key``."""
        if in_order:
            insort(self.keys[name], (weight, key))
            self._change(name, weight)
        else:
            self.keys[name].append((weight, key))
            self._loads[name] += weight

    def sort(self) -> None:
        """Bring into order what was put so far."""
        for name, keys in self.keys.items():
            keys.sort()
            self._by_load.setdefault(self._capacities[name], []).append((self._loads[name], name))
        for heap in self._by_load.values():
            heapify(heap)

    def has_capacity(self, name: str, weight: int) -> bool:
        """Tell whether ``name`` stays within the tolerance with ``weight`` more."""
        return self._excess(name, weight) * 100 <= self._fair_load * self._capacities[name] * TOLERANCE_PERCENT

    def least_loaded_after(self, weight: int) -> str:
        """Return who has the lowest level after taking ``weight``."""
        best: tuple[int, int, str] | None = None
        for capacity in sorted(self._by_load, reverse=True):
            load, name = self._least_loaded(capacity)
            if best is None or (load + weight) * best[1] < (best[0] + weight) * capacity:
                best = (load, capacity, name)
        assert best is not None, "somebody is registered"
        return best[2]

    def relieve_overloaded(self) -> bool:
        """Take from those who carry too much, as far as it helps; tell whether anything moved."""
        moved = False
        for name in self.keys:
            if not self.has_capacity(name, 0):
                moved |= self._offload(name)
        return moved

    def fill_underloaded(self) -> bool:
        """Give to those who carry too little, as far as it helps; tell whether anything moved."""
        moved = False
        for capacity in sorted(self._by_load, reverse=True):
            moved |= self._fill_capacity_class(capacity)
        return moved

    # --- how ----------------------------------------------------------------------------------------------------------

    def _excess(self, name: str, more: int = 0) -> int:
        """Return by how much ``name`` exceeds its fair load, times the sum of capacities; negative: falls short."""
        return (self._loads[name] + more) * self._fair_capacity - self._fair_load * self._capacities[name]

    def _level(self, name: str) -> int:
        """Return a level to sort by: rounded, the same everywhere."""
        return (self._loads[name] << 32) // self._capacities[name]

    def _tolerance(self, name: str) -> int:
        """Return how far from its fair load a consumer is left that was beyond the tolerance, scaled as `_excess`."""
        return self._fair_load * self._capacities[name] * TOLERANCE_PERCENT // 200

    def _offload(self, giver: str) -> bool:
        moved = False
        while self.keys[giver] and self._excess(giver) > self._tolerance(giver):
            at = self._choose(giver, self._excess(giver), self.least_loaded_after)
            if at is None:
                break
            self._move(giver, at, self.least_loaded_after(self.keys[giver][at][0]))
            moved = True
        return moved

    def _fill_capacity_class(self, capacity: int) -> bool:
        """Fill whoever is lowest of this capacity, until that one lacks nothing or nobody can help it.

        A giver that cannot help the lowest cannot help the others either, so it is looked at once.
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
            at = self._choose(giver, -self._excess(receiver), lambda _, name=receiver: name)  # type: ignore[misc]
            if at is None:
                continue
            self._move(giver, at, receiver)
            moved = True
            heappush(givers, (-self._level(giver), giver))
            if -self._excess(receiver) <= self._tolerance(receiver):
                receiver = self._least_loaded(capacity)[1]
                is_underloaded = self._is_underloaded(receiver)
        return moved

    def _is_underloaded(self, name: str) -> bool:
        return -self._excess(name) * 100 > self._fair_load * self._capacities[name] * TOLERANCE_PERCENT

    def _choose(self, giver: str, most: int, receiver_of: Callable[[int], str]) -> int | None:
        """Return the place of the heaviest key up to ``most`` whose move helps, else of the lightest; None: no help.

        A lighter key helps wherever a heavier one does, so the place is found by halving.
        """
        keys = self.keys[giver]

        def helps(weight: int) -> bool:
            receiver = receiver_of(weight)
            there, here = self._loads[receiver] + weight, self._loads[giver]
            return receiver != giver and there * self._capacities[giver] < here * self._capacities[receiver]

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

    def _move(self, giver: str, at: int, receiver: str) -> None:
        weight, key = self.keys[giver].pop(at)
        self._change(giver, -weight)
        self.assign(receiver, weight, key, in_order=True)

    def _change(self, name: str, weight: int) -> None:
        self._loads[name] += weight
        heappush(self._by_load[self._capacities[name]], (self._loads[name], name))

    def _least_loaded(self, capacity: int) -> tuple[int, str]:
        """Return (load, consumer) of the lowest with this capacity."""
        heap = self._by_load[capacity]
        while heap[0][0] != self._loads[heap[0][1]]:
            heappop(heap)
        return heap[0]
