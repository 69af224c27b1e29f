"""Checks that a consumer does not read a segment that it no longer holds, and that no two read one at the same time.

1. Late and repeated messages of the leader may name the same holding again: a program does not begin again. What is queued
   in it may still be delivered once. One that was removed, or whose time was up, may read on: it does not know yet.
2. Another consumer gets the segment once the lease of such a program has ended, or it has finished: from then on, in true
   time, the former holder delivers nothing of it. One that was evicted by a command, replaced or moved has no such time.
3. What a STREAM acknowledges, the present holder was delivered.
"""

from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Literal

from headgate.model import entries as e
from headgate.model.layout import SegmentSlice, buckets_of, segment_of, slice_of
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from tests.simulation.broken_promise import BrokenPromiseError

CERTAIN: Final = frozenset({"confirmed", "drained"})
"""Reasons of a release after which a program has no reason to begin again."""
ENDED: Final = frozenset({"confirmed", "drained", "timed_out", "left", "evicted"})
"""Reasons of a release or a removal before which the holder has finished, or its lease has ended."""
Holding = tuple[str, int, int]
"""(program, segment, generation)."""


@dataclass
class HoldingRules:
    leases_end: bool = True
    """Whether leases protect all holders: clocks run at the same speed, and no command evicts a consumer."""
    streams: AbstractSet[str] = frozenset()
    """STREAM subscriptions of which every delivery is checked here; none parks a key."""
    _released: dict[Holding, Literal[e.ReleaseReason, "rewound"]] = field(default_factory=dict)
    """Holding that was certainly released → why: also by a seek."""
    _last_offsets: dict[Holding, int] = field(default_factory=dict)
    """Holding → the highest offset delivered."""
    _ended: dict[tuple[int, int], list[tuple[Holding, AbstractSet[int]]]] = field(default_factory=dict)
    """(subscription, segment) → holdings that have ended (rule 2), with their buckets."""
    _taken: dict[Holding, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Holding → its buckets that another consumer has got since."""

    def released(self, state: ShardState, entry: e.SegmentReleased) -> None:
        """Note a release, before it is applied."""
        subscription = state.subscriptions[entry.subscription_id]
        held = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        if entry.reason in CERTAIN:
            self._released[_holding(subscription, held)] = entry.reason
        if entry.reason in ENDED:
            self._end(subscription, held)

    def rewound(self, state: ShardState, entry: e.SubscriptionSeek) -> None:
        """Note that a seek ends all holdings, before it is applied."""
        subscription = state.subscriptions[entry.subscription_id]
        self._released.update({_holding(subscription, held): "rewound" for held in subscription.holdings})

    def removed(self, state: ShardState, entry: e.ConsumerRemoved) -> None:
        """Note a removal, before it is applied."""
        subscription = state.subscriptions[entry.subscription_id]
        if entry.reason in ENDED and not entry.token:
            for held in subscription.holdings.held_by(entry.consumer):
                self._end(subscription, held)

    def granted(self, state: ShardState, entry: e.SegmentGranted) -> None:
        """Note a grant: former holders lose the buckets."""
        subscription = state.subscriptions[entry.subscription_id]
        program = _program(subscription, entry.consumer)
        buckets = buckets_of(slice_of(entry.segment, entry.first_bucket, entry.end_bucket))
        for former, held in self._ended.get((entry.subscription_id, entry.segment), ()):
            if former[0] != program:
                self._taken[former] |= held & set(buckets)

    def check_delivery(self, holding: Holding, offset: int, bucket: int, *, is_attempt: bool = False) -> None:
        """Check a record of a key bucket that was delivered. ``is_attempt``: a handler may get it again after a failure."""
        program, segment, generation = holding
        last, reason = self._last_offsets.get(holding, -1), self._released.get(holding)
        if offset <= last and reason is not None and not (is_attempt and reason == "rewound"):
            raise BrokenPromiseError(
                f"{program}: {segment}:{offset} of generation {generation} was delivered again after its release"
            )
        if self.leases_end and bucket in self._taken.get(holding, ()):
            raise BrokenPromiseError(
                f"{program}: {segment}:{offset} of generation {generation} was delivered after another consumer got it"
            )
        self._last_offsets[holding] = max(last, offset)

    def check_acknowledgement(self, state: ShardState, entry: e.RecordsAcknowledged) -> None:
        """Check that the holder was delivered what is acknowledged (rule 3), in segments that were never divided."""
        subscription = state.subscriptions[entry.subscription_id]
        for each in entry.ranges:
            divided = each.end_bucket or each.segment in subscription.progress.progress_by_bucket
            covered = each.end_offset <= subscription.position(each.segment)
            if subscription.name not in self.streams or divided or covered:
                continue
            holding = _holding(subscription, each.segment)
            if (last := self._last_offsets.get(holding, -1)) < each.end_offset - 1:
                raise BrokenPromiseError(
                    f"{subscription.name}: {holding[0]} acknowledges segment {each.segment} to {each.end_offset}, "
                    f"and got it to {last}"
                )

    def _end(self, subscription: Subscription, held: SegmentSlice) -> None:
        known = subscription.subscription_id, segment_of(held)
        self._ended.setdefault(known, []).append((_holding(subscription, held), set(buckets_of(held))))


def _holding(subscription: Subscription, held: SegmentSlice) -> Holding:
    holding = subscription.holdings[held]
    return _program(subscription, holding.consumer), segment_of(held), holding.generation


def _program(subscription: Subscription, consumer: str) -> str:
    """Return the client id of a consumer, without its user."""
    return subscription.consumers[consumer].client_id.rpartition("/")[2]
