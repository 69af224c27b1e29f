"""The part of an MQTT broker that plain devices rely on, in memory: persistent sessions, QoS 1, retained messages.

As mosquitto does it: a session outlives its connections and the broker's outages; whatever matches its filters waits
for it; at most ``window`` deliveries are under way, and those without an acknowledgement come again, first and in
order, on the next connection. A second connection of the same client id ends the first. Deliveries take
``delay_seconds``, through the loop's ``call_later``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from paho.mqtt.client import topic_matches_sub


@dataclass(frozen=True, slots=True)
class Published:
    """What waits for a session."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(slots=True)
class _PersistentSession:
    """One session as the broker keeps it."""

    filters: set[str] = field(default_factory=set)
    waiting: deque[Published] = field(default_factory=deque)
    link: _Link | None = None


class FakeDeviceBroker:
    """Takes what devices publish and keeps it for sessions."""

    def __init__(self, *, window: int = 1000, delay_seconds: float = 0.001, reconnect_seconds: float = 0.2) -> None:
        self.running = True
        self.window = window
        self.delay_seconds = delay_seconds
        self.reconnect_seconds = reconnect_seconds
        self._sessions: dict[str, _PersistentSession] = {}
        self._retained: dict[str, bytes] = {}

    def session(self, client_id: str, handler: Callable[[FakeDelivery], None]) -> FakeDeviceSession:
        """Return one side of a session, not yet entered."""
        return FakeDeviceSession(self, client_id, handler)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Do what a device does at QoS 1; on return it has its PUBACK. Returns whether a session keeps it."""
        assert self.running, "no PUBACK from a broker that is away"
        if retain:
            self._retained[topic] = payload
        keeping = [
            broker_session
            for broker_session in self._sessions.values()
            if any(topic_matches_sub(name, topic) for name in broker_session.filters)
        ]
        for broker_session in keeping:
            self._enqueue(broker_session, Published(topic, payload, retained=False))
        return bool(keeping)

    def filters(self, client_id: str) -> set[str]:
        """Return what a session is subscribed to."""
        return self._sessions[client_id].filters

    def waiting(self, client_id: str) -> int:
        """Return how many messages wait for a session, those under way included."""
        broker_session = self._sessions[client_id]
        return len(broker_session.waiting) + (
            len(broker_session.link.under_way) if broker_session.link is not None else 0
        )

    def stop(self) -> None:
        """Go away; sessions stay on disk."""
        self.running = False
        for broker_session in self._sessions.values():
            self._end(broker_session)

    def start(self) -> None:
        """Come back."""
        self.running = True

    def drop(self, client_id: str) -> None:
        """End a connection."""
        self._end(self._sessions[client_id])

    # --- for the sessions ---------------------------------------------------------------------------------------------

    def connect(self, session: FakeDeviceSession) -> _Link | None:
        """Return a connection, or None while the broker is away."""
        if not self.running:
            return None
        broker_session = self._sessions.setdefault(session.client_id, _PersistentSession())
        self._end(broker_session)
        broker_session.link = _Link(self, broker_session, session)
        return broker_session.link

    def subscribe(self, broker_session: _PersistentSession, topic_filter: str) -> None:
        """Let a filter stand and send what is retained, whether or not it stood already."""
        broker_session.filters.add(topic_filter)
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
            broker_session.waiting.extendleft(reversed(link.under_way.values()))
            link.session.lost(link)


class _Link:
    """One connection of a session."""

    def __init__(
        self, broker: FakeDeviceBroker, broker_session: _PersistentSession, session: FakeDeviceSession
    ) -> None:
        self.session = session
        self.broker_session = broker_session
        self.under_way: dict[int, Published] = {}
        self._broker = broker
        self._next = 0
        self._due = 0.0

    def fill(self) -> None:
        """Deliver what the window has room for."""
        while self.broker_session.waiting and len(self.under_way) < self._broker.window:
            message = self.broker_session.waiting.popleft()
            self._next += 1
            self.under_way[self._next] = message
            delivery = FakeDelivery(self, self._next, message)
            loop = asyncio.get_running_loop()
            # Timers of one instant fire in no promised order.
            self._due = max(loop.time() + self._broker.delay_seconds, self._due + 1e-6)
            loop.call_at(self._due, self._arrive, delivery)

    def acknowledge(self, number: int) -> None:
        """Take a PUBACK; one that comes over an ended connection never arrives."""
        if self.broker_session.link is self and self.under_way.pop(number, None) is not None:
            self.fill()

    def _arrive(self, delivery: FakeDelivery) -> None:
        if self.broker_session.link is self:
            self.session.handler(delivery)


class FakeDelivery:
    """`controller.devices.intake.Delivery` on a FakeDeviceBroker."""

    def __init__(self, link: _Link, number: int, message: Published) -> None:
        self.topic = message.topic
        self.payload = message.payload
        self.retained = message.retained
        self._link = link
        self._number = number

    def acknowledge(self) -> None:
        """See `Delivery.acknowledge`."""
        self._link.acknowledge(self._number)


class FakeDeviceSession:
    """`controller.devices.intake.DeviceSession` on a FakeDeviceBroker."""

    def __init__(self, broker: FakeDeviceBroker, client_id: str, handler: Callable[[FakeDelivery], None]) -> None:
        self.client_id = client_id
        self.handler = handler
        self._broker = broker
        self._filters: set[str] = set()
        self._link: _Link | None = None
        self._connecting: asyncio.TimerHandle | None = None
        self._open = False
        self._connections = 0
        self._watchers: list[Callable[[bool], None]] = []

    @property
    def connected(self) -> bool:
        """See `DeviceSession.connected`."""
        return self._link is not None

    async def add_subscription(self, topic_filter: str) -> None:
        """See `DeviceSession.add_subscription`."""
        self._filters.add(topic_filter)
        await asyncio.sleep(self._broker.delay_seconds)
        if self._link is not None:
            self._broker.subscribe(self._link.broker_session, topic_filter)

    @property
    def connection(self) -> int:
        """See `DeviceSession.connection`."""
        return self._connections if self._link is not None else 0

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        """See `DeviceSession.on_connection`."""
        self._watchers.append(handler)

    async def remove_subscriptions(self, topic_filters: Sequence[str], connection: int) -> bool:
        """See `DeviceSession.remove_subscriptions`."""
        link = self._link
        if link is None or connection != self._connections:
            return False
        await asyncio.sleep(self._broker.delay_seconds)
        # What was sent on a connection arrives if that still stands at the broker, whatever the sender knows of it.
        if link.broker_session.link is not link:
            return False
        link.broker_session.filters.difference_update(topic_filters)
        self._filters.difference_update(topic_filters)
        return True

    def publish_sentinel(self, topic: str, payload: bytes) -> None:
        """See `DeviceSession.mark`."""
        if self._link is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(self._broker.delay_seconds, self._mark, self._link, topic, payload)

    def _mark(self, link: _Link, topic: str, payload: bytes) -> None:
        if link.broker_session.link is link:
            self._broker.publish(topic, payload)

    async def __aenter__(self) -> Self:
        """See `DeviceSession.__aenter__`."""
        self._open = True
        self._connecting = asyncio.get_running_loop().call_later(self._broker.delay_seconds, self._connect)
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `DeviceSession.__aexit__`."""
        self._open = False
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._broker.drop(self.client_id)

    def lost(self, link: _Link) -> None:
        """Learn that a connection has ended; come back if that was not our own doing."""
        if self._link is link:
            self._link = None
            self._notify_connection(connected=False)
            if self._open:
                self._reconnect()

    def _reconnect(self) -> None:
        loop = asyncio.get_running_loop()
        self._connecting = loop.call_later(self._broker.reconnect_seconds, self._connect)

    def _connect(self) -> None:
        self._link = self._broker.connect(self)
        if self._link is None:
            self._reconnect()
            return
        for topic_filter in sorted(self._filters):
            self._broker.subscribe(self._link.broker_session, topic_filter)
        self._link.fill()
        self._connections += 1
        self._notify_connection(connected=True)

    def _notify_connection(self, *, connected: bool) -> None:
        for watcher in self._watchers:
            watcher(connected)
