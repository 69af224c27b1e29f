"""Which generations count, what is gone, and what is drained."""

from __future__ import annotations

from dataclasses import replace

from drain.settlement import MergedRow, StateRow, drained, joined, outstanding, settled

TOPIC = 1
SUBSCRIPTION = 2
SEGMENT = StateRow(TOPIC, None, 0, records=10, size_bytes=100, end_offset=10, sealed_end_offset=10)
STREAM = StateRow(TOPIC, SUBSCRIPTION, None, subscription_type="STREAM")
PART = StateRow(TOPIC, SUBSCRIPTION, 0, position=4)
BASE = (MergedRow(SEGMENT, present=True), MergedRow(STREAM, present=True))


def backlog_of(*rows):
    (found,) = outstanding(rows)
    return found


def positions(rows):
    return {row.seek_generation: (row.position, row.above) for row in rows if row.subscription_id and row.segment == 0}


def test_rows_come_in_order_whatever_order_they_came_in():
    merge = [MergedRow(PART), *BASE]

    assert settled(merge) == (SEGMENT, STREAM, PART)
    assert settled(merge) == settled(reversed(merge))


def test_what_was_acknowledged_before_a_seek_does_not_count_in_its_segment():
    reset = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=3), reset=True)
    before = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 0, position=10, above=((12, 13),)))

    assert positions(settled([*BASE, before, reset])) == {1: (3, ())}


def test_what_was_acknowledged_before_a_seek_counts_where_the_seek_did_not_go():
    """The subscription is at generation 1 because another segment was sought."""
    elsewhere = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 7, 1, position=3), reset=True)
    before = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 0, position=6, above=((9, 10),)))
    after = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=2, above=((6, 7),)))

    assert positions(settled([*BASE, before, elsewhere, after])) == {1: (7, ((9, 10),))}


def test_nothing_older_than_the_known_generation_counts():
    known = MergedRow(replace(STREAM, seek_generation=2), present=True, carried=True)
    late = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 1, position=10))
    current = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 0, 2, position=4), carried=True)

    assert positions(settled([MergedRow(SEGMENT, present=True), known, late, current])) == {2: (4, ())}
    assert positions(settled([MergedRow(SEGMENT, present=True), known, late])) == {}


def test_the_generation_outlives_the_segment_that_was_sought():
    """Else the question of a later generation would never be answered, once that segment is pruned."""
    sought = MergedRow(StateRow(TOPIC, SUBSCRIPTION, 7, 3), reset=True)
    pruned = MergedRow(StateRow(TOPIC, None, 7), removed=True)

    assert (SEGMENT, replace(STREAM, seek_generation=3)) == settled([*BASE, sought, pruned])


def test_what_is_removed_takes_along_what_belongs_to_it():
    part = MergedRow(PART)

    assert settled([*BASE, part, MergedRow(StateRow(TOPIC, None, None), removed=True)]) == ()
    assert settled([BASE[0], BASE[1], part, MergedRow(replace(SEGMENT, seek_generation=0), removed=True)]) == (STREAM,)
    assert settled([*BASE, part, MergedRow(STREAM, removed=True)]) == (SEGMENT,)


def test_other_topics_are_left_alone():
    other = replace(SEGMENT, topic_id=5)

    assert (other,) == settled(
        [*BASE, MergedRow(StateRow(TOPIC, None, None), removed=True), MergedRow(other, present=True)]
    )


def test_what_nobody_created_is_not_there():
    """An acknowledgement in a segment that was pruned long ago."""
    assert settled([*BASE, MergedRow(replace(PART, segment=5))]) == (SEGMENT, STREAM)


def test_a_type_that_became_known_stays_known():
    unknown = MergedRow(replace(STREAM, subscription_type="", seek_generation=1), present=True, carried=True)
    typed = MergedRow(replace(STREAM, subscription_type="QUEUE"), present=True)

    assert (replace(STREAM, subscription_type="QUEUE", seek_generation=1),) == settled([unknown, typed])


def test_the_backlog_is_what_lies_above_the_position_and_outside_the_ranges():
    queue = replace(STREAM, subscription_type="QUEUE")
    found = backlog_of(SEGMENT, queue, replace(PART, above=((5, 7), (9, 10))))

    assert (found.records, found.size_bytes, found.holes, found.drained) == (3, 30, 2, False)


def test_a_segment_without_a_position_begins_at_zero():
    found = backlog_of(SEGMENT, STREAM)

    assert (found.position, found.records, found.size_bytes) == (0, 10, 100)


def test_checkpoint_is_not_tracked_and_never_drained():
    found = backlog_of(
        replace(SEGMENT, end_offset=0, sealed_end_offset=0), replace(STREAM, subscription_type="CHECKPOINT")
    )

    assert (found.records, found.size_bytes, found.holes, found.drained) == (None, None, None, False)


def test_a_type_that_is_not_on_record_is_never_drained():
    found = backlog_of(replace(SEGMENT, end_offset=0, sealed_end_offset=0), replace(STREAM, subscription_type=""))

    assert not found.drained


def test_drained_takes_a_seal_and_every_record():
    whole = replace(PART, position=10)

    assert backlog_of(SEGMENT, STREAM, whole).drained
    assert not backlog_of(SEGMENT, STREAM, replace(PART, position=9)).drained
    assert not backlog_of(replace(SEGMENT, sealed_end_offset=None), STREAM, whole).drained


def test_a_sealed_empty_segment_is_drained_at_once():
    empty = StateRow(TOPIC, None, 0, sealed_end_offset=0)

    assert backlog_of(empty, STREAM).drained


def test_a_position_beyond_the_sealed_end_is_drained():
    assert backlog_of(SEGMENT, STREAM, replace(PART, position=11)).drained


def test_only_what_was_asked_for_at_its_generation_is_told():
    rows = outstanding(
        (SEGMENT, replace(SEGMENT, segment=1), STREAM, *(replace(PART, segment=n, position=10) for n in (0, 1)))
    )

    assert frozenset({1}) == drained(rows, 0, frozenset({1, 2}))
    assert frozenset() == drained(rows, 1, frozenset({1, 2}))


def test_ranges_that_touch_are_one():
    assert joined([(6, 7), (2, 4), (0, 2), (7, 9), (1, 2)]) == ((0, 4), (6, 9))
