"""How long a transport waits before it connects again."""

from __future__ import annotations

import random

from headgate.transport.reconnection import EarlyLosses


def test_connections_that_end_early_are_followed_by_growing_pauses() -> None:
    """Of two programs with one client id, each is connected while the other pauses, up to 30 seconds."""
    losses = EarlyLosses(random.Random(1))
    pauses = [0.0]
    for _ in range(200):
        pauses.append(losses.pause_after(min(2.0 ** len(pauses) / 40, 30.0)))

    assert max(pauses[1:4]) < 1
    assert max(pauses) <= 30
    assert sum(pauses[-100:]) / 100 > 10
    assert losses.in_a_row == 200


def test_the_loss_of_a_stable_connection_is_followed_by_a_short_pause() -> None:
    losses = EarlyLosses(random.Random(1))
    for _ in range(200):
        losses.pause_after(0.0)

    assert losses.pause_after(60.0) <= 0.1
    assert losses.in_a_row == 0
    assert losses.pause_after(6.0) <= 0.1, "five seconds are long after a short pause"
