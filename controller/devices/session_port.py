"""What the intake of plain devices needs of a broker: one session per shard, kept under a fixed name.

`headgate.transport.mqtt_persistent_session` is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self


class Delivery(Protocol):
    """One message from a device."""

    @property
    def topic(self) -> str:
        """The MQTT topic."""

    @property
    def payload(self) -> bytes:
        """The value."""

    @property
    def retained(self) -> bool:
        """Whether it is a copy of a retained message, sent because of a subscription."""

    def acknowledge(self) -> None:
        """Tell the broker that it need not come again."""


class DeviceSession(Protocol):
    """A session that the broker keeps under a fixed name; whoever opens it next takes it over."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached now."""

    @property
    def connection(self) -> int:
        """Number of the connection that stands now, never given again; 0: the broker cannot be reached."""

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """Call ``handler(connected)`` whenever that changes."""

    async def add_subscription(self, topic_filter: str) -> None:
        """Take in what matches; at once while the broker is out of reach. Raises TransportError if it is rejected."""

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Take in no more of them, whoever began to: asked of the broker on this ``connection``, or not at all.

        Returns whether the broker confirmed it. It does so after it has handled everything that was sent before.
        """

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1, if there is a connection; comes back behind what waits here if ``topic`` is followed."""

    async def __aenter__(self) -> Self:
        """Start connecting; returns at once."""

    async def __aexit__(self, *_: object) -> None:
        """Close the connection; the session stays."""


OpenSession = Callable[[int, Callable[[Delivery], None]], DeviceSession]
"""(shard, handler of deliveries) → its session, not yet entered."""
