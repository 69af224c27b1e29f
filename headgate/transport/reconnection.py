"""Pauses between attempts to connect to the broker."""

import random
from typing import Final

from headgate.backoff import Backoff, BackoffSchedule

RECONNECT_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=2.0, jitter=1.0, shortest_seconds=0.05)
EARLY_LOSS_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=30.0, jitter=1.0, shortest_seconds=0.05)
STABLE_CONNECTION_SECONDS: Final = 5.0
"""A connection that lasted this long, and twice as long as the pause before it could, resets the pauses.
Of two clients with one client id, each is connected while the other pauses."""


def pause_after_attempt(drawn_seconds: float, attempt_seconds: float) -> float:
    """Return the pause after a failed attempt. One that waited in vain was a pause: the next one follows at once."""
    return max(drawn_seconds - attempt_seconds, RECONNECT_BACKOFF.shortest_seconds)


class EarlyLosses:
    """Connections in a row that the broker accepted and soon ended, and the pause after each."""

    def __init__(self, rng: random.Random) -> None:
        self.in_a_row = 0
        self._schedule = BackoffSchedule(EARLY_LOSS_BACKOFF, rng.random)
        self._longest_last_pause_seconds = 0.0

    def pause_after(self, connected_seconds: float) -> float:
        """Count the loss of a connection that lasted ``connected_seconds``; return the pause before the next one."""
        self.in_a_row += 1
        if connected_seconds >= max(STABLE_CONNECTION_SECONDS, 2 * self._longest_last_pause_seconds):
            self.in_a_row = 0
            self._schedule.reset()
        self._longest_last_pause_seconds = self._schedule.bound_seconds
        return self._schedule.next_seconds()
