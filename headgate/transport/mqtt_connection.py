"""What the transports keep of one connection to the broker: handlers, outgoing messages, and why it was lost."""

import asyncio
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final

from aiomqtt.exceptions import MqttConnectError  # noqa: TID251 - see headgate.transport.mqtt
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessageInfo
from paho.mqtt.matcher import MQTTMatcher
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from headgate.errors import ConfigError
from headgate.transport.broker_tls import BrokerTls, TlsSockets, is_end_of_connection, tls_problem
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt_client import ENDED_EARLY, OutgoingPacket
from headgate.transport.mqtt_packets import correlation, encode_publish
from headgate.transport.port import BrokerProperties, MessageHandler

KNOWN_TOPICS: Final = 256
"""Whose handlers are remembered: to look for them takes as long as to read the message. Names have up to 64 KB."""
UNSPECIFIED_ERROR: Final = 128
UNSUPPORTED_VERSION: Final = 132
SERVER_UNAVAILABLE: Final = 136
"""Reason codes of MQTT 5, in which paho gives those of 3.1.1 too."""


def cause_of(error: Exception) -> BaseException:
    """Return the error of the socket behind ``error``; aiomqtt raises its own "from None"."""
    context = error.__context__
    return error.__cause__ or (context if isinstance(context, OSError) else None) or error


def broker_properties(properties: Properties) -> BrokerProperties:
    found: dict[str, Any] = properties.json()  # type: ignore[no-untyped-call]
    return BrokerProperties(
        maximum_packet_bytes=found.get("MaximumPacketSize"),
        maximum_qos=found.get("MaximumQoS", 2),
        retains=bool(found.get("RetainAvailable", 1)),
        wildcards=bool(found.get("WildcardSubscriptionAvailable", 1)),
    )


class MessageRouter:
    """Filter → its handler, and whether that handler expects copies of retained messages."""

    def __init__(self) -> None:
        self.ignored_retained = 0
        """Copies of retained messages that arrived for filters which do not expect any."""
        self._handlers: dict[str, tuple[MessageHandler, bool]] = {}
        self.optional: set[str] = set()
        self._matcher = MQTTMatcher()
        """The same handlers. One lookup finds those of a topic, independent of the number of filters."""
        self._found = lru_cache(KNOWN_TOPICS)(lambda topic: tuple(self._matcher.iter_match(topic)))

    @property
    def filters(self) -> list[str]:
        return list(self._handlers)

    def add(self, topic_filter: str, handler: MessageHandler, *, retained: bool, optional: bool = False) -> None:
        """Add a filter, or give it another handler. ``optional``: the connection is useful without it."""
        if optional:
            self.optional.add(topic_filter)
        self._handlers[topic_filter] = self._matcher[topic_filter] = handler, retained
        self._found.cache_clear()

    def remove(self, topic_filter: str) -> None:
        if self._handlers.pop(topic_filter, None) is not None:
            del self._matcher[topic_filter]
            self._found.cache_clear()

    def expects_retained(self, topic_filter: str) -> bool:
        """Whether the broker shall send copies of retained messages for this filter."""
        return topic_filter in self._handlers and self._handlers[topic_filter][1]

    def handlers_of(self, topic: str, *, retained: bool) -> Iterator[MessageHandler]:
        """Yield the handlers of a message; ``retained``: it is a copy that the broker sent to a new subscription."""
        for handler, expects_retained in self._found(topic):
            if retained and not expects_retained:
                self.ignored_retained += 1
            else:
                yield handler


class Cause(Enum):
    OUTAGE = auto()
    """It was lost, or nothing answers: it will come back."""
    DOUBT = auto()
    """It was refused, or the broker is just starting."""
    REFUSAL = auto()
    """It was refused, and waiting does not help."""


def loss_reason(
    error: Exception, tls: BrokerTls | None, sockets: TlsSockets | None, username: str | None
) -> tuple[str, Cause]:
    """Return why a connection was lost, or refused, for users. ``sockets``: those of this attempt."""
    cause = cause_of(error)
    if isinstance(error, ConfigError):
        return str(error), Cause.REFUSAL
    if tls is not None and sockets is not None and (failure := sockets.failure(cause)):
        kind = Cause.DOUBT if is_end_of_connection(failure) else Cause.REFUSAL
        return tls_problem(failure, tls), kind
    if isinstance(cause, MqttConnectError):
        user = "a client without user name" if username is None else f"user {username}"
        temporary = isinstance(cause.rc, ReasonCode) and cause.rc.value == SERVER_UNAVAILABLE
        return f"the broker refuses {user}: {cause.rc}", Cause.DOUBT if temporary else Cause.REFUSAL
    if str(cause) == ENDED_EARLY and tls is None:
        return f"{ENDED_EARLY}; if this port uses TLS, set tls = true", Cause.OUTAGE
    code = getattr(cause, "rc", None)
    # paho calls a connection that the broker closed an unspecified error.
    closed = isinstance(code, ReasonCode) and code.value == UNSPECIFIED_ERROR
    return "the broker closed the connection" if closed else str(cause), Cause.OUTAGE


