"""Tells an MQTT device that its record is durable, or why it was refused, if the device asks for it (MQTT 5).

A device asks with a response topic. It must begin with `headgate/<cluster>/devices/<user>/replies/`, and the message
must be published below `headgate/<cluster>/devices/<user>/publish/`: the broker's list lets only that user publish and
read there. So no device can make the daemon publish to a topic of others. Confirmations go at QoS 0: a device that gets
none publishes again.
"""

from typing import Final, Literal

import msgspec

from controller.context.session_port import Delivery
from headgate.protocol import messages as m
from headgate.transport.port import Transport
from metrics import events
from metrics.label_values import DeviceRejectionReason

MAX_RESPONSE_TOPIC_BYTES: Final = 256
MAX_CORRELATION_BYTES: Final = 256


class DeviceConfirmation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a device gets, as JSON."""

    outcome: Literal["stored", "refused"]
    """``stored``: the record is durable. ``refused``: it was not stored, and will not be."""
    reason: DeviceRejectionReason | None = None
    """Why it was refused."""


_ENCODER = msgspec.json.Encoder()


def may_confirm(cluster: str, user: str | None, topic: str, correlation: bytes | None) -> bool:
    """Return whether a device that published in the name of ``user`` may get a confirmation on ``topic``."""
    if user is None or len(topic.encode()) > MAX_RESPONSE_TOPIC_BYTES:
        return False
    prefix = m.confirmations_prefix(cluster, user)
    rest = topic.removeprefix(prefix)
    return (
        rest not in (topic, "")
        and not any(character in topic for character in "+#\0")
        and len(correlation or b"") <= MAX_CORRELATION_BYTES
    )


class Confirmations:
    """Sends the confirmations of one shard's devices."""

    def __init__(self, cluster: str, transport: Transport, observer: events.Observer) -> None:
        self._cluster = cluster
        self._transport = transport
        self._observer = observer

    def send(self, delivery: Delivery, reason: DeviceRejectionReason | None = None) -> None:
        """Tell the device that its message is stored, or refused for ``reason``; nothing, if it does not ask."""
        topic = delivery.response_topic
        if topic is None:
            return
        user = m.parse_publish_address(self._cluster, delivery.topic).user
        if not may_confirm(self._cluster, user, topic, delivery.correlation_data):
            self._observer.observe(events.DeviceConfirmationEnded(outcome="invalid_topic"))
            return
        message = DeviceConfirmation(outcome="stored" if reason is None else "refused", reason=reason)
        sent = self._transport.publish(topic, _ENCODER.encode(message), correlation_data=delivery.correlation_data)
        self._observer.observe(events.DeviceConfirmationEnded(outcome="sent" if sent else "not_sent"))
