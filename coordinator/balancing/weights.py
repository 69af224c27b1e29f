"""Decide how heavy each segment is: from what was measured to numbers that are calm enough to balance by.

Pure: readings and times in, weights out. Who measures is coordinator.load_watch; who uses the weights is
coordinator.balancing.load_target. They are kept in the ledger, so a new leader begins with those of the last one.

The load of a segment is what its reader has to get through: what comes in, plus what has gathered, spread over
`CATCH_UP_SECONDS`. It is measured in bytes per second, and a record counts as `RECORD_OVERHEAD_BYTES` more than it
has, because small records cost a reader more than their bytes. A weight is that load in steps of `WEIGHT_UNIT`.

The rules, which are there so that nothing thrashes:

1. Loads are smoothed: each sample counts for a quarter (KCL's exponential average counts a half).
2. A weight stays as it is while the smoothed load lies between half of it and twice of it, so that a load which swings
   by a third around whatever mean, at whatever pace, changes its weight once at most.
3. Weights change together, at most once in `CHANGE_INTERVAL_SECONDS`, and not before a reign is that old. (Pulsar
sheds once
   in 60 s, and again for the same bundle after minutes; KCL balances every 60 s.)
4. Below `MIN_WEIGHT` everything weighs the same: the jitter of quiet streams moves nothing. (KCL's relative band alone
moves
   idle leases for ever, PR 1814; Pulsar had to add smallest amounts, PR 13915.)
5. A segment gets its first weight after `MIN_SAMPLES`. Until then it weighs what the others do on average.

The price of rule 2 is that a balance by weights can be off by the width of the band; in sums over some segments less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from coordinator.balancing.load_target import KeyT

RECORD_OVERHEAD_BYTES = 256
"""What a record costs beyond its bytes: chosen, so that a stream of tiny records is not taken for an idle one."""
CATCH_UP_SECONDS = 300
"""A backlog weighs as much as the traffic that would bring it in this time."""
WEIGHT_UNIT = 256
"""Bytes per second in one unit of weight."""
MIN_WEIGHT = 16
"""The smallest weight: 4 KiB/s, so that rounding to whole units is small beside the band."""
BAND_FACTOR = 2
"""How many times a weight the load must be, or a part of it, to change it: above 1.3 ÷ 0.7."""
SMOOTHING_DIVISOR = 4
"""One over the share of the newest sample."""
SAMPLE_INTERVAL_SECONDS = 10.0
CHANGE_INTERVAL_SECONDS = 60.0
MIN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One segment at one instant."""

    records: int
    """Stored so far."""
    size_bytes: int
    """Stored so far."""
    backlog: int
    """Records not acknowledged; 0 where nobody acknowledges."""

    @property
    def cost(self) -> int:
        """Everything stored so far, in bytes to get through."""
        return self.size_bytes + RECORD_OVERHEAD_BYTES * self.records

    @property
    def backlog_cost(self) -> int:
        """What is not acknowledged, by the mean of all records."""
        return self.cost * self.backlog // self.records if self.records else 0


@dataclass(slots=True)
class _SegmentLoad:
    """What is known of one segment."""

    cost: int
    load: int | None
    """Smoothed, in bytes per second; None before the second sample."""
    samples: int = 0


class WeightSmoother(Generic[KeyT]):
    """Turns readings into weights during one reign."""

    def __init__(self, at_seconds: float, weights: Mapping[KeyT, int]) -> None:
        """Begin at ``at_seconds`` of a monotonic clock with the ``weights`` on record."""
        self._changed_at = at_seconds
        self._sampled_at = at_seconds
        self._initial_loads = {key: weight * WEIGHT_UNIT for key, weight in weights.items()}
        """Loads to begin with, so that the first samples of a reign do not count for more than later ones."""
        self._known: dict[KeyT, _SegmentLoad] = {}

    def add_sample(
        self, at_seconds: float, load_samples: Mapping[KeyT, LoadSample], weights: Mapping[KeyT, int]
    ) -> dict[KeyT, int]:
        """Take one sample; return the weights that change, mostly none. ``weights``: those on record."""
        elapsed_ms = max(1, round((at_seconds - self._sampled_at) * 1000))
        self._sampled_at = at_seconds
        for key, sample in load_samples.items():
            known = self._known.get(key)
            if known is None:
                self._known[key] = _SegmentLoad(sample.cost, self._initial_loads.pop(key, None))
                continue
            arrived = max(0, sample.cost - known.cost) * 1000 // elapsed_ms
            load = arrived + sample.backlog_cost // CATCH_UP_SECONDS
            known.load = load if known.load is None else known.load + (load - known.load) // SMOOTHING_DIVISOR
            known.cost = sample.cost
            known.samples += 1
        self._remove(self._known.keys() - load_samples.keys())
        if at_seconds - self._changed_at < CHANGE_INTERVAL_SECONDS:
            return {}
        changed = self._changed(weights)
        if changed:
            self._changed_at = at_seconds
        return changed

    def _changed(self, weights: Mapping[KeyT, int]) -> dict[KeyT, int]:
        changed: dict[KeyT, int] = {}
        for key, known in self._known.items():
            if known.load is not None and known.samples >= MIN_SAMPLES:
                weight = weights.get(key)
                if weight is None or leaves_band(known.load, weight):
                    changed[key] = weight_of(known.load)
        return changed

    def _remove(self, keys: Iterable[KeyT]) -> None:
        for key in list(keys):
            del self._known[key]


def weight_of(load: int) -> int:
    """Return the weight of a load in bytes per second, to the nearest unit."""
    return max(MIN_WEIGHT, (load + WEIGHT_UNIT // 2) // WEIGHT_UNIT)


def leaves_band(load: int, weight: int) -> bool:
    """Tell whether ``load``, in bytes per second, is too far from ``weight`` to be told by it."""
    load = max(load, MIN_WEIGHT * WEIGHT_UNIT)
    return load >= weight * WEIGHT_UNIT * BAND_FACTOR or load * BAND_FACTOR <= weight * WEIGHT_UNIT
