"""Checks the backlogs that the leader reports against a model that knows the key of every record.

The model keeps the set of acknowledged records of each subscription. A reported count that is not
called an estimate must be the number of the other records, so a drained segment must have none.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from controller.state.shard_state import ShardState
from coordinator.reporting.progress import unacknowledged
from headgate.model import entries as e
from headgate.model.hashing import KEY_BUCKETS, key_bucket
from tests.simulation.broken_promise import InvariantViolationError

Progress = tuple[int, int, int]
"""Shard, subscription, segment."""


@dataclass
class BacklogChecker:
    """The records and acknowledgements of one run."""

    buckets: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """(shard, topic, segment) → offset → key bucket of its record."""
    acknowledged: dict[Progress, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets of acknowledged records."""
    newly_acknowledged: set[tuple[int, int]] = field(default_factory=set)
    """(segment, offset) that the last acknowledgement added."""
    exact: int = 0
    """Number of exact counts that were checked."""
    estimated: int = 0

    def record_stored(self, shard: int, topic_id: int, segment: int, offset: int, key: bytes) -> None:
        self.buckets[shard, topic_id, segment][offset] = key_bucket(key, KEY_BUCKETS)

    def entry_applied(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Follow ``entry``, which ``state`` contains already, and check the counts that it changes."""
        match entry:
            case e.SubscriptionCreated() | e.SubscriptionSeek():
                for segment, position in entry.positions.items():
                    stored = self.buckets[state.shard, entry.topic_id, segment]
                    self.acknowledged[state.shard, entry.subscription_id, segment] = {o for o in stored if o < position}
                self._check(state, entry.subscription_id, set(entry.positions))
            case e.RecordsAcknowledged():
                self.newly_acknowledged.clear()
                if entry.seek_generation == state.subscriptions[entry.subscription_id].seek_generation:
                    for acknowledged in entry.ranges:
                        self._acknowledge(state.shard, entry, acknowledged)
                self._check(state, entry.subscription_id, {each.segment for each in entry.ranges})
            case e.SegmentsDrained():
                self._check(state, entry.subscription_id, set(entry.segments))

    def _acknowledge(self, shard: int, entry: e.RecordsAcknowledged, acknowledged: e.AcknowledgedRange) -> None:
        stored = self.buckets[shard, entry.topic_id, acknowledged.segment]
        known = self.acknowledged[shard, entry.subscription_id, acknowledged.segment]
        new = {
            offset
            for offset, bucket in stored.items()
            if acknowledged.first_offset <= offset < acknowledged.end_offset
            and acknowledged.first_bucket <= bucket < (acknowledged.end_bucket or KEY_BUCKETS)
        } - known
        known |= new
        self.newly_acknowledged |= {(acknowledged.segment, offset) for offset in new}

    def _check(self, state: ShardState, subscription_id: int, segments: set[int]) -> None:
        subscription = state.subscriptions[subscription_id]
        topic = state.topics_by_id[subscription.topic_id]
        for segment in sorted(segments & topic.layout.segments.keys()):
            reported = unacknowledged(subscription, topic, segment)
            if reported is None:
                continue
            # Records of this chunk are known before the fold counts them.
            stored = {
                o for o in self.buckets[state.shard, topic.topic_id, segment] if o < topic.tails[segment].next_offset
            }
            left = len(stored - self.acknowledged[state.shard, subscription_id, segment])
            self.estimated += reported.estimated
            self.exact += not reported.estimated
            if not reported.estimated and reported.records != left:
                raise InvariantViolationError(
                    f"{subscription.name}: segment {segment} has {left} unacknowledged records, not {reported.records}"
                )
