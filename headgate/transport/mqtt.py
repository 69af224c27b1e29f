"""`Transport` over a real MQTT broker, with aiomqtt.

One task owns the connection: it connects, subscribes to everything, says so, waits for the loss, says so, and tries
again with growing pauses, for ever. An outage is logged once when it begins and once when it ends.

What it deliberately does not do: store messages while the broker is away, send anything twice, or promise delivery.
A broker's PUBACK is no promise either, so ordinary messages go at QoS 0. Retained ones go at QoS 1, so that a broker
under load does not throw away the one message that nobody would ask for again; even those are not kept over a
reconnection: publish them again when told ``True``.

Why `publish` calls the paho client inside aiomqtt: `aiomqtt.Client.publish` waits until the socket has taken the
message, one message at a time. Handing over to paho at once keeps the order, needs no queue and no task of our own,
and carries two to three times as much (measured through mosquitto on the loopback, publisher and subscriber each with
half of a small machine: 14 700 messages of 1 KB a second against 4 900, 8 500 of 50 KB against 4 000). For the same
reason messages are taken from paho's callback rather than from aiomqtt's queue, which starts a task for each one.

A message after a pause is written to the socket before `publish` returns; what follows it closely is written together,
in the loop's next turn. aiomqtt would wake the loop, wait a turn to ask for room and another to be told of it: the way
to another program and back takes a fifth longer then, and a connection that breaks in between is an error on the loop.

What waits to be sent is bounded here, in bytes and in messages. What comes in is not queued at all: one packet is read
a turn of the loop, and the rest stays with the broker, where the windows of the protocol above bound it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self

import aiomqtt  # noqa: TID251 - this and headgate.transport.mqtt_persistent_session are the modules that speak to the broker
import structlog
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage, MQTTMessageInfo
from paho.mqtt.matcher import MQTTMatcher

from headgate.backoff import Backoff, BackoffSchedule
from headgate.errors import TransportError
from headgate.transport.port import MessageHandler

DEFAULT_KEEPALIVE_SECONDS: Final = 5
"""A broker that froze is noticed after one and a half of these."""
CONNECT_TIMEOUT_SECONDS: Final = 3.0
"""For the TCP connection, and then again for the broker's answer."""
SUBSCRIBE_TIMEOUT_SECONDS: Final = 5.0
"""For the confirmation of a subscription. A broker that takes longer is taken for lost."""
CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""For the broker to take what was handed over before closing."""
RECONNECT_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=2.0, jitter=1.0, shortest_seconds=0.05)
STABLE_CONNECTION_SECONDS: Final = 5.0
"""A connection that lasted this long starts the pauses over. Two clients of one name throw each other out for ever:
without this they would do it as fast as they can."""
IMMEDIATE_WRITE_AFTER_IDLE_SECONDS: Final = 0.001
"""After so long without a message one is written at once. Under load they are written together, turn by turn: a write
for each would wake the broker for each."""
MAX_OUTGOING_BYTES: Final = 64 * 1024 * 1024
MAX_OUTGOING_MESSAGES: Final = 20_000
FILTERS_PER_PACKET: Final = 100

log = structlog.get_logger(__name__)


class MqttTransport:
    """One connection to an MQTT 3.1.1 broker; see `headgate.transport.port.Transport`."""

    clean_session: ClassVar[bool] = True
    """Whether the broker forgets subscriptions and what waits when the connection ends."""
    qos: ClassVar[int] = 0
    """Quality of service of subscriptions."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        will: tuple[str, bytes, bool] | None = None,
        username: str | None = None,
        password: str | None = None,
        rng: random.Random | None = None,
        keepalive_seconds: int = DEFAULT_KEEPALIVE_SECONDS,
        max_outgoing_bytes: int = MAX_OUTGOING_BYTES,
        max_outgoing_messages: int = MAX_OUTGOING_MESSAGES,
    ) -> None:
        """``will`` is (topic, payload, retain): what the broker publishes if this client goes without a goodbye."""
        self.dropped_messages = 0
        """How many `publish` calls returned False so far."""
        self._host = host
        self._port = port
        self._client_id = client_id
        self._will = aiomqtt.Will(will[0], will[1], qos=1, retain=will[2]) if will else None
        self._username = username
        self._password = password
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._keepalive_seconds = keepalive_seconds
        self._handlers: dict[str, MessageHandler] = {}
        self._matcher = MQTTMatcher()
        """The same handlers, found by topic in one walk however many filters there are."""
        self._watchers: list[Callable[[bool], None]] = []
        self._outgoing = _OutgoingMessages(max_outgoing_bytes, max_outgoing_messages)
        self._client: aiomqtt.Client | None = None
        self._connected = False
        self._publishing: PahoClient | None = None
        self._last_write_at = 0.0
        self._write_scheduled = False
        """Messages are to be written together, in the loop's next turn."""
        self._closing = asyncio.Event()
        self._connection_lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = log.bind(broker=f"{host}:{port}", client_id=client_id)

    @property
    def connected(self) -> bool:
        """See `Transport.connected`."""
        return self._connected

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """See `Transport.on_connection`."""
        self._watchers.append(handler)

    async def subscribe(self, topic_filter: str, handler: MessageHandler) -> None:
        """See `Transport.subscribe`. A filter has one handler: the last one given.

        Raises:
            TransportError: the broker refuses this filter.

        """
        self._handlers[topic_filter] = self._matcher[topic_filter] = handler
        client = self._client
        if client is None:
            return
        try:
            await _subscribe(client, [topic_filter], self.qos)
        except aiomqtt.MqttError:
            # Lost, or as good as lost: everything is subscribed again on the next connection.
            self._signal_connection_lost(client)

    async def unsubscribe(self, topic_filter: str) -> None:
        """See `Transport.unsubscribe`."""
        self._remove_handler(topic_filter)
        client = self._client
        if client is None:
            return
        try:
            await client.unsubscribe(topic_filter, timeout=SUBSCRIBE_TIMEOUT_SECONDS)
        except aiomqtt.MqttError:
            self._signal_connection_lost(client)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """See `Transport.publish`."""
        if not self._connected or self._client is None or not self._outgoing.has_capacity(len(payload)):
            self.dropped_messages += 1
            return False
        paho = paho_of(self._client)
        self._publishing = paho
        try:
            info = paho.publish(topic, payload, qos=1 if retain else 0, retain=retain)
        finally:
            self._publishing = None
        if info.rc != 0:
            self.dropped_messages += 1
            return False
        self._outgoing.add(info, len(payload), retain)
        if self._loop.time() - self._last_write_at >= IMMEDIATE_WRITE_AFTER_IDLE_SECONDS:
            self._write(paho)
        elif not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write, paho)
        return True

    async def __aenter__(self) -> Self:
        """See `Transport.__aenter__`."""
        self._closing.clear()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._maintain_connection(), name=f"mqtt-{self._client_id}")
        self._task.add_done_callback(_report_unexpected_error)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hand over what still waits, say goodbye and close; takes a few seconds at most."""
        self._closing.set()
        self._connection_lost.set()
        if self._task is not None:
            await self._task
            self._task = None

    # --- the owned task -----------------------------------------------------------------------------------------------

    async def _maintain_connection(self) -> None:
        loop = asyncio.get_running_loop()
        schedule = BackoffSchedule(RECONNECT_BACKOFF, self._rng.random)
        outage_logged = False
        while not self._closing.is_set():
            client = self._new_client()
            began: float | None = None
            try:
                await _connect(client)
                self._attach(client)
                await self._subscribe_all(client)
                began = loop.time()
                outage_logged = False
                self._log.info("broker.connected")
                self._notify_watchers(connected=True)
                if not self._closing.is_set():
                    await self._wait_until_lost_or_closing(client)
                await self._disconnect(client)
            except (aiomqtt.MqttError, TransportError) as error:
                if not outage_logged:
                    self._log.warning("broker.unreachable", reason=str(error.__cause__ or error))
                    outage_logged = True
            finally:
                self._detach()
                await _close_socket(client)
            if began is not None and loop.time() - began >= STABLE_CONNECTION_SECONDS:
                schedule.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(schedule.next_seconds()):
                    await self._closing.wait()

    def _new_client(self) -> aiomqtt.Client:
        client = aiomqtt.Client(
            self._host,
            self._port,
            identifier=self._client_id,
            username=self._username,
            password=self._password,
            protocol=aiomqtt.ProtocolVersion.V311,
            clean_session=self.clean_session,
            will=self._will,
            keepalive=self._keepalive_seconds,
            timeout=CONNECT_TIMEOUT_SECONDS,
            # More than this many unconfirmed would be queued by paho, and overtaken by what is sent at QoS 0.
            max_inflight_messages=0,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        paho = paho_of(client)
        paho.connect_timeout = CONNECT_TIMEOUT_SECONDS
        paho.on_message = self._on_message
        paho.on_socket_register_write = self._on_write_pending
        return client

    def _attach(self, client: aiomqtt.Client) -> None:
        self._client = client
        self._connection_lost.clear()
        self._outgoing.clear()
        self._write_scheduled = False

    def _detach(self) -> None:
        self._client = None
        if self._connected:
            self._notify_watchers(connected=False)

    def _notify_watchers(self, *, connected: bool) -> None:
        self._connected = connected
        for watcher in self._watchers:
            watcher(connected)

    def _signal_connection_lost(self, client: aiomqtt.Client) -> None:
        if client is self._client:
            self._connection_lost.set()

    async def _subscribe_all(self, client: aiomqtt.Client) -> None:
        filters = list(self._handlers)
        for first in range(0, len(filters), FILTERS_PER_PACKET):
            await _subscribe(client, filters[first : first + FILTERS_PER_PACKET], self.qos)

    async def _wait_until_lost_or_closing(self, client: aiomqtt.Client) -> None:
        """Return when closing; raises MqttError once the connection is lost or doubtful."""
        lost = asyncio.create_task(_wait_until_lost(client))
        interrupted = asyncio.create_task(self._connection_lost.wait())
        try:
            await asyncio.wait({lost, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await lost
        finally:
            lost.cancel()
            interrupted.cancel()
            await asyncio.wait({lost, interrupted})
        if not self._closing.is_set():
            raise TransportError("the broker did not confirm a subscription in time")

    async def _disconnect(self, client: aiomqtt.Client) -> None:
        """Close so that the broker has everything that was handed over.

        A broker handles one client's packets in order: once it answers this one, it has taken all before. Closing
        without asking can lose them: a socket closed with unread input resets the connection, and the peer drops what
        it had not read.
        """
        # A session that the broker keeps must keep its subscriptions too.
        filters = (list(self._handlers) if self.clean_session else []) or ["nothing"]
        await client.unsubscribe(filters[:FILTERS_PER_PACKET], timeout=CLOSE_TIMEOUT_SECONDS)
        client.timeout = CLOSE_TIMEOUT_SECONDS
        await client.__aexit__(None, None, None)

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def _on_write_pending(self, paho: PahoClient, _userdata: object, _sock: object) -> None:
        """Have written what paho has to say by itself; it connects on a thread of its own."""
        if paho is not self._publishing:
            self._loop.call_soon_threadsafe(self._write, paho)

    def _write(self, paho: PahoClient) -> None:
        """Give the socket all that it takes now, and the rest when it has room; aiomqtt takes that wish back."""
        self._write_scheduled = False
        self._last_write_at = self._loop.time()
        paho.loop_write()
        found = paho.socket()
        if found is not None and paho.want_write():
            self._loop.add_writer(found.fileno(), self._write, paho)

    # --- incoming -----------------------------------------------------------------------------------------------------

    def _on_message(self, _client: PahoClient, _userdata: object, message: MQTTMessage) -> None:
        """Pass a message on in a later turn: a handler's bug then is the loop's to report, not a lost connection."""
        loop = asyncio.get_running_loop()
        topic, payload = message.topic, bytes(message.payload)
        for handler in self._matcher.iter_match(topic):
            loop.call_soon(handler, topic, payload)

    def _remove_handler(self, topic_filter: str) -> None:
        if self._handlers.pop(topic_filter, None) is not None:
            del self._matcher[topic_filter]


class _OutgoingMessages:
    """What was handed to paho and is not out yet: for ordinary messages on the socket, for retained ones confirmed.

    Two lines, because a confirmation comes later than the ordinary messages behind it.
    """

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self.clear()

    def clear(self) -> None:
        """Start over with a new connection."""
        self._lines: tuple[deque[tuple[MQTTMessageInfo, int]], ...] = (deque(), deque())
        self._messages = 0
        self._bytes = 0

    def has_capacity(self, size: int) -> bool:
        """Return whether one more message fits; one alone always does."""
        self._discard_published()
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def add(self, info: MQTTMessageInfo, size: int, retain: bool) -> None:
        """Count a message that was handed over."""
        self._lines[retain].append((info, size))
        self._messages += 1
        self._bytes += size

    def _discard_published(self) -> None:
        for line in self._lines:
            while line and line[0][0].is_published():
                self._bytes -= line.popleft()[1]
                self._messages -= 1


def _report_unexpected_error(task: asyncio.Task[None]) -> None:
    """Say at once that the connection is no longer kept up; closing raises it as well, but may be days away."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": f"bug in {task.get_name()}", "exception": error})


