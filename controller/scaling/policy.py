"""Decide whether one topic splits or merges by itself now, and say why, or why not.

This module is the whole policy and nothing but it: what was measured goes in, a `ScalingDecision` comes out. There is
no memory here. Cool-downs are counted from the times in the layout and rates come from the ledger, so a new leader
decides as the one before it would have.

The rules:

1. At most one change a look, and none within the topic's cool-down after the last one. Splits come before merges.
2. A segment splits if its records or bytes a second, over a whole split window, or its size are above a threshold; that
   which is furthest above comes first. Else the busiest splits for consumers without a segment, if it is worth it.
3. A segment is judged no earlier than its cool-down and one whole window after its creation; nothing is judged before a
   whole window of this reign: producers that were cut off send what they kept, which is not their rate.
4. A split must help. A segment whose busiest hash alone carries so much that the rest is not half a threshold is not
   split for its rate: one key stays in one segment, however often that is split.
5. Neighbours merge if both together, in the busiest split window of the last merge window, stayed below the merge
   share, both have existed for as long, the topic's last split is further back than the merge cool-down, and this reign
   is as old as the window. A pair that serves consumers stays until it is half as busy as a split for consumers asks.
6. Never above the most segments, below the fewest, or behind more undrained generations than allowed. Segments split
   although their own ancestors are not drained yet: a backlog can be read by as many consumers as it has segments.
7. What ought to split and may not is reported with the limit that holds it, so that somebody can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import msgspec

from controller.settings.load import ScalingSettings
from controller.state.traffic import SLOT_MS, Rate
from coordinator.decisions.gate import is_gated
from coordinator.state.subscription import Subscription
from headgate.model.entries import TopicPolicy
from headgate.model.layout import Layout, Segment

Reason = Literal["rate", "bytes", "size", "consumers", "quiet"]
Limit = Literal["hot_key", "max_segments", "waiting", "single_hash", "layout_full"]

MIN_REMAINING_LOAD = 0.5
"""Share of a threshold that a segment must carry beside its busiest hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLoad:
    """What is known of one active segment."""

    rate: Rate
    """Over the split window."""
    peak: Rate
    """The busiest split window within the merge window."""
    size_bytes: int
    hottest_hash_fraction: float | None = None
    """Share of the busiest single hash in its records; None: too few were seen."""
    undrained_generations: int = 0
    """Longest chain of ancestors that some STREAM subscription in use has not drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """What is known of one topic."""

    layout: Layout
    segments: Mapping[int, SegmentLoad]
    """Every active one."""
    consumers: int
    """Connected consumers of the subscription that has most."""
    term_started_at_ms: int


@dataclass(frozen=True, slots=True)
class Split:
    """Split ``segment``."""

    segment: int
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge the neighbours ``first`` and ``second``."""

    first: int
    second: int
    why: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class SuppressedSplit:
    """``segment`` ought to split, and ``limit`` is against it."""

    segment: int
    limit: Limit
    detail: str


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What to do now, if anything, and what is held back."""

    change: Split | Merge | None = None
    suppressed: tuple[SuppressedSplit, ...] = field(default=())


def effective_settings(cluster: ScalingSettings, policy: TopicPolicy, first_segments: int) -> ScalingSettings:
    """Return the settings of one topic: its own policy where it has one, the cluster's else."""
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
    """Return what to do with ``topic`` at ``now_ms``, which is never before anything in its layout."""
    active = topic.layout.active()
    changed_ms = max(segment.created_at_ms for segment in active)
    if now_ms - changed_ms < settings.topic_cooldown_seconds * 1000:
        return ScalingDecision()
    split: Split | None = None
    suppressed: tuple[SuppressedSplit, ...] = ()
    if settings.split and now_ms - topic.term_started_at_ms >= _window_ms(settings.split_window_seconds):
        split, suppressed = _split(topic, active, settings, now_ms)
    if split is None and settings.merge:
        return ScalingDecision(_merge(topic, active, settings, now_ms), suppressed)
    return ScalingDecision(split, suppressed)


def undrained_generations(layout: Layout, subscriptions: Iterable[Subscription]) -> dict[int, int]:
    """Return for each segment how many generations of ancestors a reader has to drain before it, at most.

    What counts are subscriptions that hold children back and have a consumer: one that nobody uses hinders nobody.
    """
    most = dict.fromkeys(layout.segments, 0)
    for subscription in subscriptions:
        if not is_gated(subscription.type, subscription.order) or not subscription.consumers:
            continue
        depth: dict[int, int] = {}
        # Ids rise, so parents come before their children.
        for segment_id in sorted(layout.segments):
            known = [parent for parent in layout.segments[segment_id].parents if parent in depth]
            depth[segment_id] = max(
                (depth[parent] + (parent not in subscription.drained) for parent in known),
                default=0,
            )
            most[segment_id] = max(most[segment_id], depth[segment_id])
    return most


# --- splitting --------------------------------------------------------------------------------------------------------


def _split(
    topic: TopicLoad, active: list[Segment], settings: ScalingSettings, now_ms: int
) -> tuple[Split | None, tuple[SuppressedSplit, ...]]:
    wait_ms = max(settings.segment_cooldown_seconds * 1000, _window_ms(settings.split_window_seconds))
    eligible = [segment for segment in active if now_ms - segment.created_at_ms >= wait_ms]
    suppressed: list[SuppressedSplit] = []
    for segment, why, detail in _overloaded(topic, eligible, settings) + _for_consumers(
        topic, active, eligible, settings
    ):
        limit = _limit(topic, segment, why, len(active), settings)
        if limit is None:
            return Split(segment.segment_id, why, detail), tuple(suppressed)
        if not any(before.segment == segment.segment_id for before in suppressed):
            suppressed.append(SuppressedSplit(segment.segment_id, limit[0], f"{detail}, but {limit[1]}"))
    return None, tuple(suppressed)


