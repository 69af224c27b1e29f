"""Checks that a consumer does not begin to read a segment again that it no longer holds.

Late and repeated messages of the leader may name the same holding again. What is queued in a program may still be
delivered once. A consumer that was removed, or whose time was up, may read on: it does not know yet.
"""

from dataclasses import dataclass, field
from typing import Final

from headgate.model import entries as e
from headgate.model.bucket_ranges import slice_of
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import InvariantViolationError

CERTAIN: Final = frozenset({"confirmed", "drained", "rewound"})
"""Reasons of a release after which a program has no reason to begin again."""
Holding = tuple[str, int, int]
"""(program, segment, generation)."""


@dataclass
class HoldingRules:
    _released: set[Holding] = field(default_factory=set)
    _last_offsets: dict[Holding, int] = field(default_factory=dict)
    """Holding → the highest offset delivered."""

    def released(self, state: ShardState, entry: e.SegmentReleased) -> None:
        """Note a release, before it is applied."""
        if entry.reason in CERTAIN:
            subscription = state.subscriptions[entry.subscription_id]
            holding = subscription.holdings[slice_of(entry.segment, entry.first_bucket, entry.end_bucket)]
            program = subscription.consumers[holding.consumer].client_id
            self._released.add((program, entry.segment, entry.generation))

    def check_delivery(self, program: str, segment: int, generation: int, offset: int) -> None:
        """Check a record that was delivered."""
        holding = program, segment, generation
        last = self._last_offsets.get(holding, -1)
        if offset <= last and holding in self._released:
            raise InvariantViolationError(
                f"{program}: {segment}:{offset} of generation {generation} was delivered again after its release"
            )
        self._last_offsets[holding] = max(last, offset)
