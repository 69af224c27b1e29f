"""How long a transport waits before it connects again."""

import random

import pytest

from headgate.transport.connection_options import EarlyLosses, pause_after_attempt


def test_connections_that_end_early_are_followed_by_growing_pauses() -> None:
    """Of two programs with one client id, each is connected while the other pauses, up to 30 seconds."""
    losses = EarlyLosses(random.Random(1).random)
    pauses = [0.0]
    for _ in range(200):
        pauses.append(losses.pause_after(min(2.0 ** len(pauses) / 40, 30.0)))

    assert max(pauses[1:4]) < 1
    assert max(pauses) <= 30
    assert sum(pauses[-100:]) / 100 > 10
    assert losses.in_a_row == 200


def test_the_loss_of_a_stable_connection_is_followed_by_a_short_pause() -> None:
    losses = EarlyLosses(random.Random(1).random)
    for _ in range(200):
        losses.pause_after(0.0)

    assert losses.pause_after(60.0) <= 0.1
    assert losses.in_a_row == 0
    assert losses.pause_after(6.0) <= 0.1, "five seconds are long after a short pause"


@pytest.mark.parametrize(("attempt_seconds", "pause_seconds"), [(0.0, 2.0), (0.5, 1.5), (3.0, 0.05)])
def test_the_time_of_a_failed_attempt_counts_as_its_pause(attempt_seconds: float, pause_seconds: float) -> None:
    """A network that returns while an attempt waits is used at once."""
    assert pause_after_attempt(2.0, attempt_seconds) == pause_seconds
