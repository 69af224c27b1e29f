"""Turns load samples of segments into weights that are stable enough to balance by. Pure.

The load of a segment is the rate at which its consumer must read, in bytes/s: the arriving records,
plus the backlog over `CATCH_UP_SECONDS`. Each record counts `RECORD_OVERHEAD_BYTES` extra. A weight
is the load in units of `WEIGHT_UNIT`, and is stored in the ledger.

1. Loads are smoothed: a new sample counts one quarter (KCL: one half).
2. A weight stays while the smoothed load is between half of it and twice it: a load that varies by
   a third around any mean changes it at most once. The cost: a balance can be off by that band.
3. Weights change together, at most once per change interval, and not before the term is that old.
   (Pulsar sheds once in 60 s; KCL balances every 60 s.)
4. All loads below `MIN_WEIGHT` weigh the same: the jitter of idle streams moves nothing. (KCL moves
   idle leases endlessly, PR 1814; Pulsar added minimum amounts, PR 13915.)
5. A segment gets its first weight after `MIN_SAMPLES` samples. Until then it weighs the mean of the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from shard.balancing.load_target import KeyT

RECORD_OVERHEAD_BYTES = 256
"""Cost of a record beyond its bytes. An estimate: a stream of tiny records must not count as idle."""
CATCH_UP_SECONDS = 300
"""A backlog counts like the traffic that would produce it in this time."""
WEIGHT_UNIT = 256
"""Bytes per second per unit of weight."""
MIN_WEIGHT = 16
"""The smallest weight, 4 KiB/s: rounding to whole units stays small compared with the band."""
BAND_FACTOR = 2
"""A weight changes when the load is this many times larger or smaller. It must exceed 1.3 ÷ 0.7."""
SMOOTHING_DIVISOR = 4
"""A new sample counts one part in this number."""
SAMPLE_INTERVAL_SECONDS = 10.0
CHANGE_INTERVAL_SECONDS = 60.0
MIN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class LoadSample:
    records: int
    size_bytes: int
    backlog: int
    """Unacknowledged records; 0 if the type acknowledges nothing."""

    @property
    def cost(self) -> int:
        """Cost of all stored records, in bytes."""
        return self.size_bytes + RECORD_OVERHEAD_BYTES * self.records

    @property
    def backlog_cost(self) -> int:
        return self.cost * self.backlog // self.records if self.records else 0


@dataclass(slots=True)
class _SegmentLoad:
    cost: int
    load: int | None
    """In bytes per second; None before the second sample."""
    samples: int = 0


class WeightSmoother(Generic[KeyT]):
    """Turns samples into weights during one leader term."""

    def __init__(
        self, at_seconds: float, weights: Mapping[KeyT, int], change_interval_seconds: float = CHANGE_INTERVAL_SECONDS
    ) -> None:
        """Start at ``at_seconds`` of a monotonic clock with the recorded ``weights``."""
        self._change_interval_seconds = change_interval_seconds
        self._changed_at = at_seconds
        self._sampled_at = at_seconds
        self._initial_loads = {key: weight * WEIGHT_UNIT for key, weight in weights.items()}
        """Loads to start with, so that the first sample of a term counts no more than later ones."""
        self._known: dict[KeyT, _SegmentLoad] = {}

    def add_sample(
        self, at_seconds: float, load_samples: Mapping[KeyT, LoadSample], weights: Mapping[KeyT, int]
    ) -> dict[KeyT, int]:
        """Add one sample; return the weights that change, usually none. ``weights``: the recorded ones."""
        elapsed_ms = max(1, round((at_seconds - self._sampled_at) * 1000))
        self._sampled_at = at_seconds
        for key, sample in load_samples.items():
            known = self._known.get(key)
            if known is None:
                self._known[key] = _SegmentLoad(sample.cost, self._initial_loads.pop(key, None))
                continue
            arrived = (sample.cost - known.cost) * 1000 // elapsed_ms
            load = arrived + sample.backlog_cost // CATCH_UP_SECONDS
            known.load = load if known.load is None else known.load + (load - known.load) // SMOOTHING_DIVISOR
            known.cost = sample.cost
            known.samples += 1
        for key in self._known.keys() - load_samples.keys():
            del self._known[key]
        if at_seconds - self._changed_at < self._change_interval_seconds:
            return {}
        changed = self._changed(weights)
        if changed:
            self._changed_at = at_seconds
        return changed

    def _changed(self, weights: Mapping[KeyT, int]) -> dict[KeyT, int]:
        known = [(key, each.load, weights.get(key)) for key, each in self._known.items() if each.samples >= MIN_SAMPLES]
        return {
            key: weight_of(load)
            for key, load, weight in known
            if load is not None and (weight is None or leaves_band(load, weight))
        }


def weight_of(load: int) -> int:
    """Return the weight of a load in bytes per second, to the nearest unit."""
    return max(MIN_WEIGHT, (load + WEIGHT_UNIT // 2) // WEIGHT_UNIT)


def leaves_band(load: int, weight: int) -> bool:
    """Return whether ``load``, in bytes per second, is outside the band around ``weight``."""
    load = max(load, MIN_WEIGHT * WEIGHT_UNIT)
    return load >= weight * WEIGHT_UNIT * BAND_FACTOR or load * BAND_FACTOR <= weight * WEIGHT_UNIT
