"""What headgate needs of a broker, in its own words.

`Transport` is implemented by headgate.transport.mqtt over a real broker and by tests/support/broker.py in memory; one
contract suite runs against both. A transport promises little: a message that was published may be lost, doubled or
late. It reconnects by itself, subscribes again, and says so, because whoever waits for a reply must then ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

MessageHandler = Callable[[str, bytes], None]
"""Called on the loop with (topic, payload), in the order of arrival. Must not block and must not raise."""


class Transport(Protocol):
    """One connection to a broker, kept up for as long as it is open."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached now."""

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """Call ``handler(True)`` once connected and all subscriptions stand, ``handler(False)`` after a loss."""

    async def subscribe(self, topic_filter: str, handler: MessageHandler) -> None:
        """Deliver what matches ``topic_filter`` to ``handler``, now and after every reconnection.

        Returns once the broker has confirmed, or at once while it is out of reach (it is done on connecting).
        """

    async def unsubscribe(self, topic_filter: str) -> None:
        """Stop delivering ``topic_filter``."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand a message over without waiting; False if the broker is out of reach or too much is waiting."""

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Say goodbye and close."""