def refuses_version(error: Exception) -> bool:
    code = error.rc if isinstance(error, MqttConnectError) else None
    return isinstance(code, ReasonCode) and code.value == UNSUPPORTED_VERSION


class OutgoingMessages:
    """Messages that were passed to paho: ordinary ones until they are on the socket, others until they are confirmed.

    Two queues, because ordinary messages can be written before an earlier one is confirmed.
    """

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._queues: tuple[deque[tuple[OutgoingPacket | MQTTMessageInfo, int]], ...] = deque(), deque()
        self._messages = 0
        self._bytes = 0

    def has_capacity(self, size: int) -> bool:
        """Return whether one more message fits. A single message always fits."""
        self._discard_published()
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def add(self, sending: OutgoingPacket | MQTTMessageInfo, size: int, confirmed: bool) -> None:
        self._queues[confirmed].append((sending, size))
        self._messages += 1
        self._bytes += size

    def _discard_published(self) -> None:
        for queue in self._queues:
            while queue and queue[0][0].is_published():
                self._bytes -= queue.popleft()[1]
                self._messages -= 1


class PacketWriter:
    """Writes the messages of one connection after the other.

    A message after a pause is written before `publish` returns. Messages that follow closely are written together in
    the loop's next turn.
    """

    def __init__(self, outgoing: OutgoingMessages, timing: MqttTiming) -> None:
        self._outgoing = outgoing
        self._timing = timing
        self._loop = asyncio.get_running_loop()
        self._publishing: PahoClient | None = None
        self._last_write_at = 0.0
        self._sent_to: dict[int, str] = {}
        """Packet id → topic, of messages with QoS 1 that the broker has not answered."""
        self.unheard: set[str] = set()
        """Topics at which the newest answered message met no subscriber, as far as the broker says so."""
        self._scheduled = False
        """Messages will be written together in the loop's next turn."""

    def publish(
        self, paho: PahoClient, topic: str, payload: bytes, *, retain: bool, qos: int, mqtt5: bool, tag: bytes | None
    ) -> bool:
        """Pass a message to ``paho``; return False if it does not fit, or nothing is connected. ``tag`` correlates."""
        if not self._outgoing.has_capacity(len(payload)) or paho.socket() is None:
            return False
        properties = None if tag is None or not mqtt5 else correlation(tag)
        if qos or properties is not None:
            self._publishing = paho
            try:
                info = paho.publish(topic, payload, qos=qos, retain=retain, properties=properties)
            finally:
                self._publishing = None
            if info.rc != 0:
                return False
            self._outgoing.add(info, len(payload), qos > 0)
            if qos:
                self._sent_to[info.mid] = topic
        else:
            packet = encode_publish(topic, payload, mqtt5=mqtt5)
            self._outgoing.add(OutgoingPacket(paho, packet), len(payload), retain)
        if self._loop.time() - self._last_write_at >= self._timing.immediate_write_after_idle_seconds:
            self._write(paho)
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._write, paho)
        return True

    def answered(self, packet_id: int, reason: ReasonCode) -> None:
        if (topic := self._sent_to.pop(packet_id, None)) is not None:
            self.unheard.discard(topic)
            if reason == "No matching subscribers":
                self.unheard.add(topic)

    def on_write_pending(self, paho: PahoClient, _userdata: object, _sock: object) -> None:
        """Schedule a write of packets that paho sends on its own initiative; it connects on its own thread."""
        if paho is not self._publishing:
            self._loop.call_soon_threadsafe(self._write, paho)

    def _write(self, paho: PahoClient) -> None:
        """Write what the socket accepts now, and the rest when it is writable; aiomqtt removes the writer."""
        self._scheduled = False
        self._last_write_at = self._loop.time()
        paho.loop_write()
        sock = paho.socket()
        if sock is not None and paho.want_write():
            self._loop.add_writer(sock.fileno(), self._write, paho)
