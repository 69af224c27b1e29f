"""Decides whether a topic splits or merges now, and gives the reason. Pure.

Times come from the layout and rates from the ledger, so a new leader decides as its predecessor would.

1. At most one change per evaluation, none within the topic's cool-down. Splits come first.
2. A segment splits if its records/s or bytes/s over a whole split window exceed a threshold: the one furthest above
   first. Otherwise the busiest segment splits if consumers are without a segment and its load is worth it.
3. A segment is judged one cool-down and one window after its creation, and one window after the
   start of the term or a step of its time: producers that were disconnected send their backlog, which is not their
   rate. A roll changes no range, so it begins none of this again.
4. A segment whose load without its hottest hash is below half a threshold does not split: one key stays in one segment.
5. Two neighbors merge if their combined load in the busiest split window of the merge window is below the merge ratio,
   both, the term and its last step of time are older than the merge window, and the last split is longer ago than the
   merge cool-down. While consumers need the pair, the limit is half the load that is worth a split.
6. Never above the most segments, below the fewest, or behind too many undrained generations. Some are allowed: a
   backlog is read by as many consumers as it has segments.
7. A split that a limit prevents is reported with that limit.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from controller.settings.sections import ScalingSettings
from headgate.ledger.chunk import RecordColumns
from headgate.model.entries import TopicPolicy
from headgate.model.layout import Layout, Segment, segment_hash
from metrics.label_values import LayoutChangeReason, SplitLimit
from shard.state.subscription import Subscription
from shard.state.topic import SLOT_MS, Rate
from shard.subscriptions.gate import is_gated

MERGE_LOAD_RATIO = 0.25
"""Common load of two neighbors, as a fraction of the split thresholds, below which they merge: traffic must grow
fourfold before the merged segment is split again."""
CONSUMER_SPLIT_LOAD_RATIO = 0.1
"""Load that is worth a split for consumers: idle consumers of an idle topic cost nothing."""
MAX_UNDRAINED_DEPTH = 8
"""Ancestor generations that a STREAM subscription still has to drain: each costs a lagging reader one more handover.
Eight doublings make 256 segments."""
MIN_REMAINING_LOAD = 0.5
"""Load beside the hottest hash, as a fraction of a threshold, that makes a split worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    rate: Rate
    """Over the split window."""
    peak: Rate
    """The busiest split window within the merge window."""
    hottest_hash_fraction: float | None = None
    """Fraction of its records with the most frequent hash; None: too few samples."""
    undrained_generations: int = 0
    """Longest chain of ancestors that a STREAM subscription in use has not drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    layout: Layout
    segments: Mapping[int, SegmentLoad]
    consumers: int
    """Connected consumers of the subscription with the most."""
    measured_since_ms: int
    """Rates are true since this ledger time: the start of the term, or the last step of ledger time."""


@dataclass(frozen=True, slots=True)
class Split:
    segment: int
    why: LayoutChangeReason
    detail: str


@dataclass(frozen=True, slots=True)
class Merge:
    first: int
    second: int
    why: LayoutChangeReason
    detail: str


@dataclass(frozen=True, slots=True)
class SuppressedSplit:
    segment: int
    limit: SplitLimit
    detail: str


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The change to make now, if any, and the splits that limits prevent."""

    change: Split | Merge | None = None
    suppressed: tuple[SuppressedSplit, ...] = field(default=())


def effective_settings(cluster: ScalingSettings, policy: TopicPolicy, first_segments: int) -> ScalingSettings:
    """Return the settings of one topic: those of its policy, else those of the cluster."""
    fewest = max(cluster.min_segments, first_segments) if policy.min_segments is None else policy.min_segments
    most = cluster.max_segments if policy.max_segments is None else policy.max_segments
    return msgspec.structs.replace(
        cluster,
        split=cluster.split if policy.auto_split is None else policy.auto_split,
        merge=cluster.merge if policy.auto_merge is None else policy.auto_merge,
        min_segments=fewest,
        max_segments=most,
    )


def decide(topic: TopicLoad, settings: ScalingSettings, now_ms: int) -> ScalingDecision:
    """Return the change of ``topic`` at ``now_ms``, which is not before any time in its layout."""
    active = topic.layout.active()
    changed_ms = max(segment.range_since_ms for segment in active)
    if now_ms - changed_ms < settings.topic_cooldown_seconds * 1000:
        return ScalingDecision()
    found = ScalingDecision()
    if settings.split and now_ms - topic.measured_since_ms >= _window_ms(settings.split_window_seconds):
        found = _split(topic, active, settings, now_ms)
    if found.change is None and settings.merge:
        return ScalingDecision(_merge(topic, active, settings, now_ms), found.suppressed)
    return found


