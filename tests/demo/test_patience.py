"""A run waits while anything changes, however slowly, and gives up after a time without a change."""

from demo.patience import Patience


def test_any_change_begins_the_time_again() -> None:
    patience = Patience(0.0, stalled_seconds=10.0)

    assert not patience.ended(9.0, (5, "blocked"))
    assert not patience.ended(18.9, (5, "blocked"))
    assert not patience.ended(19.0, (6, "blocked"))
    assert not patience.ended(28.9, (6, "blocked"))
    assert patience.ended(29.0, (6, "blocked"))
