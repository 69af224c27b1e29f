"""The time limits of a connection to a broker, and the pauses between attempts to connect. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    def __init__(self, draw: Callable[[], float]) -> None:
        self.in_a_row = 0
        self._schedule = BackoffSchedule(EARLY_LOSS_BACKOFF, draw)
        self._longest_last_pause_seconds = 0.0

    def pause_after(self, connected_seconds: float) -> float:
        """Count the loss of a connection that lasted ``connected_seconds``; return the pause before the next one."""
        self.in_a_row += 1
        if connected_seconds >= max(STABLE_CONNECTION_SECONDS, 2 * self._longest_last_pause_seconds):
            self.in_a_row = 0
            self._schedule.reset()
        self._longest_last_pause_seconds = self._schedule.bound_seconds
        return self._schedule.next_seconds()


MAX_CONNECT_TIMEOUT_SECONDS: Final = 10.0
"""A later attempt may find what this one waits for in vain."""


@dataclass(slots=True)
class MqttTiming:
    keepalive_seconds: int = 5
    """The broker ends a connection that is silent for one and a half of these."""
    ping_seconds: int | None = None
    """A ping follows this long after the last message, and the connection is lost if as long passes again without an
    answer; both are checked once a second. At most ``keepalive_seconds``, which is the default."""
    connect_timeout_seconds: float = 3.0
    """For the TCP connection, for the TLS handshake, and again for the broker's answer."""
    subscribe_timeout_seconds: float = 5.0
    """For the confirmation of a subscription. A slower broker counts as lost."""
    close_timeout_seconds: float = 2.0
    """For the broker to receive the published messages before closing."""
    immediate_write_after_idle_seconds: float = 0.001
    """After this long without a message, one is written immediately. Under load messages are
    written together, once per turn of the loop: a write for each would wake the broker for each."""

    @classmethod
    def for_first_connection(cls, seconds: float | None) -> MqttTiming:
        """Return the limits of a program that waits ``seconds`` for its first connection; None: the defaults."""
        return cls() if seconds is None else cls(connect_timeout_seconds=min(seconds, MAX_CONNECT_TIMEOUT_SECONDS))
