"""A session that the broker keeps: what arrives while nobody is connected waits there for whoever comes next.

`MqttTransport` forgets and promises nothing; this connection is for messages that somebody else was promised, by the
broker's PUBACK. Its client id is fixed, its session is not clean, its subscriptions are QoS 1, and a message is
acknowledged to the broker only when its handler's owner says so. What was not acknowledged comes again, to this
connection's successor, whoever opens it: at least once.

Rules:

1. Whoever connects under the same client id takes the session over; the broker ends the older connection.
2. A delivery is acknowledged on the connection that it came by, or not at all: the broker numbers deliveries by
   session, and on a later connection the number may stand for another message.
3. Filters are dropped on the connection that the caller names, or not at all: on a later one the session may have been
   somebody else's in between, who wants them.
4. While more than ``max_unacknowledged_bytes`` are unacknowledged, nothing more is read: the rest stays with the
broker. The
   broker bounds the number (mosquitto: ``max_inflight_messages``).
5. Closing leaves the session and its subscriptions at the broker.

What it deliberately does not do: decide what becomes of a message, or recognise one that came before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import aiomqtt  # noqa: TID251 - this and headgate.transport.mqtt are the modules that speak to the broker
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage

from headgate.transport.mqtt import FILTERS_PER_PACKET, MqttTransport, paho_of

KEEPALIVE_SECONDS: Final = 30
"""Above the time for which reading may pause: while nothing is read, the broker's answers to pings are not either."""
UNSUBSCRIBE_TIMEOUT_SECONDS: Final = 60.0
"""For the answer to `remove_subscriptions`: what stands before it may have to be stored first. A dead broker is
noticed sooner.
"""
DEFAULT_MAX_UNACKNOWLEDGED_BYTES: Final = 16 * 1024 * 1024


class MqttDelivery:
    """One message that the broker counts as under way until it is acknowledged."""

    __slots__ = ("_acknowledge", "payload", "retained", "topic")

    def __init__(self, topic: str, payload: bytes, retained: bool, acknowledge: Callable[[], None]) -> None:
        self.topic = topic
        self.payload = payload
        self.retained = retained
        """A copy of a retained message, sent because of a subscription and not of a publication."""
        self._acknowledge = acknowledge

    def acknowledge(self) -> None:
        """Tell the broker that it need not come again. Without effect if the connection it came by has ended."""
        self._acknowledge()


class MqttPersistentSession(MqttTransport):
    """One persistent session at an MQTT 3.1.1 broker."""

    clean_session: ClassVar[bool] = False
    qos: ClassVar[int] = 1

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        handler: Callable[[MqttDelivery], None],
        *,
        username: str | None = None,
        password: str | None = None,
        rng: random.Random | None = None,
        max_unacknowledged_bytes: int = DEFAULT_MAX_UNACKNOWLEDGED_BYTES,
    ) -> None:
        """Give each delivery to ``handler``, on the loop, in the order of arrival. It must not raise."""
        super().__init__(
            host,
            port,
            client_id,
            username=username,
            password=password,
            rng=rng,
            keepalive_seconds=KEEPALIVE_SECONDS,
        )
        self._handler = handler
        self._max_unacknowledged_bytes = max_unacknowledged_bytes
        self._unacknowledged_bytes = 0
        self._paused_client: PahoClient | None = None
        self._connections = 0
        self._lost = asyncio.Event()

    async def add_subscription(self, topic_filter: str) -> None:
        """Take in what matches ``topic_filter``, from now on; returns like `Transport.subscribe`.

        Raises:
            TransportError: the broker refuses this filter.

        """
        await self.subscribe(topic_filter, _ignore_message)

    @property
    def connection(self) -> int:
        """Number of the connection that stands now, never given again; 0: the broker cannot be reached."""
        return self._connections if self.connected else 0

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """Take in no more of them, whoever began to; asked for on ``connection`` or not at all.

        Returns whether the broker confirmed it. A confirmation stands behind everything that the broker sent before,
        which is read no faster than it is acknowledged.
        """
        client = self._client
        if client is None or connection != self._connections:
            return False
        for first in range(0, len(topic_filters), FILTERS_PER_PACKET):
            if not await self._unsubscribed(client, topic_filters[first : first + FILTERS_PER_PACKET]):
                return False
        for topic_filter in topic_filters:
            self._remove_handler(topic_filter)
        return True

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1, if there is a connection, so that it waits in line with what devices publish."""
        if self._client is not None:
            paho_of(self._client).publish(topic, payload, qos=1)

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _unsubscribed(self, client: aiomqtt.Client, topic_filters: Sequence[str]) -> bool:
        asking = asyncio.ensure_future(client.unsubscribe(list(topic_filters), timeout=UNSUBSCRIBE_TIMEOUT_SECONDS))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            # aiomqtt would not notice the loss.
            await asyncio.wait({asking, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return False
            asking.result()
        except aiomqtt.MqttError:
            self._signal_connection_lost(client)
            return False
        else:
            return client is self._client
        finally:
            asking.cancel()
            lost.cancel()
            await asyncio.wait({asking, lost})

    def _attach(self, client: aiomqtt.Client) -> None:
        super()._attach(client)
        self._connections += 1
        self._lost.clear()

    def _detach(self) -> None:
        super()._detach()
        self._lost.set()

    def _new_client(self) -> aiomqtt.Client:
        client = super()._new_client()
        paho = paho_of(client)
        paho.manual_ack_set(on=True)
        self._paused_client = None
        return client

    def _on_message(self, paho: PahoClient, _userdata: object, message: MQTTMessage) -> None:
        if self._closing.is_set():
            return  # Not acknowledged: it is the next one's.
        payload = bytes(message.payload)
        size, mid, qos = len(payload), message.mid, message.qos
        acknowledged = False

        def acknowledge() -> None:
            nonlocal acknowledged
            if acknowledged:
                return
            acknowledged = True
            self._unacknowledged_bytes -= size
            # Not `self._client`: what waited at the broker arrives before the connection counts as made.
            if paho.is_connected():
                paho.ack(mid, qos)
            self._resume_reading()

        self._unacknowledged_bytes += size
        if self._unacknowledged_bytes > self._max_unacknowledged_bytes:
            self._pause_reading(paho)
        delivery = MqttDelivery(message.topic, payload, message.retain, acknowledge)
        asyncio.get_running_loop().call_soon(self._handler, delivery)

    def _pause_reading(self, paho: PahoClient) -> None:
        found = paho.socket()
        if self._paused_client is None and found is not None:
            asyncio.get_running_loop().remove_reader(found.fileno())
            self._paused_client = paho

    def _resume_reading(self, *, force: bool = False) -> None:
        paho = self._paused_client
        if paho is None or (self._unacknowledged_bytes > self._max_unacknowledged_bytes // 2 and not force):
            return
        self._paused_client = None
        found = paho.socket()
        if found is not None:
            asyncio.get_running_loop().add_reader(found.fileno(), self._read, paho)

    def _read(self, paho: PahoClient) -> None:
        """Do what aiomqtt's own reader does, which is gone once it was removed."""
        try:
            paho.loop_read()
        except OSError:
            if self._client is not None and paho_of(self._client) is paho:
                self._signal_connection_lost(self._client)

    async def _disconnect(self, client: aiomqtt.Client) -> None:
        self._resume_reading(force=True)  # The broker's answer stands behind what is not read yet.
        await super()._disconnect(client)


def _ignore_message(_topic: str, _payload: bytes) -> None:
    """Stand in for the handler of a filter: deliveries do not go by filters here."""
