"""Traffic rates in ledger time."""

from hypothesis import given
from hypothesis import strategies as st

from shard.state.topic import Rate, Traffic

MINUTE = 60_000
SLOT_MS = 10_000
SLOTS = 61


def test_a_rate_is_the_mean_over_complete_slots() -> None:
    """The current slot counts neither as a drop nor as a burst."""
    traffic = Traffic()
    for second in range(125):
        traffic.add(second * 1000, 10, 500)

    assert Rate(10, 500) == traffic.rate(125_000, MINUTE)
    assert Rate(10, 500) == traffic.rate(120_000, MINUTE)


def test_slots_without_records_count_as_zero() -> None:
    traffic = Traffic()
    traffic.add(0, 600, 6000)

    assert Rate(10, 100) == traffic.rate(MINUTE, MINUTE)
    assert Rate() == traffic.rate(2 * MINUTE, MINUTE)


def test_a_peak_is_the_busiest_window_of_the_span() -> None:
    traffic = Traffic()
    traffic.add(0, 1200, 12)
    traffic.add(4 * MINUTE, 60, 600)

    assert Rate(20, 10) == traffic.peak(5 * MINUTE, MINUTE, 5 * MINUTE)
    assert Rate(1, 10) == traffic.peak(5 * MINUTE, MINUTE, 2 * MINUTE)


def test_a_window_is_one_slot_at_least() -> None:
    traffic = Traffic()
    traffic.add(0, 300, 300)
    traffic.add(SLOT_MS, 10, 20)

    assert Rate(1, 2) == traffic.rate(2 * SLOT_MS, 5000) == traffic.peak(2 * SLOT_MS, 5000, 5000)


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 1000)), max_size=80), st.integers(1, 12))
def test_a_peak_matches_a_search_of_every_window(arrivals: list[tuple[int, int]], width: int) -> None:
    traffic = Traffic()
    for at_ms, records in sorted(arrivals):
        traffic.add(at_ms, records, 2 * records)
    now_ms, window_ms, span_ms = 410_000, width * SLOT_MS, 200_000
    rates = [traffic.rate(now_ms - back, window_ms) for back in range(0, span_ms - window_ms + 1, SLOT_MS)]

    assert traffic.peak(now_ms, window_ms, span_ms) == Rate(
        max(rate.records for rate in rates), max(rate.bytes for rate in rates)
    )


def test_the_number_of_slots_is_limited() -> None:
    traffic = Traffic()
    for slot in range(10 * SLOTS):
        traffic.add(slot * SLOT_MS, 1, 1)

        assert min(slot + 1, SLOTS) == len(traffic.slots)
