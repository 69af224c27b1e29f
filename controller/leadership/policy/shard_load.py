"""Measure the loads of shards, and decide which loads a daemon reports to the others for the spread. Pure.

The load of a shard is what its leader receives, in bytes/s. Each message counts `MESSAGE_OVERHEAD_BYTES` extra.

Rules:

1. Loads are smoothed over `SMOOTHING_SECONDS`. Without an earlier report, the first load is the mean of
   `FIRST_SECONDS`.
2. A term continues with the load that was reported last for its shard, so a transfer or a failure changes no weight.
3. A report changes when the load is more than `BAND_FACTOR` times larger or smaller. So shards with equal loads never
   differ in weight, and a load that varies within the band writes nothing to ZooKeeper.
4. Loads below `MIN_LOAD` are reported as that: the jitter of idle shards moves nothing.
5. A daemon reports changes together, at most once per `REPORT_INTERVAL_SECONDS`; only a shard that it leads and that no
   live daemon reports is reported at once.
6. It reports the shards that it leads, and those that it led before until another daemon reports them.
7. The load of a shard is the report of its holder, otherwise the largest one. All daemons see the same reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Final

MESSAGE_OVERHEAD_BYTES: Final = 16 << 10
"""Cost of a message beyond its bytes. An estimate: small messages must not count as idle."""
MIN_LOAD: Final = 1 << 20
"""Bytes per second: 64 small messages per second, about one per cent of what a leader can do."""
BAND_FACTOR: Final = 1.2
"""Its square is below 1.5, the smallest load relative to the mean that `spread.weights` rounds to 2."""
SMOOTHING_SECONDS: Final = 300.0
FIRST_SECONDS: Final = 30.0
REPORT_INTERVAL_SECONDS: Final = 60.0

Loads = Mapping[int, int]
"""Shard → load in bytes per second."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What the leader of a shard has received since its term began."""

    leader_epoch: int
    cost: int
    """Bytes of the messages, with `MESSAGE_OVERHEAD_BYTES` for each."""


@dataclass(slots=True)
class _Measured:
    leader_epoch: int
    began: float
    first_cost: int
    at: float
    cost: int
    load: float | None
    """None: not measured for long enough."""


class ShardLoads:
    """The loads of the shards that one daemon leads. Times are of one steady clock."""

    def __init__(self) -> None:
        self.reported: Loads = {}
        self._known: dict[int, int] = {}
        """What was reported last for each shard, by any daemon."""
        self._measured: dict[int, _Measured] = {}
        self._changed_at: float | None = None

    def measure(self, now: float, led: Mapping[int, Arrivals]) -> None:
        """Take one sample of all shards that this daemon leads."""
        self._measured = {shard: each for shard, each in self._measured.items() if shard in led}
        for shard, arrivals in led.items():
            each = self._measured.get(shard)
            if each is None or each.leader_epoch != arrivals.leader_epoch:
                cost = arrivals.cost
                self._measured[shard] = _Measured(arrivals.leader_epoch, now, cost, now, cost, self._known.get(shard))
            elif now > each.at:
                _add_sample(each, now, arrivals.cost)

    def report(self, now: float, holders: Mapping[int, str | None], others: Mapping[str, Loads]) -> bool:
        """Decide what to report, and return whether that has changed. ``others``: the reports of other live daemons."""
        elsewhere = {shard for loads in others.values() for shard in loads}
        self._known |= shard_loads(holders, others)
        wanted = {shard: load for shard, load in self.reported.items() if shard not in elsewhere}
        orphans = False
        for shard, each in self._measured.items():
            if each.load is not None:
                wanted[shard] = _within_band(each.load, self._known.get(shard))
                orphans |= shard not in elsewhere and shard not in self.reported
        waits = self._changed_at is not None and now - self._changed_at < REPORT_INTERVAL_SECONDS
        if wanted == self.reported or (waits and not orphans):
            return False
        self.reported, self._changed_at = wanted, now
        self._known |= wanted
        return True


def shard_loads(holders: Mapping[int, str | None], reports: Mapping[str, Loads]) -> dict[int, int]:
    """Return the load of each shard that a live daemon reports (rule 7)."""
    found = {shard: max(each.get(shard, 0) for each in reports.values()) for shard in set().union(*reports.values())}
    held = ((shard, reports.get(holder or "", {}).get(shard)) for shard, holder in holders.items())
    return found | {shard: load for shard, load in held if load is not None}


def _add_sample(each: _Measured, now: float, cost: int) -> None:
    if each.load is not None:
        share = 1 - exp((each.at - now) / SMOOTHING_SECONDS)
        each.load += ((cost - each.cost) / (now - each.at) - each.load) * share
    elif now - each.began >= FIRST_SECONDS:
        each.load = (cost - each.first_cost) / (now - each.began)
    each.at, each.cost = now, cost


def _within_band(load: float, reported: int | None) -> int:
    """Return what to report for ``load`` (rules 3 and 4)."""
    load = max(load, MIN_LOAD)
    if reported is not None and reported / BAND_FACTOR <= load <= reported * BAND_FACTOR:
        return reported
    return round(load)
