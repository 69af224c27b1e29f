"""The search visits every state once, and prints the shortest story of a broken promise."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

from tests.exploration.search import BrokenPromiseError, Explored, StoryError, explore


class Counter:
    """Two counters up to 2. Both at ``forbidden`` breaks a promise, and ``stuck`` never ends."""

    def __init__(self, forbidden: tuple[int, int] | None = None, stuck: tuple[int, int] | None = None) -> None:
        self._at = {"left": 0, "right": 0}
        self._forbidden, self._stuck = forbidden, stuck

    def choices(self) -> Sequence[str]:
        return [name for name, count in self._at.items() if count < 2]

    def take(self, choice: str) -> None:
        self._at[choice] += 1
        if self.key() == self._forbidden:
            raise BrokenPromiseError("forbidden")

    def key(self) -> Hashable:
        return tuple(self._at.values())

    def check_end(self) -> None:
        if self.key() == self._stuck:
            raise BrokenPromiseError("stuck")


def test_all_states_are_visited_once() -> None:
    """Nine pairs of numbers up to 2, the last one four steps away."""
    assert Explored(states=9, depth=4, complete=True) == explore(Counter, depth=10)
    assert Explored(states=6, depth=2, complete=False) == explore(Counter, depth=2)


def test_a_broken_promise_is_reported_in_the_fewest_steps() -> None:
    with pytest.raises(StoryError, match=r"forbidden\nafter these steps:\n  1\. left\n  2\. right\Z") as raised:
        explore(lambda: Counter(forbidden=(1, 1)), depth=4)

    assert ("left", "right") == raised.value.steps


def test_a_state_in_which_work_never_ends_is_reported() -> None:
    with pytest.raises(StoryError, match="stuck") as raised:
        explore(lambda: Counter(stuck=(0, 2)), depth=4)

    assert ("right", "right", "all faults end") == raised.value.steps
