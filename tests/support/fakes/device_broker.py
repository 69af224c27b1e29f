"""The features of an MQTT broker that MQTT devices use, in memory: persistent sessions, QoS 1, retained messages.

It behaves like mosquitto. A session survives its connections and the broker's outages, unless its client ends it, and messages that match its
filters wait for it. At most ``window`` deliveries are in flight; unacknowledged ones are delivered again, first and in
order, on the next connection. A second connection of the same client id ends the first. Deliveries take
``delay_seconds``, through the loop's ``call_later``. It speaks MQTT 5, so a session gets no copies of retained
messages; without ``mqtt5`` it gets them with each subscription.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from paho.mqtt.client import topic_matches_sub

from headgate.model.headers import Headers
from headgate.transport.mqtt_packets import ArrivedMessage

RECONNECT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Published:
    """A message that waits for a session."""

    topic: str
    payload: bytes
    retained: bool
    response_topic: str | None = None
    correlation_data: bytes | None = None
    headers: Headers = ()


@dataclass(slots=True)
class _PersistentSession:
    filters: set[str] = field(default_factory=set)
    waiting: deque[Published] = field(default_factory=deque)
    link: _Link | None = None


class FakeDeviceBroker:
    """Stores messages of devices for sessions."""

    def __init__(self, *, window: int = 1000, delay_seconds: float = 0.001) -> None:
        self.running = self.mqtt5 = True
        self.window = window
        self.delay_seconds = delay_seconds
        self._sessions: dict[str, _PersistentSession] = {}
        self._retained: dict[str, bytes] = {}

    def session(self, client_id: str, handler: Callable[[ArrivedMessage], None], _: object = None) -> FakeDeviceSession:
        """Return the client side of a session, not yet entered."""
        return FakeDeviceSession(self, client_id, handler)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        response: tuple[str, bytes] | None = None,
        headers: Headers = (),
    ) -> bool:
        """Publish as a device at QoS 1; the return is the PUBACK. Returns whether a session stores the message.

        ``response``: response topic and correlation data. ``headers``: content type and user properties.
        """
        assert self.running, "a stopped broker sends no PUBACK"
        if retain:
            self._retained[topic] = payload
        matching = [
            broker_session
            for broker_session in self._sessions.values()
            if any(topic_matches_sub(name, topic) for name in broker_session.filters)
        ]
        for broker_session in matching:
            asked = response if response is not None and self.mqtt5 else (None, None)
            self._enqueue(broker_session, Published(topic, payload, False, *asked, headers if self.mqtt5 else ()))
        return bool(matching)

    def _session_of(self, client_id: str) -> _PersistentSession:
        found = (each for name, each in self._sessions.items() if name.startswith(client_id))
        return next(found, _PersistentSession())

    def filters(self, client_id: str) -> set[str]:
        """Return the filters of the session whose id begins with ``client_id``; none if it does not exist."""
        return self._session_of(client_id).filters

    def waiting(self, client_id: str) -> int:
        """Return how many messages wait for such a session, including those in flight; 0 if it does not exist."""
        broker_session = self._session_of(client_id)
        return len(broker_session.waiting) + (
            len(broker_session.link.in_flight) if broker_session.link is not None else 0
        )

    def stop(self) -> None:
        """Stop; sessions are kept."""
        self.running = False
        for broker_session in self._sessions.values():
            self._end(broker_session)

    def start(self) -> None:
        """Start again."""
        self.running = True

    def drop(self, client_id: str) -> None:
        """End a connection, if there is one."""
        self._end(self._session_of(client_id))

    def sessions(self) -> set[str]:
        return set(self._sessions)

    # For the sessions

    def connect(self, session: FakeDeviceSession) -> _Link | None:
        """Return a connection, or None while the broker is stopped."""
        if not self.running:
            return None
        broker_session = self._sessions.setdefault(session.client_id, _PersistentSession())
        self._end(broker_session)
        broker_session.link = _Link(self, broker_session, session)
        return broker_session.link

    def remove(self, client_id: str, link: _Link) -> None:
        """Handle a DISCONNECT that ends the session; one on an ended connection is lost."""
        if link.broker_session.link is link and self.mqtt5:
            link.broker_session.link = None
            del self._sessions[client_id]

    def subscribe(self, broker_session: _PersistentSession, topic_filter: str) -> None:
        """Add a filter; without MQTT 5 deliver retained messages, even if the filter exists."""
        broker_session.filters.add(topic_filter)
        if self.mqtt5:
            return
        for topic, payload in sorted(self._retained.items()):
            if topic_matches_sub(topic_filter, topic):
                self._enqueue(broker_session, Published(topic, payload, retained=True))

    def _enqueue(self, broker_session: _PersistentSession, message: Published) -> None:
        broker_session.waiting.append(message)
        if broker_session.link is not None:
            broker_session.link.fill()

    def _end(self, broker_session: _PersistentSession) -> None:
        link, broker_session.link = broker_session.link, None
        if link is not None:
            broker_session.waiting.extendleft(reversed(link.in_flight.values()))
            link.session.lost(link)


class _Link:
    def __init__(
        self, broker: FakeDeviceBroker, broker_session: _PersistentSession, session: FakeDeviceSession
    ) -> None:
        self.session = session
        self.broker_session = broker_session
        self.in_flight: dict[int, Published] = {}
        self._broker = broker
        self._next = 0
        self._due = 0.0

    def fill(self) -> None:
        """Deliver messages up to the window."""
        while self.broker_session.waiting and len(self.in_flight) < self._broker.window:
            message = self.broker_session.waiting.popleft()
            self._next += 1
            self.in_flight[self._next] = message
            delivery = ArrivedMessage(
                *(message.topic, message.payload, 1, message.retained, self._next),
                *(message.response_topic, message.correlation_data, message.headers),
                partial(self.acknowledge, self._next),
            )
            loop = asyncio.get_running_loop()
            # The loop does not guarantee the order of timers with the same time.
            self._due = max(loop.time() + self._broker.delay_seconds, self._due + 1e-6)
            loop.call_at(self._due, self._arrive, delivery)

    def acknowledge(self, number: int) -> None:
        """Handle a PUBACK; one on an ended connection is lost."""
        if self.broker_session.link is self and self.in_flight.pop(number, None) is not None:
            self.fill()

    def _arrive(self, delivery: ArrivedMessage) -> None:
        if self.broker_session.link is self:
            self.session.handler(delivery)


class FakeDeviceSession:
    """`controller.devices.intake.DeviceSession` on a FakeDeviceBroker."""

    def __init__(self, broker: FakeDeviceBroker, client_id: str, handler: Callable[[ArrivedMessage], None]) -> None:
        self.client_id = client_id
        self.handler = handler
        self._broker = broker
        self._link: _Link | None = None
        self._ends_at: _Link | None = None
        """The connection whose end removes the session."""
        self._connecting: asyncio.TimerHandle | None = None
        self._open = False
        self._connections = 0
        self._watchers: list[Callable[[bool], None]] = []

    @property
    def unreachable_reason(self) -> str | None:
        return "the broker is stopped" if self._link is None else None

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def connection(self) -> int:
        return self._connections if self._link is not None else 0

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        self._watchers.append(handler)

    async def add_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        link = await self._packet_arrives(connection)
        if link is None:
            return False
        for topic_filter in topic_filters:
            self._broker.subscribe(link.broker_session, topic_filter)
        return True

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        link = await self._packet_arrives(connection)
        if link is None:
            return False
        link.broker_session.filters.difference_update(topic_filters)
        return True

    async def _packet_arrives(self, connection: int) -> _Link | None:
        """Return the link once a packet on ``connection`` is at the broker; None if that connection has ended."""
        link = self._link
        if link is None or connection != self._connections:
            return None
        await asyncio.sleep(self._broker.delay_seconds)
        # It arrives if its connection still exists at the broker, whatever the sender knows.
        return link if link.broker_session.link is link else None

    def end_at_close(self, connection: int) -> None:
        self._ends_at = self._link if connection == self._connections else None

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        if self._link is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(self._broker.delay_seconds, self._publish_sentinel, self._link, topic, payload)

    def _publish_sentinel(self, link: _Link, topic: str, payload: bytes) -> None:
        if link.broker_session.link is link:
            self._broker.publish(topic, payload)

    async def __aenter__(self) -> Self:
        self._open = True
        self._connecting = asyncio.get_running_loop().call_later(self._broker.delay_seconds, self._connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None and self._link is self._ends_at:
            self._broker.remove(self.client_id, self._link)
        elif self._link is not None:
            self._broker.drop(self.client_id)

    def lost(self, link: _Link) -> None:
        """Handle the end of a connection; reconnect while the session is open."""
        if self._link is link:
            self._link = None
            self._notify_connection(connected=False)
            if self._open:
                self._reconnect()

    def _reconnect(self) -> None:
        loop = asyncio.get_running_loop()
        self._connecting = loop.call_later(RECONNECT_SECONDS, self._connect)

    def _connect(self) -> None:
        self._link = self._broker.connect(self)
        if self._link is None:
            self._reconnect()
            return
        self._link.fill()
        self._connections += 1
        self._notify_connection(connected=True)

    def _notify_connection(self, *, connected: bool) -> None:
        for watcher in self._watchers:
            watcher(connected)
