"""The broker as headgate needs it. One contract suite tests all implementations.

Messages may be lost, duplicated or delayed. A transport reconnects and subscribes again
automatically, and reports both: a client that waits for a reply must then repeat its request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self

MAX_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
"""A larger message is never sent: a broker with a lower limit closes the connection, again at each attempt."""
LARGEST_PACKET_BYTES: Final = MAX_PAYLOAD_BYTES + 1024
"""The largest packet of headgate, with its topic and header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProperties:
    """What a broker accepts, as CONNACK of MQTT 5 says; a property that is absent has the standard's default."""

    answer_seconds: float = 0.0
    """From the beginning of the connection to the answer; 0: not measured."""
    maximum_packet_bytes: int | None = None
    maximum_qos: int = 2
    retains: bool = True
    wildcards: bool = True


MessageHandler = Callable[[str, bytes], None]
"""Called on the loop with (topic, payload), in the order of arrival. Must not block and must not raise."""


class Transport(Protocol):
    """One connection to a broker, maintained while it is open."""

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable now."""

    @property
    def unreachable_reason(self) -> str | None:
        """Why the last attempt to connect failed, or why the connection was lost; None while it is connected.

        One line for users.
        """

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """Call ``handler(True)`` once connected and subscribed to all filters, ``handler(False)`` after a loss."""

    def on_refusal(self, handler: Callable[[str], None]) -> None:
        """Call ``handler(reason)`` when the broker or this program refuses the other one.

        Waiting does not help: an operator has to change a password, a certificate or a name. The transport tries again
        all the same.
        """

    async def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, retained: bool = False, optional: bool = False
    ) -> None:
        """Deliver messages that match ``topic_filter`` to ``handler``, now and after every reconnection.

        A new subscription also receives copies of retained messages. They are ignored unless
        ``retained``: a request that any client published with that flag would otherwise be executed
        again at each reconnection. ``optional``: later connections are of use without it, if the broker refuses it.

        Returns once the broker has confirmed, or immediately while it is unreachable; the next connection subscribes.
        """

    async def unsubscribe(self, topic_filter: str) -> None:
        """Stop delivering messages of ``topic_filter``."""

    def max_payload_bytes(self, topic: str) -> int:
        """Return the largest payload to ``topic``: `MAX_PAYLOAD_BYTES`, or less if the broker accepts less.

        A broker that speaks MQTT 5 says so at each connection.
        """

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 0, correlation_data: bytes | None = None
    ) -> bool:
        """Send a message without waiting. ``correlation_data``: it answers the message that had this (MQTT 5 only).

        ``qos`` 1: if the broker says that it refuses the message (MQTT 5), handlers of `on_refusal` get the reason.

        False if the broker is unreachable, too much is waiting, or ``payload`` exceeds `max_payload_bytes`.
        """

    def is_unheard(self, topic: str) -> bool:
        """Return whether the broker said that the newest message with ``qos`` 1 to ``topic`` met no subscriber.

        A broker need not say so, and one without MQTT 5 cannot.
        """

    async def __aenter__(self) -> Self:
        """Start connecting; returns immediately."""

    async def __aexit__(self, *_: object) -> None:
        """Disconnect and close."""
