"""The fold of one subscription: what each entry leaves behind."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.subscription import Subscription
from headgate import entries as e

IDS = {"topic_id": 1, "subscription_id": 2}
RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda drawn: (drawn[0], sum(drawn))), max_size=30
)


def subscription(kind: str = "STREAM", positions: dict[int, int] | None = None) -> Subscription:
    created = e.SubscriptionCreated(
        **IDS, subscription="billing", subscription_type=kind, order="none", positions=positions or {}
    )
    return Subscription.created(created, "orders")


def acknowledged(*ranges: tuple[int, int, int], seek_generation: int = 0) -> e.RecordsAcknowledged:
    parts = [e.AcknowledgedRange(*part) for part in ranges]
    return e.RecordsAcknowledged(**IDS, seek_generation=seek_generation, ranges=parts, count=len(parts))


def held() -> Subscription:
    """Ada holds segments 0 and 1, of which 1 is revoked; bob holds 2."""
    known = subscription()
    for name in ("ada", "bob"):
        known.apply(e.ConsumerRegistered(**IDS, consumer=name, incarnation=1, client_id=name), 0)
    for segment, name in ((0, "ada"), (1, "ada"), (2, "bob")):
        known.apply(e.SegmentGranted(**IDS, segment=segment, consumer=name, generation=segment + 1), 0)
    known.apply(e.SegmentRevoked(**IDS, segment=1, generation=2), 7)
    return known


@given(RANGES)
def test_queue_ranges_are_the_set_of_what_was_acknowledged(ranges: list[tuple[int, int]]) -> None:
    """Compared with a plain set; what is kept is sorted, disjoint, apart, and above the position."""
    known, expected = subscription("QUEUE"), set()
    for first, end in ranges:
        known.apply(acknowledged((0, first, end)), 0)
        expected |= set(range(first, end))

        above = known.above.get(0, [])
        assert expected == set(range(known.position(0))) | {n for part in above for n in range(*part)}
        edges = [known.position(0), *(edge for part in above for edge in part)]
        assert all(before < after for before, after in pairwise(edges))


def test_stream_acknowledgements_are_cumulative_and_never_go_back() -> None:
    known = subscription()
    known.apply(acknowledged((0, 0, 5), (1, 0, 2)), 0)
    known.apply(acknowledged((0, 0, 3)), 0)

    assert {0: 5, 1: 2} == known.positions


def test_acknowledgements_and_drained_facts_of_an_older_seek_generation_do_not_count() -> None:
    known = subscription()
    known.apply(e.Sought(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)
    known.apply(acknowledged((0, 0, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0], seek_generation=0), 0)

    assert {0: 2} == known.positions
    assert set() == known.drained


def test_a_seek_takes_back_the_drained_facts_and_ranges_of_the_segments_it_moves() -> None:
    known = subscription("QUEUE")
    known.apply(acknowledged((0, 3, 5), (1, 3, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0, 1], seek_generation=0), 0)
    known.apply(e.Sought(**IDS, seek_generation=1, positions={0: 2}, token="t"), 0)

    assert {1} == known.drained
    assert {1: [(3, 5)]} == known.above
    assert (2, 0) == (known.position(0), known.position(1))


def test_a_revoked_segment_is_held_until_it_is_released() -> None:
    known = held()
    assert [0, 1] == known.held_by("ada")
    assert 7 == known.holdings[1].revoked_at_ms
    known.apply(e.SegmentReleased(**IDS, segment=1, generation=2, reason="confirmed"), 8)

    assert [0] == known.held_by("ada")
    assert 4 == known.next_generation


def test_whoever_is_gone_holds_nothing() -> None:
    known = held()
    known.apply(e.ConsumerGone(**IDS, consumer="ada", incarnation=1, reason="left"), 9)

    assert {2} == set(known.holdings)
    assert {"bob"} == set(known.consumers)


def test_silence_begins_and_ends() -> None:
    known = held()
    known.apply(e.ConsumerDisconnected(**IDS, consumer="ada", incarnation=1), 5)
    assert 5 == known.consumers["ada"].disconnected_at_ms
    known.apply(e.ConsumerReconnected(**IDS, consumer="ada", incarnation=1), 6)

    assert known.consumers["ada"].disconnected_at_ms is None


@pytest.mark.parametrize("positions", [{}, {0: 4, 3: 1}])
def test_a_subscription_begins_where_it_was_told(positions: dict[int, int]) -> None:
    assert [positions.get(n, 0) for n in range(5)] == [subscription(positions=positions).position(n) for n in range(5)]


def test_a_pruned_segment_leaves_nothing_behind() -> None:
    known = held()
    known.apply(acknowledged((0, 0, 5)), 0)
    known.apply(e.SegmentsDrained(**IDS, segments=[0], seek_generation=0), 0)
    known.forget_segments([0])

    assert ({}, set(), {1, 2}) == (known.positions, known.drained, set(known.holdings))


def test_the_type_is_put_on_record() -> None:
    known = subscription()
    known.apply(e.SubscriptionTyped(**IDS, subscription_type="QUEUE", order="none"), 0)

    assert ("QUEUE", "none") == (known.type, known.order)