def paho_of(client: aiomqtt.Client) -> PahoClient:
    """Return the paho client inside; private there, so aiomqtt is pinned below 3 and a test watches over it."""
    return client._client  # noqa: SLF001


async def _connect(client: aiomqtt.Client) -> None:
    await client.__aenter__()


async def _wait_until_lost(client: aiomqtt.Client) -> None:
    """Wait for the loss, which ends aiomqtt's iterator with MqttError. No message comes this way: see `_new_client`."""
    async for _ in client.messages:
        pass


async def _subscribe(client: aiomqtt.Client, filters: list[str], qos: int) -> None:
    codes: Sequence[Any] = await client.subscribe([(name, qos) for name in filters], timeout=SUBSCRIBE_TIMEOUT_SECONDS)
    rejected = [name for name, code in zip(filters, codes, strict=True) if code.is_failure]
    if rejected:
        raise TransportError(f"the broker refuses the subscription to {', '.join(rejected)}: look at its access rules")


async def _close_socket(client: aiomqtt.Client) -> None:
    """Give the socket back on every path; aiomqtt leaves it open when the broker does not answer."""
    paho = paho_of(client)
    if paho.socket() is not None:
        paho._sock_close()  # noqa: SLF001
    # What aiomqtt scheduled from the connecting thread runs in the next turn, and removes itself in the one after.
    await asyncio.sleep(0)
    misc = client._misc_task  # noqa: SLF001
    if misc is not None:
        misc.cancel()
        await asyncio.wait({misc})
