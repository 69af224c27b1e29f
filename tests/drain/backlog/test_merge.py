"""Merging rows: seek generations, removals, buckets, and which segments are drained."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drain.backlog.merge import (
    MergedRow,
    StateRow,
    build_timestamp_index,
    drained,
    merge_rows,
    next_result,
    outstanding,
    previous_rows,
    timestamp_at,
)
from headgate.model.layout import KEY_BUCKETS
from headgate.model.positions import OffsetRanges

TOPIC = 1
SUBSCRIPTION = 2
SEGMENT = StateRow(TOPIC, None, 0, records=10, size_bytes=100, end_offset=10, sealed_end_offset=10)
STREAM = StateRow(TOPIC, SUBSCRIPTION, None, subscription_type="STREAM")
QUEUE, CHECKPOINT = replace(STREAM, subscription_type="QUEUE"), replace(STREAM, subscription_type="CHECKPOINT")
PROGRESS = StateRow(TOPIC, SUBSCRIPTION, 0, position=4)
BASE = (MergedRow(SEGMENT, present=True), MergedRow(STREAM, present=True))


def backlog_of(*rows):
    (found,) = outstanding(rows)
    return found


def positions(rows):
    return {row.seek_generation: (row.position, row.above) for row in rows if row.subscription_id and row.segment == 0}


def test_the_order_of_the_input_does_not_matter():
    merge = [MergedRow(PROGRESS), *BASE]

    assert merge_rows(merge) == (SEGMENT, STREAM, PROGRESS)
    assert merge_rows(merge) == merge_rows(reversed(merge))


def test_the_oldest_outstanding_record_is_the_one_at_the_position():
    segment = replace(SEGMENT, timestamp_index=((0, 100), (4, 140), (9, 190)))

    assert backlog_of(segment, STREAM, replace(PROGRESS, position=4)).oldest_ms == 140
    assert backlog_of(segment, STREAM, replace(PROGRESS, position=10)).oldest_ms is None
    assert backlog_of(segment, CHECKPOINT).oldest_ms is None


def test_acknowledgements_before_a_seek_do_not_count_in_its_segment():
    reset = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=3), reset=True)
    before = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 0, position=10, above=((12, 13),)))

    assert positions(merge_rows([*BASE, before, reset])) == {1: (3, ())}


def test_acknowledgements_before_a_seek_count_in_other_segments():
    """The subscription has seek generation 1 because of another segment."""
    elsewhere = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 7, 1, position=3), reset=True)
    before = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 0, position=6, above=((9, 10),)))
    after = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=2, above=((6, 7),)))

    assert positions(merge_rows([*BASE, before, elsewhere, after])) == {1: (7, ((9, 10),))}


def test_facts_older_than_the_known_generation_do_not_count():
    known = MergedRow(replace(STREAM, seek_generation=2), present=True, from_previous=True)
    late = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=10))
    current = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 2, position=4), from_previous=True)

    assert positions(merge_rows([MergedRow(SEGMENT, present=True), known, late, current])) == {2: (4, ())}
    assert positions(merge_rows([MergedRow(SEGMENT, present=True), known, late])) == {}


ROWS = st.builds(
    StateRow,
    topic_id=st.integers(1, 3),
    subscription_id=st.sampled_from([None, 2, 3]),
    segment=st.sampled_from([None, 0, 1]),
    seek_generation=st.integers(0, 2),
    position=st.integers(0, 5),
    records=st.integers(0, 5),
    end_offset=st.integers(0, 9),
)
NEW = st.lists(st.builds(MergedRow, ROWS, reset=st.booleans(), removed=st.booleans(), present=st.booleans()))


@given(NEW, NEW)
def test_topics_without_new_rows_are_not_merged_again(before, new):
    previous = merge_rows(before)

    assert next_result(previous, new) == merge_rows([*previous_rows(previous), *new])


def test_a_result_without_new_facts_stays_as_it_is():
    previous = (SEGMENT, replace(STREAM, seek_generation=2), replace(PROGRESS, seek_generation=2))
    late = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=10))

    assert merge_rows(previous_rows(previous)) == previous
    assert merge_rows([*previous_rows(previous), late]) == previous, "a fact of a generation before the known one"


def test_the_seek_generation_survives_the_pruning_of_its_segment():
    """Otherwise queries with that generation would never find a drained segment."""
    reset = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 7, 3), reset=True)
    pruned = MergedRow(StateRow(TOPIC, None, 7), removed=True)

    assert (SEGMENT, replace(STREAM, seek_generation=3)) == merge_rows([*BASE, reset, pruned])


def test_a_removal_removes_dependent_rows():
    progress = MergedRow(PROGRESS)

    assert merge_rows([*BASE, progress, MergedRow(StateRow(TOPIC, None, None), removed=True)]) == ()
    assert merge_rows([*BASE, progress, MergedRow(SEGMENT, removed=True)]) == (STREAM,)
    assert merge_rows([*BASE, progress, MergedRow(STREAM, removed=True)]) == (SEGMENT,)


def test_a_removal_does_not_affect_other_topics():
    other = replace(SEGMENT, topic_id=5)

    assert (other,) == merge_rows(
        [*BASE, MergedRow(StateRow(TOPIC, None, None), removed=True), MergedRow(other, present=True)]
    )


def test_rows_of_unknown_segments_are_dropped():
    assert merge_rows([*BASE, MergedRow(replace(PROGRESS, segment=5))]) == (SEGMENT, STREAM)


def test_a_known_subscription_type_is_kept():
    unknown = MergedRow(replace(STREAM, subscription_type="", seek_generation=1), present=True, from_previous=True)

    assert (replace(QUEUE, seek_generation=1),) == merge_rows([unknown, MergedRow(QUEUE, present=True)])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((SEGMENT, QUEUE, replace(PROGRESS, above=((5, 7), (9, 10)))), {"records": 3, "size_bytes": 30}),
        ((SEGMENT, STREAM), {"position": 0, "records": 10, "size_bytes": 100}),
        ((StateRow(TOPIC, None, 0), STREAM), {"end_offset": 0, "records": 0, "sealed": False}),
        ((replace(SEGMENT, end_offset=0, sealed_end_offset=0), CHECKPOINT), {"records": None, "size_bytes": None}),
    ],
    ids=["ranges above the position", "no position", "no record", "CHECKPOINT is neither tracked nor ever drained"],
)
def test_the_backlog_is_what_is_neither_below_the_position_nor_in_a_range_above_it(rows, expected):
    found = backlog_of(*rows)

    assert not found.drained
    assert {name: getattr(found, name) for name in expected} == expected


EMPTY = StateRow(TOPIC, None, 0, sealed_end_offset=0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((SEGMENT, STREAM, replace(PROGRESS, position=10)), True),
        ((SEGMENT, STREAM, replace(PROGRESS, position=11)), True),
        ((SEGMENT, STREAM, replace(PROGRESS, position=9)), False),
        ((replace(SEGMENT, sealed_end_offset=None), STREAM, replace(PROGRESS, position=10)), False),
        ((EMPTY, STREAM), True),
        ((EMPTY, replace(STREAM, subscription_type="")), False),
    ],
    ids=["to the end", "beyond the end", "a record left", "not sealed", "sealed and empty", "an unknown type"],
)
def test_drained_means_sealed_and_acknowledged_to_the_end(rows, expected):
    assert backlog_of(*rows).drained == expected


def test_drained_returns_requested_segments_at_the_requested_generation():
    rows = outstanding(
        (SEGMENT, replace(SEGMENT, segment=1), STREAM, *(replace(PROGRESS, segment=n, position=10) for n in (0, 1)))
    )

    assert {1: 10} == drained(rows, 0, frozenset({1, 2}))
    assert {} == drained(rows, 1, frozenset({1, 2}))


def in_buckets(first, end, **changes):
    return [replace(PROGRESS, bucket=bucket, **changes) for bucket in range(first, end)]


def test_a_shared_segment_is_drained_once_every_bucket_is():
    whole = replace(PROGRESS, position=0)

    assert backlog_of(SEGMENT, STREAM, whole, *in_buckets(0, 16, position=10)).drained
    assert not backlog_of(SEGMENT, STREAM, whole, *in_buckets(0, 15, position=10)).drained
    assert not backlog_of(SEGMENT, STREAM, whole, *in_buckets(0, 15, position=10), *in_buckets(15, 16)).drained
    assert backlog_of(SEGMENT, STREAM, replace(PROGRESS, position=10), *in_buckets(0, 3, position=10)).drained


def test_the_backlog_of_a_shared_segment_is_the_mean_over_its_buckets_rounded_up():
    """Of 10 records, 8 buckets have 2 left, one has 10, and 7 have 6."""
    progress = [replace(PROGRESS, position=4), *in_buckets(0, 8, position=8), *in_buckets(8, 9, position=0)]
    found = backlog_of(SEGMENT, STREAM, *progress)

    assert (found.records, found.size_bytes) == (-(-(8 * 2 + 10 + 7 * 6) // 16), 50)
    assert found.position == 0
    assert found.estimated
    assert not backlog_of(SEGMENT, STREAM, progress[0]).estimated


@pytest.mark.parametrize("position", [0, 7])
def test_one_bucket_that_is_ahead_has_a_row_beside_that_of_all_buckets(position):
    merge = [*BASE, *(MergedRow(row) for row in in_buckets(3, 4, position=position))]
    ahead = [replace(PROGRESS, bucket=3, position=position)] if position else []

    assert list(merge_rows(merge)[2:]) == [replace(PROGRESS, position=0), *ahead]


def test_equal_buckets_become_one_row():
    progress = [MergedRow(row) for row in in_buckets(0, 16, position=7, above=((8, 9),))]

    assert (replace(PROGRESS, position=7, above=((8, 9),)),) == merge_rows([*BASE, *progress])[2:]
    assert (replace(PROGRESS, position=7),) == merge_rows(
        [*BASE, MergedRow(replace(PROGRESS, position=7)), MergedRow(PROGRESS)]
    )[2:]


FACTS = st.lists(
    st.tuples(st.sampled_from([None, *range(KEY_BUCKETS)]), st.integers(0, 12), st.integers(1, 6), st.booleans()),
    max_size=60,
)


def combined(rows):
    """Return ``rows`` combined as Spark does: one row per key."""
    keyed = {}
    for row in rows:
        keyed.setdefault((row.subscription_id, row.segment, row.bucket), []).append(row)
    for same in keyed.values():
        if same[0].subscription_id is None or same[0].segment is None:
            yield MergedRow(same[-1], present=True)
            continue
        ranges = OffsetRanges([(0, row.position) for row in same] + [offsets for row in same for offsets in row.above])
        yield MergedRow(replace(same[0], position=ranges.pop_prefix(), above=tuple(ranges)))


@given(FACTS, st.integers(0, 60))
def test_merging_in_two_steps_or_in_one_gives_the_same_backlog(facts, cut):
    base = (SEGMENT, QUEUE)
    rows = []
    for bucket, begin, length, cumulative in facts:
        read = {"position": begin + length} if cumulative else {"above": ((begin, begin + length),)}
        rows.append(StateRow(TOPIC, SUBSCRIPTION, 0, bucket=bucket, **read))
    first = merge_rows(combined([*base, *rows[:cut]]))
    second = merge_rows(combined([*first, *rows[cut:]]))
    by_hand = [set(range(10)) for _ in range(KEY_BUCKETS)]
    for bucket, begin, length, cumulative in facts:
        for index, left in enumerate(by_hand):
            if bucket in (None, index):
                left.difference_update(range(0 if cumulative else begin, begin + length))

    assert merge_rows(combined([*base, *rows])) == second
    assert backlog_of(*second).records == -(-sum(map(len, by_hand)) // KEY_BUCKETS)
    assert backlog_of(*second).drained == (not any(by_hand))


# The timestamp index: which records it keeps, how exact it is, and merging.


def index_of(records, ms=lambda offset: 10 * offset):
    return build_timestamp_index((offset, ms(offset)) for offset in range(records))


@given(st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=5))
def test_counting_in_steps_or_at_once_gives_the_same_index(records, cuts):
    bounds = [0, *sorted(min(cut, records) for cut in cuts), records]
    kept = ()
    for first, end in itertools.pairwise(bounds):
        kept = build_timestamp_index([*kept, *((offset, 10 * offset) for offset in range(first, end))])

    assert kept == index_of(records)


@given(st.integers(1, 3000), st.data())
def test_the_entries_around_an_offset_are_no_farther_apart_than_the_backlog_is_long(records, data):
    kept = [offset for offset, _ in index_of(records)]
    offset = data.draw(st.integers(0, records - 1))

    before = max(each for each in kept if each <= offset)
    after = min(each for each in kept if each >= offset)
    assert after - before <= records - offset


def test_timestamps_are_interpolated_between_entries_and_unknown_outside():
    index = ((4, 100), (8, 200))

    assert [timestamp_at(index, offset) for offset in (3, 4, 5, 8, 9)] == [None, 100, 125, 200, None]
    assert timestamp_at((), 0) is None
