"""When which garbage is collected: each rule, with times as values."""

from __future__ import annotations

import pytest

from controller.decisions.collection_pace import CollectionHistory, due

NOW = 10_000.0


def test_nothing_is_collected_while_nothing_happens() -> None:
    assert due(CollectionHistory(), 0, NOW) is None


@pytest.mark.parametrize(("promotions", "expected"), [(24, None), (25, "new"), (1_000, "new")])
def test_new_objects_are_collected_after_many_promotions(promotions: int, expected: str | None) -> None:
    """Rule 1."""
    assert due(CollectionHistory(), promotions, NOW) == expected
    assert due(CollectionHistory(new_at=NOW - 1), promotions, NOW) == expected


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        pytest.param(9.9, 9.9, None, id="soon"),
        pytest.param(10.0, 10.0, "all", id="in-time"),
        pytest.param(30.0, 0.0, None, id="others-follow"),
        pytest.param(60.0, 0.0, "all", id="others-follow-all-the-time"),
    ],
)
def test_all_objects_are_collected_after_terms_have_ended(first: float, last: float, expected: str | None) -> None:
    """Rule 2."""
    history = CollectionHistory(first_ended_at=NOW - first, last_ended_at=NOW - last)

    assert due(history, 0, NOW) == expected
    assert due(history, 25, NOW) == (expected or "new"), "new objects do not wait for ended terms"


@pytest.mark.parametrize(("age", "expected"), [(3_599.0, None), (3_600.0, "all")])
def test_all_objects_are_collected_an_hour_after_some_were_frozen(age: float, expected: str | None) -> None:
    """Rule 3."""
    assert due(CollectionHistory(new_at=NOW - age), 0, NOW) == expected
