"""When a topic splits and merges: every rule, every limit, and no oscillation."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.scaling.policy import (
    MIN_SAMPLES,
    RETAINED_SAMPLES,
    HotKeySampler,
    Merge,
    ScalingDecision,
    SegmentLoad,
    Split,
    TopicLoad,
    decide,
    effective_settings,
    undrained_generations,
)
from controller.settings.sections import ScalingSettings
from headgate.ledger.chunk import RecordColumns
from headgate.model.entries import NO_POLICY, TopicPolicy
from headgate.model.layout import Layout
from shard.state.consumers import Consumers, RegisteredConsumer
from shard.state.progress import Progress
from shard.state.subscription import Subscription
from shard.state.topic import Rate

ON = ScalingSettings(split=True, merge=True, split_records_per_second=1000, split_bytes_per_second=100_000)
LATER = 3_600_000
"""An hour after all times in the layouts below."""


def load(records: float = 0, size: float = 0, *, peak: float | None = None, **fields: Any) -> SegmentLoad:
    return SegmentLoad(rate=Rate(records, size), peak=Rate(records if peak is None else peak, size), **fields)


def topic(layout: Layout, *loads: SegmentLoad, consumers: int = 0, measured_since_ms: int = 0) -> TopicLoad:
    """Return a topic whose active segments, by id, have these loads."""
    active = [segment.segment_id for segment in layout.active()]
    return TopicLoad(
        layout=layout,
        segments=dict(zip(active, loads, strict=True)),
        consumers=consumers,
        measured_since_ms=measured_since_ms,
    )


def change(layout: Layout, *loads: SegmentLoad, settings: ScalingSettings = ON, now_ms: int = LATER, **fields: Any):
    return decide(topic(layout, *loads, **fields), settings, now_ms).change


def but(**changes: Any) -> ScalingSettings:
    return msgspec.structs.replace(ON, **changes)


TWO = Layout.initial(2, 0)
FOUR = Layout.initial(4, 0)
BUSY, HALF, IDLE = load(1500), load(500), load(0)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param((load(1001), HALF), (0, "rate"), id="records above"),
        pytest.param((HALF, load(0, 100_001)), (1, "bytes"), id="bytes above"),
        pytest.param((load(1200), load(1500)), (1, "rate"), id="the furthest above first"),
        pytest.param((load(1500), load(1200, 200_000)), (1, "bytes"), id="records and bytes are compared as ratios"),
        pytest.param((load(3000), load(0, 150_000)), (0, "rate"), id="many bytes may be less far above"),
        pytest.param((load(1500), load(1500)), (0, "rate"), id="ties by id"),
        pytest.param((load(1000), HALF), None, id="at the threshold"),
    ],
)
def test_the_segment_furthest_above_a_threshold_splits(loads: tuple[SegmentLoad, ...], expected: Any) -> None:
    found = change(TWO, *loads, settings=but(merge=False))

    assert (found and (found.segment, found.why)) == expected


def test_the_reason_for_a_split_has_the_measurement_and_the_threshold() -> None:
    assert change(TWO, BUSY, HALF).detail == "segment 0: 1,500 records/s over 60 s, above 1,000"


def test_nothing_changes_while_scaling_is_disabled() -> None:
    assert decide(topic(TWO, BUSY, BUSY), but(split=False, merge=False), LATER) == ScalingDecision()
    assert decide(topic(TWO, IDLE, IDLE), but(merge=False), LATER) == ScalingDecision()


@pytest.mark.parametrize(
    ("consumers", "busiest", "why"),
    [
        pytest.param(3, 100, "consumers", id="more consumers than segments"),
        pytest.param(2, 100, None, id="as many"),
        pytest.param(3, 99, None, id="too little load"),
        pytest.param(3, 1500, "rate", id="rate comes first"),
    ],
)
def test_the_busiest_segment_splits_for_consumers_without_one(consumers: int, busiest: float, why: str | None) -> None:
    found = change(TWO, load(50), load(busiest), consumers=consumers, settings=but(merge=False))

    assert (found and (found.segment, found.why)) == (why and (1, why))


@pytest.mark.parametrize(
    ("split", "busy", "pause_ms", "settings"),
    [
        pytest.param(5, 4, 70_000, {}, id="a new segment: a window of whole slots"),
        pytest.param(5, 4, 120_000, {"segment_cooldown_seconds": 120}, id="a new segment: its cool-down"),
        pytest.param(1, 0, 10_000, {}, id="an old segment: the cool-down of the topic"),
    ],
)
def test_a_segment_splits_only_after_a_pause(split: int, busy: int, pause_ms: int, settings: dict[str, Any]) -> None:
    """A topic of many busy segments doubles within a window: old ones wait for the topic only."""
    halves = FOUR.split(0, 0, LATER)
    loads = [BUSY if at == busy else HALF for at in range(5)]

    assert change(halves, *loads, now_ms=LATER + pause_ms - 1, settings=but(**settings)) is None
    assert change(halves, *loads, now_ms=LATER + pause_ms, settings=but(**settings)).segment == split


@pytest.mark.parametrize(
    ("load_of_each", "window_ms", "changed"), [(BUSY, 69_999, Split), (IDLE, 309_999, Merge)], ids=["splits", "merges"]
)
def test_nothing_changes_in_the_first_window_of_a_term(
    load_of_each: SegmentLoad, window_ms: int, changed: type
) -> None:
    """Producers send what they queued without a leader, and nothing was stored meanwhile: neither is their rate."""
    loads, began, free = (load_of_each, load_of_each), LATER - window_ms, but(min_segments=1)

    assert change(TWO, *loads, measured_since_ms=began, settings=free) is None
    assert isinstance(change(TWO, *loads, measured_since_ms=began - 1, settings=free), changed)


def test_a_segment_with_one_hot_key_is_not_split() -> None:
    plan = decide(topic(TWO, load(5000, hottest_hash_fraction=0.95), HALF), ON, LATER)

    assert plan.change is None
    (suppressed,) = plan.suppressed
    assert (suppressed.segment, suppressed.limit) == (0, "hot_key")
    assert "one hash has 95% of its records" in suppressed.detail


def test_a_segment_splits_if_the_load_beside_its_hot_key_is_worth_it() -> None:
    """Of 5000 records/s 80 % have one key. The other 1000 are worth a segment."""
    assert change(TWO, load(5000, hottest_hash_fraction=0.8), HALF).segment == 0
    assert change(TWO, load(2000, hottest_hash_fraction=0.75), HALF).segment == 0, "half of the threshold is enough"


def test_a_hot_key_prevents_a_split_for_consumers() -> None:
    assert change(TWO, load(900, hottest_hash_fraction=0.99), load(1), consumers=5) is None


def _limit(plan: ScalingDecision) -> str:
    assert plan.change is None
    (suppressed,) = plan.suppressed
    return suppressed.limit


def test_a_topic_stays_within_its_most_segments() -> None:
    assert _limit(decide(topic(TWO, BUSY, HALF), but(max_segments=2), LATER)) == "max_segments"
    assert _limit(decide(topic(TWO, BUSY, HALF), but(max_segments=1), LATER)) == "max_segments"


def test_a_single_hash_is_not_split() -> None:
    layout = Layout.initial(1, 0)
    for _ in range(16):
        layout = layout.split(min(layout.active(), key=lambda s: s.first_hash).segment_id, 0, 0)
    narrow = min(layout.active(), key=lambda s: s.first_hash)
    loads = [BUSY if segment == narrow else HALF for segment in layout.active()]

    assert _limit(decide(topic(layout, *loads), ON, LATER)) == "single_hash"


def test_nothing_changes_behind_too_many_undrained_generations() -> None:
    deep, fine = load(1500, undrained_generations=8), load(1500, undrained_generations=7)

    assert _limit(decide(topic(TWO, deep, HALF), ON, LATER)) == "undrained_ancestors"
    assert change(TWO, fine, HALF).segment == 0
    assert change(FOUR, *[load(undrained_generations=8)] * 4) is None


def _used(layout: Layout, *, drained: set[int], consumers: int = 1, kind: Any = "STREAM") -> Subscription:
    known = Consumers({f"c{n}": RegisteredConsumer(f"c{n}", 1, "client") for n in range(consumers)})
    order, progress = "strict" if kind == "STREAM" else "none", Progress(drained=drained)
    return Subscription(1, "t", 2, "s", kind, order, consumers=known, progress=progress)


def test_undrained_generations_follow_the_longest_path() -> None:
    layout = TWO.split(0, 5, 0).split(2, 5, 0).merge(1, 3, {1: 0, 3: 0}, 0)
    assert sorted(segment.segment_id for segment in layout.active()) == [4, 5, 6]

    assert undrained_generations(layout, [_used(layout, drained=set())])[6] == 2
    assert undrained_generations(layout, [_used(layout, drained={0})])[6] == 1
    assert undrained_generations(layout, [_used(layout, drained={2})])[5] == 1, "it hides no ancestors"
    assert undrained_generations(layout, [_used(layout, drained={0, 1, 2, 3})])[6] == 0


@pytest.mark.parametrize("idle", [{"consumers": 0}, {"kind": "QUEUE"}, {"kind": "CHECKPOINT"}, {"kind": None}])
def test_only_gated_subscriptions_in_use_count(idle: dict[str, Any]) -> None:
    layout = TWO.split(0, 5, 0)

    assert set(undrained_generations(layout, [_used(layout, drained=set(), **idle)]).values()) == {0}


def _quiet(first: int, second: int) -> Merge:
    detail = f"segments {first} and {second}: at most 0% of the split thresholds together over 300 s, below 25%"
    return Merge(first, second, "quiet", detail)


@pytest.mark.parametrize(
    ("loads", "pair"),
    [
        pytest.param((IDLE, IDLE, BUSY, IDLE), (0, 1), id="quiet segments that are not neighbors do not merge"),
        pytest.param((load(100), load(100), load(50), load(10)), (2, 3), id="the coldest pair"),
        pytest.param((load(130), load(120), HALF, HALF), None, id="together at the ratio"),
        pytest.param((load(0, 13_000), load(0, 12_000), HALF, HALF), None, id="bytes count as well"),
        pytest.param((load(0, 12_000), load(0, 12_000), HALF, HALF), (0, 1), id="few bytes"),
        pytest.param((load(0, peak=300), IDLE, HALF, HALF), None, id="one busy window among the quiet ones"),
    ],
)
def test_the_coldest_neighbors_merge(loads: tuple[SegmentLoad, ...], pair: Any) -> None:
    found = change(FOUR, *loads, settings=but(split=False))

    assert (found and (found.first, found.second)) == pair


def test_a_topic_keeps_its_fewest_segments() -> None:
    assert change(TWO, IDLE, IDLE, settings=but(min_segments=2)) is None
    assert change(TWO, IDLE, IDLE, settings=but(min_segments=1)) == _quiet(0, 1)


def test_nothing_merges_soon_after_a_split() -> None:
    split = FOUR.split(3, 0, LATER)
    idle = [IDLE] * 5

    assert change(split, *idle, now_ms=LATER + 299_999) is None
    assert change(split, *idle, now_ms=LATER + 300_000, settings=but(merge_window_seconds=60)) == replace(
        _quiet(0, 1), detail=_quiet(0, 1).detail.replace("300", "60")
    )


def test_a_merged_segment_waits_a_window_and_other_pairs_do_not() -> None:
    """So sixteen quiet segments become one in four windows."""
    merged = FOUR.merge(0, 1, {0: 0, 1: 0}, LATER)

    assert change(merged, IDLE, IDLE, IDLE, now_ms=LATER + 10_000) == _quiet(2, 3)
    beside_busy = (IDLE, HALF, IDLE)
    assert change(merged, *beside_busy, now_ms=LATER + 309_999) is None
    assert change(merged, *beside_busy, now_ms=LATER + 310_000) == _quiet(4, 2)


# The whole policy


def test_a_topic_policy_overrides_the_cluster_settings() -> None:
    cluster = ScalingSettings(split=True, min_segments=2, max_segments=8)

    assert effective_settings(cluster, NO_POLICY, 1) == cluster
    assert effective_settings(cluster, NO_POLICY, 5).min_segments == 5, "a topic keeps at least its initial segments"
    own = effective_settings(cluster, TopicPolicy(auto_split=False, auto_merge=True, min_segments=1, max_segments=3), 5)
    assert (own.split, own.merge, own.min_segments, own.max_segments) == (False, True, 1, 3)
    assert own.split_records_per_second == cluster.split_records_per_second


def _simulate(total: float, *, segments: int, consumers: int, settings: ScalingSettings, at_ms: int) -> list[Layout]:
    """Apply an even load to a topic for two hours, and return every layout."""
    layouts = [Layout.initial(segments, at_ms)]
    for now_ms in range(at_ms, at_ms + 7_200_000, 5_000):
        layout = layouts[-1]
        loads = {
            segment.segment_id: load(total * (segment.last_hash - segment.first_hash + 1) / 65_536)
            for segment in layout.active()
        }
        measured = TopicLoad(layout=layout, segments=loads, consumers=consumers, measured_since_ms=at_ms)
        match decide(measured, settings, now_ms).change:
            case Split(segment):
                layouts.append(layout.split(segment, 0, now_ms))
            case Merge(first, second):
                layouts.append(layout.merge(first, second, {first: 0, second: 0}, now_ms))
    return layouts


@pytest.mark.simulation
@given(st.floats(0, 40_000), st.integers(1, 12), st.integers(0, 12))
def test_a_steady_load_converges(total: float, segments: int, consumers: int) -> None:
    """Splits and merges do not alternate, and the layout stops changing."""
    layouts = _simulate(total, segments=segments, consumers=consumers, settings=but(max_segments=16), at_ms=0)
    sizes = [len(layout.active()) for layout in layouts]

    assert len(sizes) <= 32, sizes
    steps = [after - before for before, after in pairwise(sizes)]
    turns = sum(one != other for one, other in pairwise(steps))
    assert turns <= 1, f"splits and merges alternate: {sizes}"
    assert all(count <= max(16, segments) for count in sizes)


def chunk(*keys: bytes, topic_id: int = 1, segment: int = 0) -> RecordColumns:
    count = len(keys)
    return RecordColumns(
        [topic_id] * count, [segment] * count, list(range(count)), [0] * count, list(keys), [b""] * count
    )


def test_the_fraction_is_unknown_with_few_samples() -> None:
    samples = HotKeySampler()
    for _ in range(MIN_SAMPLES - 1):
        samples.sample(chunk(b"k"))
    assert samples.hottest_hash_fraction(1, 0) is None

    samples.sample(chunk(b"k"))
    assert samples.hottest_hash_fraction(1, 0) == 1.0


def test_the_fraction_is_that_of_the_records() -> None:
    """Three of four records have one key; the other keys are distinct."""
    samples = HotKeySampler()
    for number in range(500):
        samples.sample(chunk(*(b"hot" if n % 4 else b"%d-%d" % (number, n) for n in range(97))))

    fraction = samples.hottest_hash_fraction(1, 0)
    assert 0.6 < fraction < 0.9


def test_old_samples_are_dropped() -> None:
    samples = HotKeySampler()
    for _ in range(RETAINED_SAMPLES):
        samples.sample(chunk(b"hot"))
    for n in range(RETAINED_SAMPLES):
        samples.sample(chunk(b"%d" % n))

    fraction = samples.hottest_hash_fraction(1, 0)
    assert fraction < 0.1


def test_segments_are_sampled_separately_and_dropped_unless_retained() -> None:
    samples = HotKeySampler()
    for n in range(MIN_SAMPLES):
        samples.sample(chunk(b"hot", segment=1))
        samples.sample(chunk(b"%d" % n, segment=2))
    assert samples.hottest_hash_fraction(1, 1) == 1.0
    assert samples.hottest_hash_fraction(1, 2) != 1.0

    samples.retain({(1, 2)})
    assert samples.hottest_hash_fraction(1, 1) is None
    assert samples.hottest_hash_fraction(1, 2) is not None
