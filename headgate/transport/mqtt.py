"""`Transport` over a real MQTT broker, with aiomqtt.

* After a loss it reconnects with growing pauses. It logs the begin and the end of an outage.
* If the broker accepts connections and soon ends them, the pauses grow further: another program
  probably connects with the same client id, and each of the two ends the connection of the other.
  MQTT 3.1.1 gives no reason, and mosquitto 2.0.11 does not give one in MQTT 5 either.
* Nothing is stored while the broker is unreachable, nothing is sent twice, and delivery is not
  promised. Ordinary messages go at QoS 0, because a PUBACK does not prove delivery either.
* It speaks MQTT 5, and 3.1.1 to a broker that refuses 5. With MQTT 5 the broker sends copies of retained
  messages only to filters that expect them: otherwise a client could fill the queue of a subscriber with
  what it had retained before, and the broker would drop what others publish meanwhile.
* Retained messages go at QoS 1: no client would request them again if a busy broker dropped them. If a
  broker with MQTT 5 refuses one, the connection ends: it is of no use to a leader.
  They do not survive a reconnection: publish them again when a handler receives ``True``.
* Outgoing messages are bounded in bytes and number (`OutgoingMessages`). Incoming ones are not queued: the loop reads
  one packet per turn, and the windows of the protocol above bound the rest at the broker.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Self

import aiomqtt  # noqa: TID251 - this and headgate.transport.mqtt_persistent_session are the modules that speak to the broker
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from headgate.backoff import BackoffSchedule
from headgate.errors import ConfigError, TransportError
from headgate.log.event_log import get_logger
from headgate.process.background import end_tasks
from headgate.transport import mqtt_client, mqtt_connection
from headgate.transport.broker_tls import BrokerTls, TlsSockets
from headgate.transport.connection_options import RECONNECT_BACKOFF, EarlyLosses, MqttTiming, pause_after_attempt
from headgate.transport.mqtt_packets import ArrivedMessage, max_payload_bytes
from headgate.transport.port import MAX_PAYLOAD_BYTES, BrokerProperties, MessageHandler

TAKEN_OVER_AFTER_LOSSES: Final = 3
"""Early losses in a row that are reported as a client id used twice. A restart of the broker causes one."""
MAX_OUTGOING_BYTES: Final = 64 * 1024 * 1024
MAX_OUTGOING_MESSAGES: Final = 20_000
FILTERS_PER_PACKET: Final = 100

PAHO_LOGGER: Final = logging.getLogger("headgate.transport.paho")
PAHO_LOGGER.setLevel(logging.CRITICAL)
"""paho reports the error of each attempt; this module reports the begin and the end of an outage, and the reason."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Login:
    """What each attempt to connect begins with."""

    host: str
    port: int
    client_id: str
    username: str | None
    password: Callable[[], str | None]
    tls: BrokerTls | None
    will: aiomqtt.Will | None


@dataclass(slots=True)
class Attempt:
    """A client that connects, and then is connected."""

    client: aiomqtt.Client
    writer: mqtt_connection.PacketWriter
    sockets: TlsSockets | None = None
    accepted: bool = False
    connected: bool = False
    """All filters are subscribed."""


