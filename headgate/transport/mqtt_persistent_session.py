"""A persistent MQTT session: messages that arrive while no client is connected wait at the broker.

At least once: client id and session are fixed, subscriptions are QoS 1, and a message is
acknowledged to the broker only when its consumer acknowledges it.

1. A connection with the same client id takes over the session; the older one ends.
2. A delivery is acknowledged on the connection that it arrived on, or not at all: later its number
   may belong to another message.
3. Filters are added and removed on the connection that the caller names, or not at all: another
   client may have used the session since. So a reconnection does not subscribe automatically.
4. Nothing is read while ``window`` is full, which several sessions can share, and with MQTT 5 the broker
   sends at most `MAX_UNACKNOWLEDGED_MESSAGES` (with 3.1.1 as many as it likes; mosquitto: ``max_inflight_messages``).
5. Closing leaves the session and its subscriptions at the broker, except after `end_at_close`. Without a connection
   it ends after `SESSION_SECONDS` (MQTT 5).
6. Only what the connections of clients do not show is logged: sessions are many, and an outage ends all connections.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final, Self

import aiomqtt  # noqa: TID251 - this and headgate.transport.mqtt are the modules that speak to the broker
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from headgate.model.headers import header_bytes
from headgate.transport.broker_tls import TlsSocket
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import Attempt, MqttTransport
from headgate.transport.mqtt_client import end_session_at_close, paho_of
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow

KEEPALIVE_SECONDS: Final = 30
"""Longer than reading may pause: while nothing is read, the broker's answers to pings are not read either."""
CONFIRMATION_TIMEOUT_SECONDS: Final = 60.0
"""For the broker's answer to a change of filters: deliveries before it may have to be stored first.
A dead broker is detected sooner."""
MAX_UNACKNOWLEDGED_MESSAGES: Final = 1000
SESSION_SECONDS: Final = 30 * 86_400
"""A session without a connection for so long has no owner any more, and ends (MQTT 5)."""
DEFAULT_WINDOW_BYTES: Final = 16 * 1024 * 1024


class MqttPersistentSession(MqttTransport):
    clean_session: ClassVar[bool] = False
    qos: ClassVar[int] = 1
    logs_outages: ClassVar[bool] = False

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        handler: Callable[[ArrivedMessage], None],
        *,
        window: ReadingWindow | None = None,
        timing: MqttTiming | None = None,
        **options: Any,
    ) -> None:
        """Pass each delivery to ``handler``, on the loop, in the order of arrival. It must not raise.

        ``options`` are for `MqttTransport`.
        """
        timing = replace(
            timing or MqttTiming(),
            keepalive_seconds=KEEPALIVE_SECONDS,
            ping_seconds=None,
            subscribe_timeout_seconds=CONFIRMATION_TIMEOUT_SECONDS,
        )
        super().__init__(host, port, client_id, timing=timing, **options)
        self._handler = handler
        self._window = window or ReadingWindow(DEFAULT_WINDOW_BYTES)
        self._paused_client: PahoClient | None = None
        self._connections = 0

    @property
    def connection(self) -> int:
        """Number of the current connection, never reused; 0: the broker is unreachable."""
        return self._connections if self.connected else 0

    async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Add filters to the session, in one packet; on ``connection`` or not at all.

        Returns whether the broker confirmed it. Raises TransportError: the broker rejects some.
        """
        client = self._client
        if client is None or connection != self._connections:
            return False
        return await self._confirmed(client, self._request_subscriptions(client, list(topic_filters)))

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Remove filters from the session, in one packet, whichever client added them; on ``connection`` or not at all.

        Returns whether the broker confirmed it. The confirmation arrives after all deliveries that
        the broker sent before, and those are read no faster than they are acknowledged.
        """
        client = self._client
        if client is None or connection != self._connections:
            return False
        return await self._confirmed(client, self._request_unsubscription(client, list(topic_filters)))

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1 if connected, so that the message is delivered after what devices published before."""
        if self._client is not None:
            paho_of(self._client).publish(topic, payload, qos=1)

    def end_at_close(self, connection: int) -> None:
        """Let closing remove the session from the broker (MQTT 5); on ``connection`` or not at all."""
        if self._client is not None and connection == self._connections and self.broker is not None:
            end_session_at_close(self._client)

    async def __aenter__(self) -> Self:
        self._window.readers.add(self)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        try:
            await super().__aexit__()
        finally:
            self._window.readers.discard(self)

    def _attach(self, attempt: Attempt) -> None:
        super()._attach(attempt)
        self._connections += 1

    def session_properties(self) -> Properties:
        found = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        found.SessionExpiryInterval = SESSION_SECONDS
        found.ReceiveMaximum = MAX_UNACKNOWLEDGED_MESSAGES
        return found

    def _new_client(self, *, mqtt5: bool) -> aiomqtt.Client:
        client = super()._new_client(mqtt5=mqtt5)
        paho_of(client).manual_ack_set(on=True)
        self._paused_client = None
        return client

    def _on_acceptance(self, properties: Properties) -> None:
        super()._on_acceptance(properties)
        if self._window.full:
            self.pause_reading()

    def _on_message(self, paho: PahoClient, message: ArrivedMessage) -> None:
        if self._closing.is_set():
            return  # Not acknowledged: the next connection receives it.
        size = len(message.payload) + header_bytes(message.headers)
        mid, qos = message.number, message.qos

        @cache  # Once.
        def acknowledge() -> None:
            # Not `self._client`: waiting messages arrive before the connection is attached.
            if paho.is_connected():
                paho.ack(mid, qos)
            self._window.give_back(size)

        self._window.take(size)
        message.acknowledge = acknowledge
        asyncio.get_running_loop().call_soon(self._handler, message)

    def pause_reading(self) -> None:
        paho = None if self._attempt is None else paho_of(self._attempt.client)
        if self._paused_client is None and paho is not None and (sock := paho.socket()) is not None:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            self._paused_client = paho

    def resume_reading(self) -> None:
        paho, self._paused_client = self._paused_client, None
        if paho is not None and (sock := paho.socket()) is not None:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._read, paho)

    def _read(self, paho: PahoClient) -> None:
        """Read as aiomqtt's own reader does, which pausing removed.

        No readiness of the socket announces what TLS has decrypted already.
        """
        try:
            paho.loop_read()
            while isinstance(sock := paho.socket(), TlsSocket) and sock.pending():
                paho.loop_read()
        except OSError:
            if self._client is not None and paho_of(self._client) is paho:
                self._signal_connection_lost(self._client)

    async def _disconnect(self, client: aiomqtt.Client) -> None:
        self.resume_reading()  # The broker's answer follows the unread deliveries.
        await super()._disconnect(client)
