"""Checks which producers a shard forgets. It keeps its own order of use, from the entries of the ledger alone.

1. An anonymous producer is forgotten only while there are more than the limit, and the least recently used first.
   No run lasts as long as the time after which an idle one is forgotten too.
2. A named producer is never forgotten.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model import entries as e
from tests.simulation.broken_promise import InvariantViolationError


@dataclass
class ProducerRules:
    most: int | None = None
    """The limit of each shard; None: not known, so nothing is checked."""
    forgotten: int = 0
    _anonymous: defaultdict[int, dict[int, None]] = field(default_factory=lambda: defaultdict(dict))
    """Shard → ids, least recently used first."""

    def opened(self, shard: int, entry: e.ProducerOpened) -> None:
        """Note an identity; one that had a name keeps it, under whatever id."""
        known = self._anonymous[shard]
        before = entry.producer_id if entry.replaced_id is None else entry.replaced_id
        was_anonymous = before in known
        known.pop(before, None)
        known.pop(entry.producer_id, None)
        if entry.name is None and (was_anonymous or entry.producer_epoch == 0):
            known[entry.producer_id] = None

    def used(self, shard: int, producer_id: int | None) -> None:
        """Note a batch of records or of acknowledgements."""
        known = self._anonymous[shard]
        if producer_id in known:
            del known[producer_id]
            known[producer_id] = None

    def check_expiry(self, shard: int, producer_ids: Iterable[int]) -> None:
        """Check the producers that are forgotten."""
        known = self._anonymous[shard]
        surplus = None if self.most is None else len(known) - self.most
        for producer_id in producer_ids:
            if producer_id not in known:
                raise InvariantViolationError(f"producer {producer_id} is forgotten, and it is not an anonymous one")
            if surplus is not None:
                if surplus <= 0:
                    raise InvariantViolationError(
                        f"producer {producer_id} of shard {shard} is forgotten, and {len(known)} are not too many"
                    )
                if producer_id != (oldest := next(iter(known))):
                    raise InvariantViolationError(
                        f"producer {producer_id} of shard {shard} is forgotten before {oldest}, which was used earlier"
                    )
                surplus -= 1
            del known[producer_id]
            self.forgotten += 1
