"""How long to wait before trying again: 25 ms doubling to 1 s, with jitter and a floor.

Jitter keeps clients that lost the same leader from coming back in step; the floor keeps full jitter, which may draw
almost nothing, from making a busy loop. Randomness comes in, so that a simulation repeats.
"""

from __future__ import annotations

import random

import backoff

MIN_BACKOFF_SECONDS = 0.025
MAX_BACKOFF_SECONDS = 1.0


class BackoffSchedule:
    """Rising pauses until `reset`."""

    def __init__(
        self,
        rng: random.Random,
        shortest_seconds: float = MIN_BACKOFF_SECONDS,
        longest_seconds: float = MAX_BACKOFF_SECONDS,
    ) -> None:
        self._rng = rng
        self._shortest_seconds = shortest_seconds
        self._longest_seconds = longest_seconds
        self.reset()

    def reset(self) -> None:
        """Begin with short pauses again: something succeeded."""
        self._bounds = backoff.expo(factor=self._shortest_seconds, max_value=self._longest_seconds)
        # The generator's first yield is its start signal, not a value.
        next(self._bounds)

    def next_seconds(self) -> float:
        """Return the next pause: between half of the shortest and the current bound."""
        return self._rng.uniform(self._shortest_seconds / 2, next(self._bounds))
