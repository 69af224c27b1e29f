"""Checks the backlogs that the leader reports against a model that knows the key of every record.

The model keeps the set of acknowledged records of each subscription. A reported count that is not
called an estimate must be the number of the other records, so a drained segment must have none.

Drain checks are answered from the facts of the chunks, by the functions that Spark's tasks and the Spark process run
(drain.backlog.aggregates, drain.backlog.merge). Its backlogs must be those of the leaders.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from drain.backlog.aggregates import FACTS, aggregate, contributions
from drain.backlog.merge import StateRow, by_topic, drained, merged_rows, next_result, outstanding
from drain.protocol import Backlog, DrainQuery
from headgate.ledger.chunk import facts_of
from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, key_bucket
from shard.reporting.progress import unacknowledged
from shard.state.shard_state import ShardState
from tests.simulation.broken_promise import BrokenPromiseError

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
    new_facts: dict[int, list[Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Shard → the facts that its next count adds to the last one."""
    counted: dict[int, tuple[StateRow, ...]] = field(default_factory=lambda: defaultdict(tuple))
    """Shard → the rows of its last count."""
    drained: int = 0
    """Number of segments that a drain check found drained."""
    claimed_falsely: int = 0
    """Number of segments that a drain check called drained although they are not."""

    def record_stored(self, shard: int, row: Mapping[str, Any]) -> None:
        """Follow one record: the columns of a chunk with their values."""
        self.buckets[shard, row["topic_id"], row["segment"]][row["offset"]] = key_bucket(row["key"], KEY_BUCKETS)
        self.new_facts[shard].append(row | {"shard": shard, "size_bytes": len(row["key"]) + len(row["value"])})

    def drained_segments(self, state: ShardState, query: DrainQuery) -> dict[int, int]:
        """Return which segments of ``query`` are drained, and to which end, counted to the newest chunk."""
        shard = state.shard
        facts = pa.Table.from_pylist(self.new_facts.pop(shard, []), schema=FACTS)
        new = merged_rows(aggregate(contributions(facts))).get(shard, [])
        self.counted[shard] = next_result(self.counted[shard], new)
        rows = by_topic(self.counted[shard]).get(query.topic_id, ())
        backlogs = [each for each in outstanding(rows) if each.subscription_id == query.subscription_id]
        self._compare(state, query, backlogs)
        found = drained(backlogs, query.seek_generation, query.segments)
        self.drained += len(found)
        return found

    def false_claims(self, state: ShardState, query: DrainQuery, drained: Container[int]) -> dict[int, int]:
        """Return what a Spark process of another ledger says about the other sealed segments: they are drained."""
        topic = state.topics_by_id.get(query.topic_id)
        others = {} if topic is None else {s: topic.layout.segments.get(s) for s in query.segments if s not in drained}
        found = {s: each.end_offset for s, each in others.items() if each is not None and each.end_offset is not None}
        self.claimed_falsely += len(found)
        return found

    def _compare(self, state: ShardState, query: DrainQuery, backlogs: list[Backlog]) -> None:
        """Compare a count of the ledger with its fold."""
        subscription = state.subscriptions.get(query.subscription_id)
        topic = None if subscription is None else state.topics_by_id[subscription.topic_id]
        segments = {} if topic is None else topic.layout.segments
        if segments.keys() != {each.segment for each in backlogs}:
            raise BrokenPromiseError(
                f"shard {state.shard}: segments {sorted(segments)} are counted as {[each.segment for each in backlogs]}"
            )
        for each in backlogs:
            assert subscription is not None
            assert topic is not None
            known = unacknowledged(subscription, topic, each.segment)
            # Of an external topic, the ledger has the acknowledgements only.
            count = (each.records, each.estimated) if topic.external is None or known is not None else None
            found = (each.position, each.sealed, count)
            expected = (subscription.position(each.segment), segments[each.segment].end_offset is not None, known)
            if found != expected:
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {each.segment} is counted as {found}, and its leader has {expected}"
                )

    def entry_applied(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Follow ``entry``, which ``state`` contains already, and check the counts that it changes."""
        topic = state.topics_by_id.get(getattr(entry, "topic_id", -1))
        facts = facts_of(entry, None if topic is None else topic.layout)
        self.new_facts[state.shard] += (fact | {"shard": state.shard} for fact in facts)
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
                raise BrokenPromiseError(
                    f"{subscription.name}: segment {segment} has {left} unacknowledged records, not {reported.records}"
                )