def undrained_generations(layout: Layout, subscriptions: Iterable[Subscription]) -> dict[int, int]:
    """Return per segment the most generations of ancestors that a subscription must drain before it.

    Only subscriptions that block children and have a consumer count.
    """
    most = dict.fromkeys(layout.segments, 0)
    for subscription in subscriptions:
        if not is_gated(subscription.type, subscription.order) or not subscription.consumers:
            continue
        depth: dict[int, int] = {}
        # Parents have lower ids than their children.
        for segment_id in sorted(layout.segments):
            known = [parent for parent in layout.segments[segment_id].parents if parent in depth]
            depth[segment_id] = max(
                (depth[parent] + (parent not in subscription.drained) for parent in known), default=0
            )
            most[segment_id] = max(most[segment_id], depth[segment_id])
    return most


def _split(topic: TopicLoad, active: list[Segment], settings: ScalingSettings, now_ms: int) -> ScalingDecision:
    wait_ms = max(settings.segment_cooldown_seconds * 1000, _window_ms(settings.split_window_seconds))
    eligible = [segment for segment in active if now_ms - segment.range_since_ms >= wait_ms]
    suppressed: list[SuppressedSplit] = []
    for segment, why, detail in _overloaded(topic, eligible, settings) + _for_consumers(
        topic, active, eligible, settings
    ):
        limit = _limit(topic, segment, why, len(active), settings)
        if limit is None:
            return ScalingDecision(Split(segment.segment_id, why, detail), tuple(suppressed))
        if not any(before.segment == segment.segment_id for before in suppressed):
            suppressed.append(SuppressedSplit(segment.segment_id, limit[0], f"{detail}, but {limit[1]}"))
    return ScalingDecision(None, tuple(suppressed))


def _overloaded(
    topic: TopicLoad, eligible: list[Segment], settings: ScalingSettings
) -> list[tuple[Segment, LayoutChangeReason, str]]:
    """Return the segments above a threshold, the furthest above first."""
    window = f"over {settings.split_window_seconds:g} s"
    found: list[tuple[float, Segment, LayoutChangeReason, str]] = []
    for segment in eligible:
        load = topic.segments[segment.segment_id]
        measurements: tuple[tuple[float, float, LayoutChangeReason, str], ...] = (
            (load.rate.records, settings.split_records_per_second, "rate", "records/s"),
            (load.rate.bytes, settings.split_bytes_per_second, "bytes", "bytes/s"),
        )
        for value, threshold, why, unit in measurements:
            if value > threshold:
                detail = f"segment {segment.segment_id}: {value:,.0f} {unit} {window}, above {threshold:,.0f}"
                found.append((value / threshold, segment, why, detail))
    found.sort(key=lambda each: (-each[0], each[1].segment_id))
    return [(segment, why, detail) for _, segment, why, detail in found]


def _for_consumers(
    topic: TopicLoad, active: list[Segment], eligible: list[Segment], settings: ScalingSettings
) -> list[tuple[Segment, LayoutChangeReason, str]]:
    """Return the busiest segment, if consumers are without a segment and its load is worth a split."""
    if not settings.split_for_consumers or topic.consumers <= len(active):
        return []
    scores = {segment.segment_id: _load(topic.segments[segment.segment_id].rate, settings) for segment in eligible}
    worth = [segment for segment in eligible if scores[segment.segment_id] >= CONSUMER_SPLIT_LOAD_RATIO]
    worth.sort(key=lambda segment: (-scores[segment.segment_id], segment.segment_id))
    detail = f"{topic.consumers} consumers for {len(active)} active segments; segment {{}} is the busiest"
    return [(segment, "consumers", detail.format(segment.segment_id)) for segment in worth[:1]]


def _limit(
    topic: TopicLoad, segment: Segment, why: LayoutChangeReason, active: int, settings: ScalingSettings
) -> tuple[SplitLimit, str] | None:
    load = topic.segments[segment.segment_id]
    if segment.first_hash == segment.last_hash:
        return "single_hash", f"it covers the single hash {segment.hash_range}"
    if load.hottest_hash_fraction is not None:
        wanted = MIN_REMAINING_LOAD * (CONSUMER_SPLIT_LOAD_RATIO if why == "consumers" else 1.0)
        if _load(load.rate, settings) * (1 - load.hottest_hash_fraction) < wanted:
            return (
                "hot_key",
                (
                    f"one hash has {load.hottest_hash_fraction:.0%} of its records, and one key stays in one "
                    "segment: spread that key, or raise the threshold"
                ),
            )
    if active >= settings.max_segments:
        return "max_segments", f"the topic has its maximum of {settings.max_segments} segments (headgate topic set)"
    if load.undrained_generations >= MAX_UNDRAINED_DEPTH:
        return (
            "undrained_ancestors",
            f"a STREAM subscription has not drained {load.undrained_generations} generations of its ancestors",
        )
    return None


