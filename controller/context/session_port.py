"""The MQTT session that the device intake needs: one per topic, under a fixed name."""

from collections.abc import Callable
from typing import TypeAlias

from headgate.transport.mqtt_packets import ArrivedMessage
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from headgate.transport.reading_window import ReadingWindow

Delivery: TypeAlias = ArrivedMessage
"""One message of a device, unacknowledged."""
DeviceSession: TypeAlias = MqttPersistentSession
"""A session that the broker stores under a fixed name. The newest client that opens it takes it over."""
OpenSession = Callable[[str, Callable[[Delivery], None], ReadingWindow], DeviceSession]
"""(name, handler of deliveries, the shard's window) → the session, before entry."""
