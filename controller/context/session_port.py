"""The MQTT session that the device intake needs: one per topic, under a fixed name."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeAlias

from headgate.transport.mqtt_packets import ArrivedMessage
from headgate.transport.reading_window import ReadingWindow

Delivery: TypeAlias = ArrivedMessage
"""One message of a device, unacknowledged."""


class DeviceSession(Protocol):
    """A session that the broker stores under a fixed name. The newest client that opens it takes it over."""

    @property
    def connected(self) -> bool:
        """Whether the session is connected to the broker."""

    @property
    def unreachable_reason(self) -> str | None:
        """Why it is not connected, for people; None: it is, or did not try yet."""

    @property
    def connection(self) -> int:
        """Number of the current connection, never reused; 0 if there is none."""

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """Call ``handler(connected)`` whenever that changes."""

    async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Subscribe on this ``connection``, or not at all; a later connection does not repeat it.

        Returns whether the broker confirmed it. Raises TransportError if it rejects some; the others are added.
        """

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Unsubscribe on this ``connection``, or not at all; filters of earlier terms can be included.

        Returns whether the broker confirmed it, which it does after it handled all earlier packets.
        """

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1, if connected. If ``topic`` is subscribed to, the message arrives after the queued ones."""

    def end_at_close(self, connection: int) -> None:
        """Let closing remove the session from the broker, if it still has this ``connection`` (MQTT 5)."""

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Close the connection. The broker keeps the session, except after `end_at_close`."""


OpenSession = Callable[[str, Callable[[Delivery], None], ReadingWindow], DeviceSession]
"""(name, handler of deliveries, the shard's window) → the session, before entry."""