class MqttTransport:
    """One connection to an MQTT broker; see `headgate.transport.port.Transport`.

    ``will`` is (topic, payload, retain): the broker publishes it if this client disappears without closing.

    ``password`` may be a function, which is called in a thread before each connection.

    ``secret_suffix``: the rest of the client id, which only the broker sees, and no log.

    ``on_taken_over`` is called when the broker has ended several connections soon after it accepted them.
    """

    clean_session: ClassVar[bool] = True
    """Whether the broker discards subscriptions and waiting messages when the connection ends."""
    qos: ClassVar[int] = 0
    logs_outages: ClassVar[bool] = True
    """False: only refusals are logged."""

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        secret_suffix: str = "",
        will: tuple[str, bytes, bool] | None = None,
        username: str | None = None,
        password: str | Callable[[], str | None] | None = None,
        tls: BrokerTls | None = None,
        rng: random.Random | None = None,
        timing: MqttTiming | None = None,
        max_outgoing_bytes: int = MAX_OUTGOING_BYTES,
        max_outgoing_messages: int = MAX_OUTGOING_MESSAGES,
        on_taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        self.unreachable_reason: str | None = None
        self._login = _Login(
            host,
            port,
            client_id + secret_suffix,
            username,
            password if callable(password) else lambda: password,
            tls,
            aiomqtt.Will(will[0], will[1], qos=1, retain=will[2]) if will else None,
        )
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._timing = timing or MqttTiming()
        self._on_taken_over = on_taken_over
        self.router = mqtt_connection.MessageRouter()
        self.broker: BrokerProperties | None = None
        """What the broker says of itself. None: it speaks no MQTT 5, or was not reached yet."""
        self._watchers: list[Callable[[bool], None]] = []
        self._refusal_handlers: list[Callable[[str], None]] = []
        self._outgoing_limits = max_outgoing_bytes, max_outgoing_messages
        self._attempt: Attempt | None = None
        self._closing = asyncio.Event()
        self._connection_lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = log.bind(broker=f"{host}:{port}", client_id=client_id)

    @property
    def connected(self) -> bool:
        return self._attempt is not None and self._attempt.connected

    @property
    def _client(self) -> aiomqtt.Client | None:
        """The client that the broker has accepted."""
        return self._attempt.client if self._attempt is not None and self._attempt.accepted else None

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        self._watchers.append(handler)

    def on_refusal(self, handler: Callable[[str], None]) -> None:
        self._refusal_handlers.append(handler)

    async def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, retained: bool = False, optional: bool = False
    ) -> None:
        """See `Transport.subscribe`. A filter has one handler, the last one passed.

        Raises TransportError: the broker rejects this filter.
        """
        self.router.add(topic_filter, handler, retained=retained)
        if (client := self._client) is not None:
            # Otherwise, and after a loss, the next connection subscribes to all filters.
            try:
                await self._confirmed(client, self._request_subscriptions(client, [topic_filter]))
            except TransportError:
                self.router.remove(topic_filter)  # The next connection would end with it.
                raise
        if optional:
            self.router.optional.add(topic_filter)

    async def unsubscribe(self, topic_filter: str) -> None:
        self.router.remove(topic_filter)
        if (client := self._client) is not None:
            await self._confirmed(client, self._request_unsubscription(client, [topic_filter]))

    def max_payload_bytes(self, topic: str) -> int:
        limit = None if self.broker is None else self.broker.maximum_packet_bytes
        return MAX_PAYLOAD_BYTES if limit is None else max_payload_bytes(topic, limit)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 0, correlation_data: bytes | None = None
    ) -> bool:
        if len(payload) > (limit_bytes := self.max_payload_bytes(topic)):
            self._log.error("message.too_large", topic=topic, size_bytes=len(payload), limit_bytes=limit_bytes)
            return False
        attempt = self._attempt
        if attempt is None or not attempt.connected:
            return False
        return attempt.writer.publish(
            mqtt_client.paho_of(attempt.client),
            topic,
            payload,
            retain=retain,
            qos=max(qos, retain),
            mqtt5=self.broker is not None,
            tag=correlation_data,
        )

    def is_unheard(self, topic: str) -> bool:
        return self._attempt is not None and topic in self._attempt.writer.unheard

    async def __aenter__(self) -> Self:
        self._closing.clear()
        self._task = asyncio.create_task(self._maintain_connection(), name=f"mqtt-{self._login.client_id}")
        self._task.add_done_callback(_report_unexpected_error)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send waiting messages, disconnect and close; takes a few seconds at most."""
        self._closing.set()
        self._connection_lost.set()
        if self._attempt is not None:
            mqtt_client.end_wait_for_answer(self._attempt.client, "the connection is not wanted any more")
            if self._attempt.sockets is not None:
                self._attempt.sockets.abort()
        if self._task is not None:
            await self._task
            self._task = None

    # The task that owns the connection

    async def _maintain_connection(self) -> None:
        loop = asyncio.get_running_loop()
        outages = BackoffSchedule(RECONNECT_BACKOFF, self._rng.random)
        early_losses = EarlyLosses(self._rng.random)
        outage_logged = not self.logs_outages
        refusals: set[str] = set()
        mqtt5 = True
        while not self._closing.is_set():
            client = self._new_client(mqtt5=mqtt5)
            attempt = self._new_attempt(client)
            began_at, accepted_at, ended_by_broker = loop.time(), None, False
            try:
                await self._prepare(attempt)
                await _connect(client)
                accepted_at = loop.time()
                self._attach(attempt)
                await self._subscribe_all(client)
                mqtt_client.raise_if_lost(client)
                outage_logged = not self.logs_outages
                refusals.clear()
                self._report_connection(attempt, mqtt5=mqtt5)
                if not self._closing.is_set():
                    await self._wait_until_lost_or_closing(client)
                await self._disconnect(client)
            except (aiomqtt.MqttError, TransportError, ConfigError) as error:
                if accepted_at is None and self._closing.is_set():
                    continue
                if mqtt5 and mqtt_connection.refuses_version(error):
                    mqtt5 = False
                    continue
                mqtt5 = True  # The next broker at this address may be a newer one.
                ended_by_broker = not mqtt_client.paho_of(client).is_connected()
                self.unreachable_reason, cause = mqtt_connection.loss_reason(
                    error, self._login.tls, attempt.sockets, self._login.username
                )
                # A refusal that follows another loss is logged too: pauses do not end it, an operator does.
                if not outage_logged or (
                    cause is not mqtt_connection.Cause.OUTAGE and self.unreachable_reason not in refusals
                ):
                    self._log.warning("broker.unreachable", reason=self.unreachable_reason)
                    outage_logged = True
                    refusals.add(self.unreachable_reason)
                if cause is mqtt_connection.Cause.REFUSAL:
                    for handler in self._refusal_handlers:
                        handler(self.unreachable_reason)
            finally:
                self._detach()
                await mqtt_client.close_socket(client)
            if accepted_at is None or not ended_by_broker:
                pause_seconds = pause_after_attempt(outages.next_seconds(), loop.time() - began_at)
            else:
                outages.reset()
                pause_seconds = early_losses.pause_after(loop.time() - accepted_at)
                if early_losses.in_a_row >= TAKEN_OVER_AFTER_LOSSES:
                    self._report_taken_over(early_losses.in_a_row)
            await self._wait_for_closing(pause_seconds)

    async def _wait_for_closing(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _report_connection(self, attempt: Attempt, *, mqtt5: bool) -> None:
        if self.logs_outages:
            self._log.info("broker.connected", protocol="MQTT 5" if mqtt5 else "MQTT 3.1.1")
        self.unreachable_reason = None
        attempt.connected = True
        self._notify_watchers(connected=True)

    def _report_taken_over(self, losses: int) -> None:
        self._on_taken_over()
        if losses == TAKEN_OVER_AFTER_LOSSES:
            self._log.error(
                "mqtt.session_taken_over",
                reason=f"the broker accepted {losses} connections and soon ended each: "
                "probably another program uses this client id",
                remedy="give each program a client id of its own",
            )

    def _new_client(self, *, mqtt5: bool) -> aiomqtt.Client:
        session: dict[str, Any] = {"clean_session": self.clean_session}
        if mqtt5:
            session = {"clean_start": self.clean_session, "properties": self.session_properties()}
        client = aiomqtt.Client(
            self._login.host,
            self._login.port,
            identifier=self._login.client_id,
            protocol=aiomqtt.ProtocolVersion.V5 if mqtt5 else aiomqtt.ProtocolVersion.V311,
            **session,
            will=self._login.will,
            keepalive=self._timing.keepalive_seconds,
            timeout=self._timing.connect_timeout_seconds,
            # 0: no limit. paho would queue QoS 1 messages beyond it, and QoS 0 messages would overtake them.
            max_inflight_messages=0,
            logger=PAHO_LOGGER,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )
        paho = mqtt_client.paho_of(client)
        mqtt_client.mark_errors_as_retrieved(client)
        mqtt_client.report_early_end(client)
        mqtt_client.on_answered_message(client, partial(self._on_answered_message, client))
        if mqtt5:
            mqtt_client.on_acceptance(client, self._on_acceptance)
        else:
            self.broker = None
        mqtt_client.on_arrival(client, self._on_message, mqtt5=mqtt5)
        paho.connect_timeout = self._timing.connect_timeout_seconds
        return client

    def _new_attempt(self, client: aiomqtt.Client) -> Attempt:
        writer = mqtt_connection.PacketWriter(mqtt_connection.OutgoingMessages(*self._outgoing_limits), self._timing)
        mqtt_client.paho_of(client).on_socket_register_write = writer.on_write_pending
        return Attempt(client, writer)

    def _on_answered_message(self, client: aiomqtt.Client, packet_id: int, reason: ReasonCode) -> None:
        """End a connection that accepts no retained messages: no client would find a leader behind it."""
        if self._attempt is not None:
            self._attempt.writer.answered(packet_id, reason)
        if not reason.is_failure:
            return
        if self._refusal_handlers:  # Only a client has some, and it retains nothing.
            for handler in self._refusal_handlers:
                text = "Check its access rules, and that its certificate, if it has one, is of its user"
                handler(f"the broker refuses the requests of this client: {reason}. {text}")
            return
        self.unreachable_reason = f"the broker refuses a retained message: {reason}. Check its access rules"
        self._signal_connection_lost(client)

    def session_properties(self) -> Properties | None:
        """Return what a connection with MQTT 5 asks for; None: the session ends with it."""
        return None

    def _on_acceptance(self, properties: Properties) -> None:
        self.broker = mqtt_connection.broker_properties(properties)

    async def _prepare(self, attempt: Attempt) -> None:
        """Read password and certificates, so that each connection uses the newest ones. Raises ConfigError."""
        login = self._login

        def read() -> tuple[str | None, TlsSockets | None]:
            return login.password(), None if login.tls is None else TlsSockets(login.tls)

        password, attempt.sockets = await asyncio.to_thread(read)
        if login.username is not None:
            mqtt_client.paho_of(attempt.client).username_pw_set(login.username, password)
        if attempt.sockets is not None:
            # It only calls `wrap_socket`, and reads `check_hostname`.
            mqtt_client.paho_of(attempt.client).tls_set_context(attempt.sockets)  # type: ignore[arg-type]
        self._attempt = attempt

    def _attach(self, attempt: Attempt) -> None:
        if self._timing.ping_seconds is not None:
            mqtt_client.ping_after(attempt.client, self._timing.ping_seconds)
        mqtt_client.mark_errors_as_retrieved(attempt.client)  # aiomqtt may have replaced the futures while it connected
        attempt.accepted = True
        self._connection_lost.clear()

    def _detach(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.connected:
            self._notify_watchers(connected=False)

    def _notify_watchers(self, *, connected: bool) -> None:
        for watcher in self._watchers:
            watcher(connected)

    def _signal_connection_lost(self, client: aiomqtt.Client) -> None:
        if client is self._client:
            self._connection_lost.set()

    async def _subscribe_all(self, client: aiomqtt.Client) -> None:
        filters = self.router.filters
        for first in range(0, len(filters), FILTERS_PER_PACKET):
            await self._request_subscriptions(client, filters[first : first + FILTERS_PER_PACKET])

    async def _request_subscriptions(self, client: aiomqtt.Client, filters: list[str]) -> None:
        options: list[Any] = [(name, self.qos) for name in filters]
        if self.broker is not None:
            options = [(name, self._subscribe_options(name)) for name in filters]
        request = client.subscribe(options, timeout=self._timing.subscribe_timeout_seconds)
        codes: Sequence[Any] = await mqtt_client.answer_unless_lost(client, request)
        if len(codes) != len(filters):
            raise TransportError(f"the broker answers {len(codes)} of {len(filters)} subscriptions")
        rejected = [
            name
            for name, code in zip(filters, codes, strict=True)
            if code.is_failure and name not in self.router.optional
        ]
        if rejected:
            raise TransportError(
                f"the broker rejects the subscription to {', '.join(rejected)}: check its access rules"
            )

    async def _request_unsubscription(self, client: aiomqtt.Client, filters: list[str]) -> None:
        request = client.unsubscribe(filters, timeout=self._timing.subscribe_timeout_seconds)
        await mqtt_client.answer_unless_lost(client, request)

    async def _confirmed(self, client: aiomqtt.Client, request: Coroutine[Any, Any, None]) -> bool:
        """Return whether ``request`` was answered on the connection of ``client``. Raises TransportError: refused."""
        try:
            await request
        except aiomqtt.MqttError:
            self._signal_connection_lost(client)
            return False
        return client is self._client

    def _subscribe_options(self, topic_filter: str) -> SubscribeOptions:
        retained = self.router.expects_retained(topic_filter)
        return SubscribeOptions(
            self.qos,
            retainHandling=SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE
            if retained
            else SubscribeOptions.RETAIN_DO_NOT_SEND,
        )

    async def _wait_until_lost_or_closing(self, client: aiomqtt.Client) -> None:
        """Return when closing; raises MqttError or TransportError once the connection is lost."""
        lost = asyncio.create_task(mqtt_client.wait_until_lost(client))
        interrupted = asyncio.create_task(self._connection_lost.wait())
        try:
            await asyncio.wait({lost, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await lost
        finally:
            await end_tasks(lost, interrupted)
        if not self._closing.is_set():
            raise TransportError(self.unreachable_reason or "the broker did not confirm a subscription in time")

    async def _disconnect(self, client: aiomqtt.Client) -> None:
        """Close after the broker has received all published messages.

        A broker handles the packets of a client in order: its answer to UNSUBSCRIBE proves that it
        has received all packets before. Closing without it can lose them: closing a socket with
        unread input resets the connection, and the peer drops what it has not read.
        """
        # A persistent session must keep its subscriptions, so it unsubscribes from a filter that does not exist.
        filters = (self.router.filters if self.clean_session else []) or ["nothing"]
        await client.unsubscribe(filters[:FILTERS_PER_PACKET], timeout=self._timing.close_timeout_seconds)
        client.timeout = self._timing.close_timeout_seconds
        await client.__aexit__(None, None, None)

    # Incoming messages

    def _on_message(self, _paho: PahoClient, message: ArrivedMessage) -> None:
        """Call the handlers. The loop reports an error in one, and the connection stays open."""
        ignored = self.router.ignored_retained
        for handler in tuple(self.router.handlers_of(message.topic, retained=message.retained)):
            try:
                handler(message.topic, message.payload)
            except Exception as error:  # noqa: BLE001 - a bug
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"bug in {handler!r}", "exception": error}
                )
        if not ignored and self.router.ignored_retained:
            self._log.warning("message.retained_ignored", topic=message.topic, remedy="clear it at the broker")


def _report_unexpected_error(task: asyncio.Task[None]) -> None:
    """Report immediately that the connection is no longer maintained; closing raises the error too, but much later."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": f"bug in {task.get_name()}", "exception": error})


async def _connect(client: aiomqtt.Client) -> None:
    try:
        await client.__aenter__()
    except UnicodeError as error:
        raise TransportError(f"this is not the name of a host: {error}") from None
