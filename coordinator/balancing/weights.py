"""Decide how heavy each segment is: from what was measured to numbers that are calm enough to balance by.

Pure: readings and times in, weights out. Who measures is coordinator.load_watch; who uses the weights is
coordinator.balancing.load_target. They are kept in the ledger, so a new leader begins with those of the last one.

The load of a segment is what its reader has to get through: what comes in, plus what has gathered, spread over
`CATCH_UP_SECONDS`. It is measured in bytes per second, and a record counts as `RECORD_BYTES` more than it has, because
small records cost a reader more than their bytes. A weight is that load in steps of `STEP`.

The rules, which are there so that nothing thrashes:

1. Loads are smoothed: each sample counts for a quarter (KCL's exponential average counts a half).
2. A weight stays as it is while the smoothed load lies between half of it and twice of it, so that a load which swings
   by a third around whatever mean, at whatever pace, changes its weight once at most.
3. Weights change together, at most once in `HOLD_SECONDS`, and not before a reign is that old. (Pulsar sheds once
   in 60 s, and again for the same bundle after minutes; KCL balances every 60 s.)
4. Below `IDLE` everything weighs the same: the jitter of quiet streams moves nothing. (KCL's relative band alone moves
   idle leases for ever, PR 1814; Pulsar had to add smallest amounts, PR 13915.)
5. A segment gets its first weight after `FIRST_SAMPLES`. Until then it weighs what the others do on average.

The price of rule 2 is that a balance by weights can be off by the width of the band; in sums over some segments less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

from coordinator.balancing.load_target import KeyT

RECORD_BYTES = 256
"""What a record costs beyond its bytes: chosen, so that a stream of tiny records is not taken for an idle one."""
CATCH_UP_SECONDS = 300
"""A backlog weighs as much as the traffic that would bring it in this time."""
STEP = 256
"""Bytes per second in one unit of weight."""
IDLE = 16
"""The smallest weight: 4 KiB/s, so that rounding to whole units is small beside the band."""
BAND = 2
"""How many times a weight the load must be, or a part of it, to change it: above 1.3 ÷ 0.7."""
SMOOTHING = 4
"""One over the share of the newest sample."""
SAMPLE_SECONDS = 10.0
HOLD_SECONDS = 60.0
FIRST_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Reading:
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
        return self.size_bytes + RECORD_BYTES * self.records

    @property
    def backlog_cost(self) -> int:
        """What is not acknowledged, by the mean of all records."""
        return self.cost * self.backlog // self.records if self.records else 0


@dataclass(slots=True)
class _Known:
    """What is known of one segment."""

    cost: int
    load: int | None
    """Smoothed, in bytes per second; None before the second reading."""
    samples: int = 0


class Damper(Generic[KeyT]):
    """Turns readings into weights during one reign."""

    def __init__(self, at_seconds: float, weights: Mapping[KeyT, int]) -> None:
        """Begin at ``at_seconds`` of a monotonic clock with the ``weights`` on record."""
        self._settled_at = at_seconds
        self._read_at = at_seconds
        self._begun = {key: weight * STEP for key, weight in weights.items()}
        """Loads to begin with, so that the first samples of a reign do not count for more than later ones."""
        self._known: dict[KeyT, _Known] = {}

    def read(self, at_seconds: float, readings: Mapping[KeyT, Reading], weights: Mapping[KeyT, int]) -> dict[KeyT, int]:
        """Take one sample; return the weights that change, mostly none. ``weights``: those on record."""
        elapsed_ms = max(1, round((at_seconds - self._read_at) * 1000))
        self._read_at = at_seconds
        for key, reading in readings.items():
            known = self._known.get(key)
            if known is None:
                self._known[key] = _Known(reading.cost, self._begun.pop(key, None))
                continue
            arrived = max(0, reading.cost - known.cost) * 1000 // elapsed_ms
            load = arrived + reading.backlog_cost // CATCH_UP_SECONDS
            known.load = load if known.load is None else known.load + (load - known.load) // SMOOTHING
            known.cost = reading.cost
            known.samples += 1
        self._forget(self._known.keys() - readings.keys())
        if at_seconds - self._settled_at < HOLD_SECONDS:
            return {}
        changed = self._changed(weights)
        if changed:
            self._settled_at = at_seconds
        return changed

    def _changed(self, weights: Mapping[KeyT, int]) -> dict[KeyT, int]:
        changed: dict[KeyT, int] = {}
        for key, known in self._known.items():
            if known.load is not None and known.samples >= FIRST_SAMPLES:
                weight = weights.get(key)
                if weight is None or leaves_band(known.load, weight):
                    changed[key] = weight_of(known.load)
        return changed

    def _forget(self, keys: Iterable[KeyT]) -> None:
        for key in list(keys):
            del self._known[key]


def weight_of(load: int) -> int:
    """Return the weight of a load in bytes per second, to the nearest unit."""
    return max(IDLE, (load + STEP // 2) // STEP)


def leaves_band(load: int, weight: int) -> bool:
    """Tell whether ``load``, in bytes per second, is too far from ``weight`` to be told by it."""
    load = max(load, IDLE * STEP)
    return load >= weight * STEP * BAND or load * BAND <= weight * STEP
