"""Decides the status and the backlog of one segment, as every report shows them. Pure.

The backlog is None if it is not tracked (CHECKPOINT), or if only the source of an external topic
knows it: offsets there may have gaps, so they count no records.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headgate.model.layout import KEY_BUCKETS, SegmentSlice, buckets_of, segment_of
from headgate.protocol.backlog import RecordCount, estimate_drain
from headgate.views.subscriptions import AssignmentStatus
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.gate import Gate, tracks_acknowledgements


def segment_status(subscription: Subscription, gate: Gate, segment: int, *, shared: bool) -> AssignmentStatus:
    """Return the status as in `SegmentAssignment`; ``shared``: consumers hold bucket ranges of it."""
    if segment in gate.retired:
        return "drained"
    holding = subscription.holdings.get(segment)
    if holding is not None:
        return "granted" if holding.revoked_at_ms is None else "revoking"
    if shared:
        return "shared"
    return "blocked" if segment in gate.blocked else "waiting"


def unacknowledged(subscription: Subscription, topic: TopicView, segment_slice: SegmentSlice) -> RecordCount | None:
    """Return the backlog of ``segment_slice`` by the leader's own count."""
    if not tracks_acknowledgements(subscription.type):
        return None
    segment = segment_of(segment_slice)
    if segment in subscription.drained:
        return RecordCount(0)
    if topic.external is None:
        return subscription.progress.unacknowledged_records(segment_slice, topic.tails[segment].next_offset)
    end_offset = topic.external.max_end_offset(topic.layout.segments[segment])
    return RecordCount(0) if end_offset is not None and subscription.position(segment) >= end_offset else None


def unread_segments(
    subscription: Subscription, topic: TopicView, consumer: str, known: Iterable[tuple[int, int]]
) -> int:
    """Return how many segments nothing reads at present, although they have unacknowledged records.

    A consumer that reads a subscription to its end asks for it. A segment counts as read if each of its key
    buckets is held without a revocation by

    1. the asking consumer, which knows the grant: it is in its list, or
    2. another consumer that is connected: it delivers the records itself.

    So a segment counts while it is blocked, is handed over, has no holder, or is held by a consumer in its grace
    period. A grant that is on its way counts as well.

    ``known``: (segment, generation) of the grants that the asking ``consumer`` knows.
    """
    known = set(known)
    read_buckets: Counter[int] = Counter()
    for held, holding in subscription.holdings.items():
        segment, holder = segment_of(held), subscription.consumers[holding.consumer]
        is_read = (
            (segment, holding.generation) in known
            if holding.consumer == consumer
            else holder.disconnected_at_ms is None
        )
        if is_read and holding.revoked_at_ms is None:
            read_buckets[segment] += len(buckets_of(held))
    return sum(
        tail.next_offset > subscription.position(segment) and read_buckets[segment] < KEY_BUCKETS
        for segment, tail in topic.tails.items()
    )


WINDOW_SECONDS: Final = 30.0
"""Long enough to smooth acknowledgement batches, short enough to notice a stopped consumer."""
SAMPLE_INTERVAL_SECONDS: Final = 2.0
"""Time between two samples, and the shortest time over which a rate is measured."""


class DrainRate:
    """Measures how fast the blocking segments are acknowledged, and when they will be drained.

    1. A subscription without blocked segments costs nothing. A falling count, and progress after none, start a new
       window.
    2. The consumers of a shared segment drain it side by side: each has its own backlog and its own rate, and the
       segment is drained when the last of them is done.
    """

    def __init__(self) -> None:
        self._samples: dict[SegmentSlice, deque[tuple[float, int]]] = {}
        self._due_at = 0.0

    def is_due(self, now_seconds: float) -> bool:
        return now_seconds >= self._due_at

    def add_sample(self, now_seconds: float, acknowledged: Mapping[SegmentSlice, int]) -> None:
        """Add the acknowledged records of all `rated_slices`. Those that are missing are dropped."""
        self._due_at = now_seconds + SAMPLE_INTERVAL_SECONDS
        for each in self._samples.keys() - acknowledged.keys():
            del self._samples[each]
        for each, records in acknowledged.items():
            samples = self._samples.setdefault(each, deque())
            if samples and records < samples[-1][1]:
                samples.clear()
            elif samples and records > samples[-1][1] == samples[0][1]:
                samples = self._samples[each] = deque([samples[-1]])
            if not samples or now_seconds - samples[-1][0] >= SAMPLE_INTERVAL_SECONDS:
                samples.append((now_seconds, records))
            while now_seconds - samples[0][0] > WINDOW_SECONDS:
                samples.popleft()

    def rates(self) -> dict[SegmentSlice, float]:
        """Return slice → acknowledged records per second, for slices sampled long enough."""
        return {
            each: (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
            for each, samples in self._samples.items()
            if len(samples) > 1
        }


class DrainOutlook(NamedTuple):
    """How fast a blocking segment is acknowledged."""

    records_per_second: float | None
    """The rate of all its consumers together; None: not measured yet."""
    expected_seconds: float | None
    """Until the slowest of them is done, at its own rate; None: not known, or never."""
    slowest: SegmentSlice


def rated_slices(subscription: Subscription, segments: Iterable[int]) -> list[SegmentSlice]:
    """Return what the consumers of ``segments`` read, and those of ``segments`` that have none."""
    wanted = set(segments)
    held = subscription.holdings.held_in(wanted)
    return sorted([*held, *(wanted - {segment_of(each) for each in held})])


def drain_outlook(
    subscription: Subscription,
    topic: TopicView,
    segment: int,
    rates: Mapping[SegmentSlice, float],
    counted: Mapping[int, int | None],
) -> DrainOutlook:
    """Return the outlook of a segment. ``counted``: the backlog of segments that only their source knows."""
    slices, left = rated_slices(subscription, [segment]), []
    for each in slices:
        count = unacknowledged(subscription, topic, each)
        records = counted.get(segment) if count is None else count.records
        left.append((estimate_drain(records, 0.0, rates.get(each), tracked=True)[1], each))
    known = [(seconds, each) for seconds, each in left if seconds is not None]
    seconds, slowest = max(known, default=(None, segment))
    # Buckets without a consumer wait, and so does a consumer that acknowledges nothing.
    is_known = known == left and sum(len(buckets_of(each)) for each in slices) == KEY_BUCKETS
    per_second = sum(rates[each] for each in slices) if rates.keys() >= set(slices) else None
    return DrainOutlook(per_second, seconds if is_known else None, slowest)
