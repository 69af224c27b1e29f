"""The choice of the subscriptions that have series of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.views.subscriptions import BacklogInfo
from metrics.busiest import KEPT_FACTOR, activity, choose_busiest

A, B, C = (("orders", name) for name in "abc")
ACTIVITIES = st.dictionaries(
    st.tuples(st.just("orders"), st.text("abcdefgh", min_size=1, max_size=2)), st.floats(0, 1e9), max_size=12
)


def backlog(**fields):
    counted = {"subscription_type": "STREAM", "counted_by": "spark", "as_of_ms": 0, "outlook": "unknown"}
    return BacklogInfo(topic="orders", subscription="a", segments=[], **counted, **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"stored_per_second": 2.0, "acknowledged_per_second": 3.0}, 5),
        ({"records": 7200}, 2),
        ({"records": 3600, "stored_per_second": 4.0}, 5),
    ],
    ids=["nothing known", "traffic", "a backlog without traffic", "both"],
)
def test_traffic_and_waiting_records_make_a_subscription_busy(fields, expected):
    assert activity(backlog(**fields)) == pytest.approx(expected)


@pytest.mark.parametrize(("other", "chosen"), [(19.9, A), (20.0, A), (20.1, B)])
def test_one_that_is_chosen_stays_until_another_is_twice_as_busy(other, chosen):
    assert choose_busiest({A: 10.0, B: other}, {A}, 1) == {chosen}


@given(activities=ACTIVITIES, chosen=st.sets(st.sampled_from([A, B, C])), limit=st.integers(0, 5))
def test_a_choice_is_as_large_as_it_may_be_and_stays(activities, chosen, limit):
    found = choose_busiest(activities, chosen, limit)

    assert len(found) == min(limit, len(activities))
    assert found <= activities.keys()
    assert choose_busiest(activities, found, limit) == found


@given(activities=ACTIVITIES, changes=st.lists(st.floats(0.71, 1.4), min_size=12, max_size=12))
def test_changes_below_the_factor_replace_none_of_the_busiest(activities, changes):
    """Each may become 1.4 times as busy, and another one 1.4 times less."""
    assert 1.4 / 0.71 < KEPT_FACTOR
    first = choose_busiest(activities, (), 3)
    changed = {key: value * change for (key, value), change in zip(activities.items(), changes, strict=False)}

    assert choose_busiest(changed, first, 3) == first
