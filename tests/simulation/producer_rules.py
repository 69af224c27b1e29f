"""Checks which producers a shard forgets. It keeps its own order of use, from the entries of the ledger alone.

1. An anonymous producer is forgotten only while there are more than the limit, the least recently used first, or when it
   has been idle for long, or for ten minutes if its user has a quota, which lets a new one take its place.
2. A named producer is never forgotten.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model import entries as e
from shard.access.quotas import IDLE_PRODUCER_MS
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.tenants_program import TENANTS


@dataclass
class ProducerRules:
    most: int | None = None
    """The limit of each shard; None: not known, so nothing is checked."""
    idle_seconds: float = math.inf
    """After how long an idle one is forgotten. Default: no run lasts so long."""
    chunk_seconds: float = 10.0
    """How much earlier than it was written a chunk with a producer's last batch may have begun."""
    forgotten: int = 0
    _anonymous: defaultdict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Shard → id → when it was used, least recently used first."""
    _exchangeable: set[int] = field(default_factory=set)

    def opened(self, shard: int, entry: e.ProducerOpened, now: float = 0.0) -> None:
        """Note an identity; one that had a name keeps it, under whatever id."""
        known = self._anonymous[shard]
        before = entry.producer_id if entry.replaced_id is None else entry.replaced_id
        was_anonymous = known.pop(before, None) is not None
        known.pop(entry.producer_id, None)
        if entry.name is None and (was_anonymous or entry.producer_epoch == 0):
            known[entry.producer_id] = now
            self._exchangeable |= {entry.producer_id} if entry.user in TENANTS else set()

    def used(self, shard: int, producer_id: int | None, now: float = 0.0) -> None:
        """Note a batch of records or of acknowledgements."""
        known = self._anonymous[shard]
        if producer_id in known:
            del known[producer_id]
            known[producer_id] = now

    def check_expiry(
        self, shard: int, producer_ids: Iterable[int], now: float = 0.0, too_high_seconds: float = 0.0
    ) -> None:
        """Check the producers that are forgotten. Ages may be ``too_high_seconds`` too high."""
        known = self._anonymous[shard]
        surplus = None if self.most is None else len(known) - self.most
        for producer_id in producer_ids:
            if producer_id not in known:
                raise BrokenPromiseError(f"producer {producer_id} is forgotten, and it is not an anonymous one")
            exchanged_after = IDLE_PRODUCER_MS / 1000 if producer_id in self._exchangeable else math.inf
            may_idle_seconds = min(self.idle_seconds, exchanged_after)
            is_idle = now - known[producer_id] + too_high_seconds + self.chunk_seconds >= may_idle_seconds
            if surplus is not None and not is_idle:
                forgotten = f"producer {producer_id} of shard {shard} is forgotten"
                if surplus <= 0:
                    raise BrokenPromiseError(f"{forgotten}, and {len(known)} are not too many")
                if producer_id != (oldest := next(iter(known))):
                    raise BrokenPromiseError(f"{forgotten} before {oldest}, which was used earlier")
            if surplus is not None:
                surplus -= 1
            del known[producer_id]
            self.forgotten += 1
