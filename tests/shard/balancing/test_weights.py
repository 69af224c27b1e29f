"""Smoothed weights, rule by rule, with random loads, and together with the target."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.balancing import weights as w
from shard.balancing.load_target import assign_by_load
from shard.balancing.weights import LoadSample, WeightSmoother, leaves_band, weight_of


class Stream:
    """One subscription with a clock: loads in bytes per second in, recorded weights out."""

    def __init__(self, on_record: dict[int, int] | None = None) -> None:
        self.at = 1000.0
        self.record = dict(on_record or {})
        self.smoother: WeightSmoother[int] = WeightSmoother(self.at, self.record)
        self.size: dict[int, float] = {}
        self.changes: list[tuple[float, dict[int, int]]] = []

    def sample(self, loads: dict[int, float], backlogs: dict[int, int] | None = None) -> None:
        """Let one sampling interval pass with these loads."""
        self.at += w.SAMPLE_INTERVAL_SECONDS
        for segment, load in loads.items():
            self.size[segment] = self.size.get(segment, 0) + load * w.SAMPLE_INTERVAL_SECONDS
        load_samples = {
            segment: LoadSample(0, int(self.size[segment]), 0)
            if not backlogs
            else LoadSample(1000, int(self.size[segment]) - 1000 * w.RECORD_OVERHEAD_BYTES, backlogs.get(segment, 0))
            for segment in loads
        }
        changed = self.smoother.add_sample(self.at, load_samples, self.record)
        if changed:
            self.record |= changed
            self.changes.append((self.at, changed))

    def hold(self, loads: dict[int, float], seconds: float = 300) -> None:
        for _ in range(round(seconds / w.SAMPLE_INTERVAL_SECONDS)):
            self.sample(loads)


def test_a_constant_load_is_recorded_once_to_the_nearest_unit() -> None:
    stream = Stream()
    stream.hold({0: 100_000, 1: 1_000_000}, 3600)

    assert {0: 391, 1: 3906} == stream.record
    assert 1 == len(stream.changes)


def test_rule_1_a_single_outlier_changes_nothing() -> None:
    stream = Stream()
    stream.hold({0: 100_000})
    stream.sample({0: 450_000})
    stream.hold({0: 100_000})

    assert 1 == len(stream.changes)


def test_rule_1_a_lasting_change_is_recorded_within_two_minutes() -> None:
    stream = Stream()
    stream.hold({0: 100_000})
    began = stream.at
    stream.hold({0: 1_000_000}, 120)

    assert stream.changes[-1][0] <= began + 70
    stream.hold({0: 1_000_000}, 300)
    assert 2800 <= stream.record[0] <= 3907


@pytest.mark.parametrize("seconds", [20, 60, 240, 3600], ids=lambda s: f"period-{s}-s")
@pytest.mark.parametrize("mean", [5_000, 4096 * 2, 100_000, 65_536 * 3])
def test_rule_2_a_load_that_varies_by_a_third_changes_its_weight_at_most_once(seconds: int, mean: int) -> None:
    """For any period and any mean."""
    stream = Stream()
    for step in range(2000):
        stream.sample({0: mean * (1 + 0.3 * math.copysign(1, math.sin(2 * math.pi * step * 10 / seconds + 0.1)))})

    assert 1 == len(stream.changes)


@given(st.lists(st.integers(70_000, 130_000), min_size=20, max_size=80))
def test_rule_2_no_sequence_of_loads_within_a_third_changes_a_weight_twice(loads: list[int]) -> None:
    stream = Stream()
    for load in loads:
        stream.sample({0: load})

    assert len(stream.changes) <= 1


@given(st.integers(0, 10**9))
def test_rule_2_a_weight_is_well_inside_its_own_band(load: int) -> None:
    assert not leaves_band(load, weight_of(load))
    if load > w.MIN_WEIGHT * w.WEIGHT_UNIT:
        assert leaves_band(2 * load + w.WEIGHT_UNIT, weight_of(load))
        assert not leaves_band(load * 19 // 10, weight_of(load))


def test_rule_1_a_new_sample_counts_one_quarter() -> None:
    """After three idle samples, 27/64 of the load is left: less than half."""
    stream = Stream({0: 400})
    stream.smoother = WeightSmoother(stream.at, stream.record, change_interval_seconds=40)
    stream.hold({0: 0}, 40)

    assert [(1040.0, {0: 169})] == stream.changes


@pytest.mark.parametrize(
    ("load", "leaves"), [(51_200, True), (51_201, False), (204_799, False), (204_800, True)], ids=str
)
def test_rule_2_the_band_is_between_half_and_twice_the_weight(load: int, leaves: bool) -> None:
    assert leaves == leaves_band(load, 400)


def test_rule_2_a_load_within_the_band_of_a_recorded_weight_changes_nothing_in_a_new_term() -> None:
    """Though it is only slightly more than half, and the first minute has only a few samples."""
    stream = Stream({0: 391})
    stream.hold({0: 55_000})

    assert [] == stream.changes


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=10, max_size=60))
def test_rule_3_changes_are_a_minute_apart_and_never_in_the_first_minute_of_a_term(loads: list[tuple[int, int]]):
    stream = Stream({0: 16, 1: 16})
    began = stream.at
    for first, second in loads:
        stream.sample({0: first, 1: second})

    assert all(b - a >= w.CHANGE_INTERVAL_SECONDS for a, b in pairwise([began, *(at for at, _ in stream.changes)]))


def test_rule_3_a_weight_may_change_exactly_a_minute_after_the_term_began() -> None:
    smoother: WeightSmoother[int] = WeightSmoother(1000.0, {})
    changes = [smoother.add_sample(at, {0: LoadSample(0, 0, 0)}, {}) for at in (1010, 1020, 1030, 1040, 1059.9, 1060)]

    assert [{}] * 5 + [{0: 16}] == changes


def test_two_samples_at_one_instant_count_as_a_millisecond_apart() -> None:
    smoother: WeightSmoother[int] = WeightSmoother(1000.0, {}, change_interval_seconds=0)
    changes = [smoother.add_sample(1000.0, {0: LoadSample(0, 256 * n, 0)}, {}) for n in range(4)]

    assert {0: 1000} == changes[-1]


@given(st.lists(st.integers(0, 4 * 1024), min_size=10, max_size=60))
def test_rule_4_nearly_idle_segments_have_the_minimum_weight(loads: list[int]) -> None:
    stream = Stream()
    for load in loads:
        stream.sample({0: load})

    assert stream.record in ({}, {0: w.MIN_WEIGHT})
    assert len(stream.changes) <= 1


def test_rule_5_a_new_segment_has_no_weight_before_three_samples() -> None:
    stream = Stream()
    stream.hold({0: 100_000}, 300)
    stream.hold({0: 100_000, 1: 10_000_000}, 30)
    assert 1 not in stream.record, "the first reading only sets the baseline"
    stream.hold({0: 100_000, 1: 10_000_000}, 10)

    assert 39_063 == stream.record[1]


def test_a_backlog_weighs_like_its_arrival_within_five_minutes() -> None:
    stream = Stream()
    stream.size[0] = 768_000_000
    for _ in range(20):
        stream.sample({0: 0}, {0: 1000})

    assert weight_of(768_000_000 // 300) == stream.record[0]


def test_small_records_count_for_more_than_their_bytes() -> None:
    assert 10 * 256 + 50 == LoadSample(10, 50, 0).cost
    assert LoadSample(10, 50, 5).backlog_cost == LoadSample(10, 50, 0).cost // 2
    assert 0 == LoadSample(0, 0, 0).backlog_cost


def test_a_new_term_starts_with_the_recorded_weights() -> None:
    """Its first samples, during catch-up, count no more than others."""
    stream = Stream()
    stream.hold({0: 100_000})
    stream.smoother = WeightSmoother(stream.at, stream.record)
    stream.size.clear()
    stream.sample({0: 0})
    stream.sample({0: 420_000})
    stream.hold({0: 100_000}, 3600)

    assert 1 == len(stream.changes)


def test_segments_that_are_no_longer_sampled_are_dropped() -> None:
    stream = Stream()
    stream.hold({0: 100_000, 1: 100_000})
    stream.hold({1: 100_000})

    assert {1} == set(stream.smoother._known)


@given(
    st.lists(st.integers(10_000, 2_000_000), min_size=4, max_size=12),
    st.lists(st.integers(70, 130), min_size=400, max_size=400),
)
def test_loads_that_vary_by_a_third_move_nothing_after_the_first_target(means: list[int], swing: list[int]) -> None:
    """Smoothing and target together, for three consumers and half an hour."""
    capacities = {"ada": 100, "bob": 100, "cyd": 200}
    stream, target, moves = Stream(), {}, []
    for step in range(180):
        stream.sample({s: mean * swing[(step * 7 + s * 31) % len(swing)] / 100 for s, mean in enumerate(means)})
        if stream.record:
            assigned = assign_by_load(range(len(means)), capacities, target, stream.record)
            moves.append(sum(assigned[s] != target[s] for s in target))
            target = assigned

    assert 0 == sum(moves)
