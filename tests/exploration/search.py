"""Visits every state that a model reaches in a number of steps, and checks each.

The search is breadth-first, so the first broken promise has the shortest story. A state is kept as the steps that lead
to it and made again from them: a model may contain any objects of the product, and none of them must be copied. Two
states with the same key have the same future, so the second one is not continued.
"""

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

FURTHER_STEPS = int(os.environ.get("EXPLORATION_STEPS", "0"))
"""Steps to search beyond the depth that a test names."""


class Model(Protocol):
    """A system under every choice of its environment. Deterministic: the same steps lead to the same state."""

    def choices(self) -> Sequence[str]:
        """Return the names of the steps that are possible now."""

    def take(self, choice: str) -> None:
        """Take a step. Raises BrokenPromiseError if what it does was promised not to happen."""

    def key(self) -> Hashable:
        """Return a value that equals that of another state only if both have the same future."""

    def check_end(self) -> None:
        """Let all faults end, on a state that no search continues; raises BrokenPromiseError unless all work ends too."""


ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True, slots=True)
class Explored:
    """What a search has seen."""

    states: int
    depth: int
    """The longest story without a repeated state."""
    complete: bool
    """Whether there is no state beyond."""


class StoryError(AssertionError):
    """A broken promise, with the steps that lead to it."""

    def __init__(self, steps: Sequence[str], cause: BaseException) -> None:
        self.steps = tuple(steps)
        listed = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
        super().__init__(f"{cause}\nafter these steps:\n{listed}")


def explore(start: Callable[[], ModelT], *, depth: int) -> Explored:
    """Visit all states within ``depth`` steps of ``start()``, and `FURTHER_STEPS`. Raises StoryError for the first one that breaks a promise."""
    root = start()
    seen = {root.key()}
    frontier: list[tuple[tuple[str, ...], Sequence[str]]] = [((), root.choices())]
    depth += FURTHER_STEPS
    for level in range(depth):
        following: list[tuple[tuple[str, ...], Sequence[str]]] = []
        for story, choices in frontier:
            for choice in choices:
                steps = (*story, choice)
                model = replay(start, steps)
                key = model.key()
                if key in seen:
                    continue
                seen.add(key)
                following.append((steps, model.choices()))
                _end(model, steps)
        if not following:
            return Explored(len(seen), level, complete=True)
        frontier = following
    return Explored(len(seen), depth, complete=False)


def replay(start: Callable[[], ModelT], steps: Sequence[str]) -> ModelT:
    """Return the state after ``steps``. Raises StoryError if a step breaks a promise."""
    model = start()
    for number, step in enumerate(steps, 1):
        try:
            model.take(step)
        except AssertionError as error:  # also one of the product: its assertions are bugs as well
            raise StoryError(steps[:number], error) from error
    return model


def _end(model: Model, steps: Sequence[str]) -> None:
    try:
        model.check_end()
    except AssertionError as error:
        raise StoryError((*steps, "all faults end"), error) from error
