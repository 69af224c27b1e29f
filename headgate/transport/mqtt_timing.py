"""The time limits of a connection to a broker. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_CONNECT_TIMEOUT_SECONDS: Final = 10.0
"""A later attempt may find what this one waits for in vain."""


@dataclass(slots=True)
class MqttTiming:
    """Time limits of one connection, in seconds."""

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
