"""The formulas of a backlog."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import KEY_BUCKETS
from headgate.model.positions import OffsetRanges
from headgate.protocol.backlog import (
    count_records,
    estimate_drain,
    estimate_size_bytes,
    records_text,
    unacknowledged_offsets,
)
from headgate.views.subscriptions import SegmentBacklogInfo
from tests.support.samples.cluster_overviews import backlog

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


@given(st.integers(0, 30), st.integers(0, 30), RANGES)
def test_unacknowledged_offsets_are_neither_below_the_position_nor_in_a_range(end, position, ranges):
    above = OffsetRanges(ranges)
    position = above.pop_prefix(position)
    acknowledged = {*range(position), *(offset for first, last in above for offset in range(first, last))}

    assert unacknowledged_offsets(end, position, above) == len(set(range(end)) - acknowledged)


@pytest.mark.parametrize(
    ("offsets", "exact", "expected"),
    [
        (1, False, (1, True)),
        (KEY_BUCKETS, False, (1, True)),
        (KEY_BUCKETS + 1, False, (2, True)),
        (KEY_BUCKETS * 40, True, (40, False)),
        (0, False, (0, False)),
    ],
)
def test_records_are_the_mean_over_the_buckets_rounded_up_and_zero_is_exact(offsets, exact, expected):
    assert count_records(offsets, exact=exact) == expected


@pytest.mark.parametrize(
    ("records", "estimated", "text"), [(None, False, "-"), (0, False, "0"), (1234, False, "1 234"), (46, True, "~46")]
)
def test_an_estimate_is_marked(records: int | None, estimated: bool, text: str) -> None:
    assert records_text(records, estimated) == text


def test_the_size_is_estimated_from_the_mean_size_of_all_records() -> None:
    assert estimate_size_bytes(3, stored_records=10, stored_bytes=105) == 31
    assert estimate_size_bytes(0, stored_records=0, stored_bytes=0) == 0


@pytest.mark.parametrize(
    ("records", "stored", "acknowledged", "expected"),
    [
        (None, 1.0, 2.0, ("unknown", None)),
        (0, None, None, ("empty", 0.0)),
        (5, None, 2.0, ("unknown", None)),
        (5, 1.0, None, ("unknown", None)),
        (21, 2.0, 2.0, ("never", None)),
        (20, 3.0, 2.0, ("shrinking", 10.0)),  # Readers keep up: records are always on their way.
        (1, 0.0, 0.0, ("never", None)),
        (21, 1.5, 2.0, ("shrinking", 42.0)),
    ],
)
def test_the_outlook_follows_from_records_and_rates(records, stored, acknowledged, expected):
    assert estimate_drain(records, stored, acknowledged, tracked=True) == expected
    assert estimate_drain(records, stored, acknowledged, tracked=False) == ("not_tracked", None)


def test_totals_are_unknown_if_a_segment_is_and_rates_are_the_sum_of_the_known_ones() -> None:
    known = SegmentBacklogInfo(
        segment=1, sealed=False, records=4, size_bytes=40, oldest_ms=7, stored_per_second=1.0, acknowledged_per_second=3
    )
    unknown = SegmentBacklogInfo(segment=0, sealed=True)

    alone = backlog([known])
    assert (alone.records, alone.size_bytes, alone.outlook, alone.drained_in_seconds) == (4, 40, "shrinking", 4 / 3)
    both = backlog([known, unknown])
    assert [each.segment for each in both.segments] == [0, 1]
    assert (both.records, both.size_bytes, both.oldest_ms, both.outlook) == (None, None, 7, "unknown")
    assert (both.stored_per_second, both.acknowledged_per_second) == (1.0, 3)
    estimate = SegmentBacklogInfo(segment=2, sealed=False, records=1, size_bytes=1, estimated=True)
    assert not alone.estimated
    with_estimate = backlog([known, estimate])
    assert (with_estimate.records, with_estimate.size_bytes, with_estimate.estimated) == (5, 41, True)
    assert msgspec.to_builtins(both)["segments"][0]["records"] is None


@pytest.mark.parametrize(("labels", "external"), [([None, None], False), (["a", None], True), ([], False)])
def test_a_subscription_is_of_an_external_topic_if_a_segment_has_a_label(labels: list[str | None], external: bool):
    segments = [SegmentBacklogInfo(segment=n, sealed=False, label=label) for n, label in enumerate(labels)]

    assert external == backlog(segments, counted_by="leader").external
