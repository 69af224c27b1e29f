"""Encodes and decodes MQTT's PUBLISH, and limits what is read and not acknowledged. Pure.

paho makes 29 tables of properties for each message of MQTT 5, which costs more than everything else that it does with a
message (`headgate.transport.mqtt_client`). And it refuses U+FEFF in their texts, which is allowed: any client could end
the connection of a daemon with it, and that of a device's session again at each delivery.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headgate.model.headers import Header, Headers
from headgate.transport.port import MAX_PAYLOAD_BYTES

CONTENT_TYPE: Final = "content-type"
_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA, _USER_PROPERTY = 3, 8, 9, 38
_NUMBER_BYTES: Final = {1: 1, 2: 4, 35: 2}
"""Properties that are numbers, and are not read → their bytes."""
HEADER_BYTES: Final = 16
"""At least what a packet has besides its topic and payload, without properties of MQTT 5."""
MESSAGE_BYTES: Final = 1024
"""What a message costs besides its payload, in memory."""


@dataclass(slots=True)
class ArrivedMessage:
    topic: str
    payload: bytes
    qos: int
    retained: bool
    """Whether it is a copy of a retained message, sent because of a subscription and not a publication."""
    number: int
    """The packet identifier that an acknowledgement names; 0 at QoS 0."""
    response_topic: str | None = None
    """Where the sender expects a response (MQTT 5); None: nowhere."""
    correlation_data: bytes | None = None
    headers: Headers = ()
    """Its content type, as ``content-type``, and its user properties in their order (MQTT 5)."""
    acknowledge: Callable[[], None] = lambda: None
    """Acknowledges it to the broker, on the connection that it arrived on or not at all, once; nothing at QoS 0."""


def max_payload_bytes(topic: str, max_packet_bytes: int) -> int:
    """Return the largest payload to ``topic`` at a broker that accepts packets of ``max_packet_bytes``."""
    return max(0, min(MAX_PAYLOAD_BYTES, max_packet_bytes - HEADER_BYTES - len(topic.encode())))


def decode_publish(command: int, body: bytes | bytearray, *, mqtt5: bool) -> ArrivedMessage:
    """Decode a PUBLISH; ``body`` follows its fixed header. Raises ValueError or LookupError: it is malformed."""
    end = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:end].decode()
    qos, number = command >> 1 & 3, 0
    if qos:
        number, end = int.from_bytes(body[end : end + 2], "big"), end + 2
    found = ArrivedMessage(topic, b"", qos, bool(command & 1), number)
    if mqtt5:
        length, shift, more = 0, 0, 0x80
        while more:
            length, more = length | (body[end] & 0x7F) << shift, body[end] & 0x80
            shift, end = shift + 7, end + 1
        _read_properties(found, memoryview(body)[end : end + length])
        end += length
    found.payload = bytes(memoryview(body)[end:])
    return found


def _read_properties(found: ArrivedMessage, properties: memoryview) -> None:
    at, headers = 0, list[Header]()

    def content() -> bytes:
        nonlocal at
        begin, at = at + 2, at + 2 + (properties[at] << 8) + properties[at + 1]
        if at > len(properties):
            raise ValueError("a property ends behind the properties")
        return bytes(properties[begin:at])

    while at < len(properties):
        kind, at = properties[at], at + 1
        if kind == _USER_PROPERTY:
            headers.append((content().decode(), content()))
        elif kind == _CONTENT_TYPE:
            headers.insert(0, (CONTENT_TYPE, content()))
        elif kind == _RESPONSE_TOPIC:
            found.response_topic = content().decode()
        elif kind == _CORRELATION_DATA:
            found.correlation_data = content()
        else:
            at += _NUMBER_BYTES[kind]
    found.headers = tuple(headers)


def encode_publish(topic: str, payload: bytes, *, mqtt5: bool) -> bytes:
    """Return the packet of a message at QoS 0 that is not retained and has no properties.

    ``topic`` has no wildcards: a broker closes the connection of who publishes to such a one.
    """
    name = topic.encode()
    rest = len(name).to_bytes(2, "big") + name + (b"\x00" if mqtt5 else b"")
    left, head = len(rest) + len(payload), bytearray((0x30,))
    while more := left >> 7:
        head.append(left & 0x7F | 0x80)
        left = more
    head.append(left)
    return b"".join((head, rest, payload))


def correlation(data: bytes) -> Properties:
    found = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    found.CorrelationData = data
    return found


class Reader(Protocol):
    def pause_reading(self) -> None:
        """Read nothing more from the broker. Has no effect if it is paused."""

    def resume_reading(self) -> None:
        """Read again. Has no effect if it is not paused."""


class ReadingWindow:
    """Limits what the persistent sessions of one shard have read and not acknowledged, together.

    All of them stop reading above the limit, and continue below half of it. Then each reads one message per turn of the
    loop, so none waits for another one's queue at the broker.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.full = False
        self.readers: set[Reader] = set()
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def take(self, size_bytes: int) -> None:
        self._used_bytes += MESSAGE_BYTES + size_bytes
        if self._used_bytes > self._limit_bytes:
            self.full = True
            for reader in self.readers:
                reader.pause_reading()

    def give_back(self, size_bytes: int) -> None:
        self._used_bytes -= MESSAGE_BYTES + size_bytes
        if self.full and self._used_bytes <= self._limit_bytes // 2:
            self.full = False
            for reader in self.readers:
                reader.resume_reading()
