"""When which garbage is collected: each rule, with times as values."""

import pytest

from controller.process.garbage_collection import CollectionHistory, due

NOW = 10_000.0


def test_nothing_is_collected_while_nothing_happens() -> None:
    assert due(CollectionHistory(), 0, NOW) is None
    assert CollectionHistory() == CollectionHistory(None, 0)


@pytest.mark.parametrize(("promotions", "expected"), [(24, None), (25, "new"), (1_000, "new")])
def test_new_objects_are_collected_after_many_promotions(promotions: int, expected: str | None) -> None:
    """Rule 1."""
    assert due(CollectionHistory(), promotions, NOW) == expected
    assert due(CollectionHistory(NOW - 1, 1), promotions, NOW) == expected


@pytest.mark.parametrize(("ended", "expected"), [(99, None), (100, "all"), (500, "all")])
def test_all_objects_are_collected_after_many_terms_have_ended(ended: int, expected: str | None) -> None:
    """Rule 2."""
    assert due(CollectionHistory(NOW - 1, ended), 0, NOW) == expected
    assert due(CollectionHistory(NOW - 1, ended), 25, NOW) == (expected or "new")


@pytest.mark.parametrize(("age", "expected"), [(3_599.0, None), (3_600.0, "all")])
def test_all_objects_are_collected_within_an_hour(age: float, expected: str | None) -> None:
    """Rule 3."""
    assert due(CollectionHistory(NOW - age), 0, NOW) == expected