def _merge(topic: TopicLoad, active: list[Segment], settings: ScalingSettings, now_ms: int) -> Merge | None:
    quiet_ms = _window_ms(settings.merge_window_seconds)
    # A segment with two parents comes from a merge. One whose parents were pruned counts as split, which is safer.
    split_ms = max((segment.range_since_ms for segment in active if len(segment.parents) <= 1), default=0)
    if (
        len(active) <= settings.min_segments
        or now_ms - topic.measured_since_ms < quiet_ms
        or now_ms - split_ms < settings.merge_cooldown_seconds * 1000
    ):
        return None
    by_hash = sorted(active, key=lambda segment: segment.first_hash)
    ratio = MERGE_LOAD_RATIO
    if settings.split_for_consumers and len(active) <= topic.consumers:
        ratio = min(ratio, CONSUMER_SPLIT_LOAD_RATIO / 2)
    pairs = [
        (score, low.segment_id, high.segment_id)
        for low, high in pairwise(by_hash)
        if now_ms - max(low.range_since_ms, high.range_since_ms) >= quiet_ms
        and max(topic.segments[each.segment_id].undrained_generations for each in (low, high)) < MAX_UNDRAINED_DEPTH
        and (score := _combined_load(topic, low, high, settings)) < ratio
    ]
    if not pairs:
        return None
    score, first, second = min(pairs)
    detail = (
        f"segments {first} and {second}: at most {score:.0%} of the split thresholds together over "
        f"{settings.merge_window_seconds:g} s, below {ratio:.0%}"
    )
    return Merge(first, second, "quiet", detail)


def _combined_load(topic: TopicLoad, low: Segment, high: Segment, settings: ScalingSettings) -> float:
    one, other = topic.segments[low.segment_id].peak, topic.segments[high.segment_id].peak
    return _load(Rate(one.records + other.records, one.bytes + other.bytes), settings)


def _load(rate: Rate, settings: ScalingSettings) -> float:
    """Return ``rate`` as a fraction of the split thresholds: above 1 the segment splits."""
    return max(rate.records / settings.split_records_per_second, rate.bytes / settings.split_bytes_per_second)


def _window_ms(seconds: float) -> float:
    """Return the age in ms after which a window of whole slots has passed."""
    return seconds * 1000 + SLOT_MS


MAX_SAMPLES_PER_CHUNK = 2
MAX_SCANNED_RECORDS = 256
"""Records of one chunk that are read at most."""
RETAINED_SAMPLES = 128
MIN_SAMPLES = 32


class HotKeySampler:
    """Estimates the fraction of a segment's records that has the most frequent key hash.

    Splitting cannot separate records of one hash. Samples start empty in each term.

    1. A chunk gives at most `MAX_SAMPLES_PER_CHUNK` records per segment, the first ones after a place that differs
       from chunk to chunk, so that one batch does not count for the whole.
    2. Only the newest `RETAINED_SAMPLES` samples of a segment count. Below `MIN_SAMPLES` the result is unknown.
    3. Samples of sealed segments are dropped, unless a child of the same range continues them.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[int, int], deque[int]] = {}
        self._next_start = 0

    def sample(self, records: RecordColumns) -> None:
        count = len(records)
        if not count:
            return
        sampled: Counter[tuple[int, int]] = Counter()
        # A different start each time, so that a segment that is first in every chunk is not over-represented.
        self._next_start = (self._next_start + 7919) % count
        for step in range(0, count, count // MAX_SCANNED_RECORDS + 1):
            index = (self._next_start + step) % count
            segment_key = (records.topic_id[index], records.segment[index])
            if sampled[segment_key] < MAX_SAMPLES_PER_CHUNK:
                sampled[segment_key] += 1
                self._samples.setdefault(segment_key, deque(maxlen=RETAINED_SAMPLES)).append(
                    segment_hash(records.key[index])
                )

    def hottest_hash_fraction(self, topic_id: int, segment: int) -> float | None:
        """Return the fraction of the most frequent hash in the samples of ``segment``; None: too few samples."""
        samples = self._samples.get((topic_id, segment), ())
        return None if len(samples) < MIN_SAMPLES else Counter(samples).most_common(1)[0][1] / len(samples)

    def roll(self, topic_id: int, parents: Sequence[int], child: int) -> None:
        """Count the samples of the sealed ``parents`` for ``child``, which has their range."""
        for parent in parents:
            if (samples := self._samples.pop((topic_id, parent), None)) is not None:
                samples.extend(self._samples.get((topic_id, child), ()))
                self._samples[topic_id, child] = samples

    def retain(self, segments: Collection[tuple[int, int]]) -> None:
        """Drop the samples of every (topic id, segment) that is not in ``segments``."""
        self._samples = {key: known for key, known in self._samples.items() if key in segments}
