"""The MQTT session that the device intake needs: one per shard, under a fixed name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self


class Delivery(Protocol):
    @property
    def topic(self) -> str:
        """The MQTT topic."""

    @property
    def payload(self) -> bytes:
        """The record's value."""

    @property
    def retained(self) -> bool:
        """Whether it is a copy of a retained message, which the broker sends to a new subscriber."""

    @property
    def response_topic(self) -> str | None:
        """Where the device expects a confirmation (MQTT 5); None: it expects none."""

    @property
    def correlation_data(self) -> bytes | None:
        """What the confirmation must repeat."""

    def acknowledge(self) -> None:
        """Acknowledge it to the broker, which then does not deliver it again."""


class DeviceSession(Protocol):
    """A session that the broker stores under a fixed name. The newest client that opens it takes it over."""

    @property
    def connected(self) -> bool:
        """Whether the session is connected to the broker."""

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

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Close the connection. The broker keeps the session."""


OpenSession = Callable[[int, Callable[[Delivery], None]], DeviceSession]
"""(shard, handler of deliveries) → the shard's session, before entry."""
