"""The messages that a connection has accepted and not yet sent: how many there may be, and when they are written."""

import asyncio
from collections import deque
from typing import Protocol

from paho.mqtt.client import Client as PahoClient
from paho.mqtt.reasoncodes import ReasonCode

from headgate.transport.aiomqtt_parts import OutgoingPacket
from headgate.transport.mqtt_packets import correlation, encode_publish
from headgate.transport.mqtt_timing import MqttTiming


class Sending(Protocol):
    """What the library of the protocol knows about one message."""

    def is_published(self) -> bool:
        """Whether it is sent; with QoS 1: whether the broker has confirmed it."""


class OutgoingMessages:
    """Messages passed to paho: ordinary ones until they are on the socket, others until they are confirmed.

    Two queues, because ordinary messages can be written before an earlier one is confirmed.
    """

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._queues: tuple[deque[tuple[Sending, int]], ...] = (deque(), deque())
        self._messages = 0
        self._bytes = 0

    def has_capacity(self, size: int) -> bool:
        """Return whether one more message fits. A single message always fits."""
        self._discard_published()
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def add(self, sending: Sending, size: int, confirmed: bool) -> None:
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