def _overloaded(
    topic: TopicLoad, eligible: list[Segment], settings: ScalingSettings
) -> list[tuple[Segment, Reason, str]]:
    """Return what is above a threshold, the furthest above first."""
    window = f"over {settings.split_window_seconds:g} s"
    found: list[tuple[float, Segment, Reason, str]] = []
    for segment in eligible:
        load = topic.segments[segment.segment_id]
        measurements: list[tuple[float, float, Reason, str]] = [
            (load.rate.records, settings.split_records_per_second, "rate", f"records/s {window}"),
            (load.rate.bytes, settings.split_bytes_per_second, "bytes", f"bytes/s {window}"),
        ]
        if settings.split_size_bytes:
            measurements.append((load.size_bytes, settings.split_size_bytes, "size", "bytes"))
        for value, threshold, why, unit in measurements:
            if value > threshold:
                detail = f"segment {segment.segment_id}: {value:,.0f} {unit}, above {threshold:,.0f}"
                found.append((value / threshold, segment, why, detail))
    found.sort(key=lambda each: (-each[0], each[1].segment_id))
    return [(segment, why, detail) for _, segment, why, detail in found]


def _for_consumers(
    topic: TopicLoad, active: list[Segment], eligible: list[Segment], settings: ScalingSettings
) -> list[tuple[Segment, Reason, str]]:
    """Return the busiest ones worth splitting while some consumer has no segment, the busiest first."""
    if not settings.split_for_consumers or topic.consumers <= len(active):
        return []
    scores = {segment.segment_id: _load(topic.segments[segment.segment_id].rate, settings) for segment in eligible}
    worth = [segment for segment in eligible if scores[segment.segment_id] >= settings.consumer_split_load_ratio]
    worth.sort(key=lambda segment: (-scores[segment.segment_id], segment.segment_id))
    detail = f"{topic.consumers} consumers, {len(active)} active segments; segment {{}} is the busiest"
    return [(segment, "consumers", detail.format(segment.segment_id)) for segment in worth[:1]]


def _limit(
    topic: TopicLoad, segment: Segment, why: Reason, active: int, settings: ScalingSettings
) -> tuple[Limit, str] | None:
    """Return which limit is against splitting ``segment``, and its detail; None if none is."""
    load = topic.segments[segment.segment_id]
    if segment.first_hash == segment.last_hash:
        return "single_hash", f"it covers the single hash {segment.hash_range}"
    if load.hottest_hash_fraction is not None and why != "size":
        wanted = MIN_REMAINING_LOAD * (settings.consumer_split_load_ratio if why == "consumers" else 1.0)
        if _load(load.rate, settings) * (1 - load.hottest_hash_fraction) < wanted:
            return (
                "hot_key",
                (
                    f"one hash carries {load.hottest_hash_fraction:.0%} of its records, and one key stays in one "
                    f"segment: "
                    "spread that key, or raise the threshold"
                ),
            )
    if active >= settings.max_segments:
        return "max_segments", f"the topic has its most segments, {settings.max_segments}"
    if load.undrained_generations >= settings.max_undrained_depth:
        return (
            "waiting",
            f"{load.undrained_generations} generations of its ancestors wait for a STREAM subscription to drain them",
        )
    return None


# --- merging ----------------------------------------------------------------------------------------------------------


def _merge(topic: TopicLoad, active: list[Segment], settings: ScalingSettings, now_ms: int) -> Merge | None:
    quiet_ms = _window_ms(settings.merge_window_seconds)
    # Whoever has two parents came from a merge. One whose parents were pruned counts as split: the safer of the two.
    split_ms = max((segment.created_at_ms for segment in active if len(segment.parents) <= 1), default=0)
    if (
        len(active) <= settings.min_segments
        or now_ms - topic.term_started_at_ms < quiet_ms
        or now_ms - split_ms < settings.merge_cooldown_seconds * 1000
    ):
        return None
    by_hash = sorted(active, key=lambda segment: segment.first_hash)
    share = settings.merge_load_ratio
    if settings.split_for_consumers and len(active) <= topic.consumers:
        share = min(share, settings.consumer_split_load_ratio / 2)
    pairs = [
        (score, low.segment_id, high.segment_id)
        for low, high in pairwise(by_hash)
        if now_ms - max(low.created_at_ms, high.created_at_ms) >= quiet_ms
        and max(topic.segments[each.segment_id].undrained_generations for each in (low, high))
        < settings.max_undrained_depth
        and (score := _combined_load(topic, low, high, settings)) < share
    ]
    if not pairs:
        return None
    score, first, second = min(pairs)
    detail = (
        f"segments {first} and {second}: together at {score:.0%} of the split thresholds at most, over "
        f"{settings.merge_window_seconds:g} s, below {share:.0%}"
    )
    return Merge(first, second, "quiet", detail)


def _combined_load(topic: TopicLoad, low: Segment, high: Segment, settings: ScalingSettings) -> float:
    one, other = topic.segments[low.segment_id].peak, topic.segments[high.segment_id].peak
    return _load(Rate(one.records + other.records, one.bytes + other.bytes), settings)


def _load(rate: Rate, settings: ScalingSettings) -> float:
    """Return how much of a split threshold ``rate`` is: above 1 it splits."""
    return max(rate.records / settings.split_records_per_second, rate.bytes / settings.split_bytes_per_second)


def _window_ms(seconds: float) -> float:
    """Return how long ago something must be, in ms, so that a window of whole slots lies after it."""
    return seconds * 1000 + SLOT_MS
