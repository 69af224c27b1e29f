"""An MQTT broker in memory, with configurable faults.

`FakeBroker.transport` returns `headgate.transport.port.Transport`s. All deliveries use the loop's ``call_later`` and all
random numbers come from ``rng``, so a run with one seed in virtual time is reproducible.

It behaves like real brokers:

* Messages from a client reach the broker in order, and messages to a client arrive in order, unless `Faults.reorder`.
* Messages in flight when a connection ends are lost, in both directions.
* A connection that ends without DISCONNECT publishes its will. A second connection of the same client id ends the first,
  which publishes its will too.
* Retained messages survive everything, `stop` included, and are delivered again with each subscription that asks for
  them, as in MQTT 5. Without `mqtt5`, with each subscription.
* A packet above `max_packet_bytes` ends the connection of its sender. The clients know that limit while connected.
* A frozen client (`pause`) stays connected: its messages are queued and arrive when it continues.

Retained messages are never lost or duplicated: they use QoS 1, over a connection that either works or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from paho.mqtt.client import topic_matches_sub
from paho.mqtt.matcher import MQTTMatcher

from headgate.transport.mqtt_packets import max_payload_bytes
from headgate.transport.port import MAX_PAYLOAD_BYTES, MessageHandler


@dataclass(slots=True)
class Faults:
    """How messages are transferred, in each direction. It may be changed at any time."""

    delay_seconds: tuple[float, float] = (0.0005, 0.002)
    loss: float = 0.0
    """Probability that an ordinary message is lost, in each direction."""
    duplication: float = 0.0
    """Probability that it is duplicated, in each direction."""
    reorder: bool = False
    """Whether messages of one connection may overtake each other."""
    reconnect_seconds: tuple[float, float] = (0.05, 1.0)
    """Time until a client connects or tries again."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message at the broker; ``sender`` is a client id."""

    topic: str
    payload: bytes
    retain: bool
    sender: str
    correlation_data: bytes | None = None
    unheard: set[str] | None = None
    """What its sender knows of topics without a subscriber; None: it has not QoS 1 of MQTT 5."""


class FakeBroker:
    """The broker, and the network between it and its clients."""

    def __init__(self, rng: random.Random | None = None, faults: Faults | None = None, *, mqtt5: bool = True) -> None:
        self.rng = rng or random.Random(0)
        self.faults = faults or Faults()
        self.retained: dict[str, bytes] = {}
        self.running = True
        self.refusal: str | None = None
        """Why new connections are refused; None: they are accepted."""
        self.mqtt5 = mqtt5
        """Whether it speaks MQTT 5."""
        self.max_packet_bytes: int | None = None
        """The largest packet that it accepts, and says that it accepts; None: no limit."""
        self.spies: list[Callable[[Message], None]] = []
        """Called with every message that reaches the broker."""
        self.rewrite: Callable[[Message], Message | None] | None = None
        """Changes every message that reaches the broker, as a client or leader of another version would have sent it.
        None in its place: the message is lost."""
        self._links: dict[str, _Link] = {}
        self._subscribed: dict[str, list[_Link]] = {}
        """Topic → links, of topics that were published since the last change of a link or filter."""
        self._paused: set[str] = set()
        self._cut: set[str] = set()

    def transport(self, client_id: str, will: tuple[str, bytes, bool] | None = None) -> FakeTransport:
        """Return a transport, not yet entered; ``will`` is (topic, payload, retain)."""
        return FakeTransport(self, client_id, will)

    def connected(self) -> list[str]:
        return sorted(self._links)

    # Faults

    def drop(self, client_id: str) -> None:
        """End a client's connection: its will is published, and it reconnects."""
        if (link := self._links.get(client_id)) is not None:
            self._end(link, publish_will=True)

    def cut(self, client_id: str) -> None:
        """End a client's connection and prevent a new one until `heal`."""
        self._cut.add(client_id)
        self.drop(client_id)

    def heal(self, client_id: str) -> None:
        """Allow a client to connect again."""
        self._cut.discard(client_id)

    def pause(self, client_id: str) -> None:
        """Hold everything to and from a client, without ending its connection."""
        self._paused.add(client_id)

    def resume(self, client_id: str) -> None:
        """Continue a client: queued messages are transferred now, in order."""
        self._paused.discard(client_id)
        if (link := self._links.get(client_id)) is not None:
            link.release()

    def stop(self) -> None:
        """Kill the broker: all connections end without wills, and retained messages are kept."""
        self.running = False
        for link in list(self._links.values()):
            self._end(link, publish_will=False)

    def start(self) -> None:
        """Start the broker; clients reconnect one by one."""
        self.running = True

    # For the transports

    def is_paused(self, client_id: str) -> bool:
        return client_id in self._paused

    def admit(self, transport: FakeTransport) -> _Link | None:
        """Return a new connection; None if the broker is unreachable."""
        if (
            not self.running
            or self.refusal is not None
            or transport.client_id in self._cut
            or transport.client_id in self._paused
        ):
            return None
        self.drop(transport.client_id)
        link = _Link(self, transport)
        self._links[transport.client_id] = link
        self.subscriptions_changed()
        return link

    def release(self, link: _Link, *, publish_will: bool) -> None:
        """End a connection that its client closes."""
        if self._links.get(link.client_id) is link:
            self._end(link, publish_will=publish_will)

    def route(self, message: Message) -> None:
        """Route a message that has arrived."""
        size = len(message.payload) + len(message.topic)
        if self.max_packet_bytes is not None and size > self.max_packet_bytes:
            self.drop(message.sender)
            return
        if self.rewrite is not None:
            rewritten = self.rewrite(message)
            if rewritten is None:
                return
            message = rewritten
        for spy in self.spies:
            spy(message)
        if message.retain:
            if message.payload:
                self.retained[message.topic] = message.payload
            else:
                self.retained.pop(message.topic, None)
        links = self._subscribed_to(message.topic)
        if message.unheard is not None:
            (message.unheard.discard if links else message.unheard.add)(message.topic)
        for link in links:
            link.deliver(message.topic, message.payload, lossy=not message.retain)

    def subscriptions_changed(self) -> None:
        """Forget which links get which topics."""
        self._subscribed.clear()

    def _subscribed_to(self, topic: str) -> list[_Link]:
        """Return the links with a matching filter. Matching for each message would take a tenth of a simulation."""
        links = self._subscribed.get(topic)
        if links is None:
            links = [link for _, link in sorted(self._links.items()) if link.wants(topic)]
            self._subscribed[topic] = links
        return links

    def _end(self, link: _Link, *, publish_will: bool) -> None:
        del self._links[link.client_id]
        self.subscriptions_changed()
        link.end()
        will = link.transport.will
        if publish_will and will is not None:
            self.route(Message(*will, sender=link.client_id))


class _Link:
    """One connection: two directions, each in order. Messages in flight are lost when it ends."""

    def __init__(self, broker: FakeBroker, transport: FakeTransport) -> None:
        self.client_id = transport.client_id
        self.transport = transport
        self.open = True
        self._filters = MQTTMatcher()
        self._wanted: dict[str, bool] = {}
        """Topic → whether a filter matches, since the last change of a filter."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._due_up = self._due_down = 0.0
        self._paused_actions: list[Callable[[], None]] = []

    def add_filter(self, topic_filter: str) -> None:
        """Begin a subscription."""
        self._filters[topic_filter] = True
        self._filters_changed()

    def remove_filter(self, topic_filter: str) -> None:
        """End a subscription; without effect if it does not exist."""
        with contextlib.suppress(KeyError):
            del self._filters[topic_filter]
        self._filters_changed()

    def wants(self, topic: str) -> bool:
        """Return whether a filter matches. Clients come and go more often than one changes its filters."""
        wanted = self._wanted.get(topic)
        if wanted is None:
            wanted = self._wanted[topic] = any(self._filters.iter_match(topic))
        return wanted

    def submit(self, message: Message) -> None:
        """Transfer a message from the client to the broker."""
        for _ in range(self._copies(lossy=not message.retain)):
            self.up(lambda: self._broker.route(message))

    def deliver(self, topic: str, payload: bytes, *, lossy: bool, retained: bool = False) -> None:
        """Transfer a message from the broker to the client."""
        for _ in range(self._copies(lossy=lossy)):
            self.down(lambda: self.transport.receive(topic, payload, retained=retained))

    def up(self, act: Callable[[], None]) -> None:
        """Call ``act`` when a message sent now reaches the broker."""
        self._due_up = self._schedule(act, self._due_up)

    def down(self, act: Callable[[], None]) -> None:
        """Call ``act`` when a message sent now reaches the client."""
        self._due_down = self._schedule(act, self._due_down)

    def end(self) -> None:
        """Drop everything in flight and notify the client."""
        self.open = False
        self._paused_actions.clear()
        self.transport.lost(self)

    def release(self) -> None:
        """Transfer the messages that a pause queued."""
        queued, self._paused_actions = self._paused_actions, []
        for act in queued:
            self._loop.call_soon(self._arrive, act)

    def _filters_changed(self) -> None:
        self._wanted.clear()
        self._broker.subscriptions_changed()

    def _copies(self, *, lossy: bool) -> int:
        faults = self._broker.faults
        if lossy and faults.loss and self._broker.rng.random() < faults.loss:
            return 0
        return 2 if lossy and faults.duplication and self._broker.rng.random() < faults.duplication else 1

    def _schedule(self, act: Callable[[], None], not_before: float) -> float:
        faults = self._broker.faults
        due = self._loop.time() + self._broker.rng.uniform(*faults.delay_seconds)
        if not faults.reorder and due <= not_before:
            # The loop does not guarantee the order of timers with the same time.
            due = not_before + 1e-6
        self._loop.call_at(due, self._arrive, act)
        return max(due, not_before)

    def _arrive(self, act: Callable[[], None]) -> None:
        if not self.open:
            return
        if self._broker.is_paused(self.client_id):
            self._paused_actions.append(act)
        else:
            act()


class FakeTransport:
    """`headgate.transport.port.Transport` on a FakeBroker."""

    def __init__(self, broker: FakeBroker, client_id: str, will: tuple[str, bytes, bool] | None) -> None:
        self.client_id = client_id
        self.will = will
        self._broker = broker
        self._handlers: dict[str, tuple[MessageHandler, bool]] = {}
        self._matcher = MQTTMatcher()
        self._matched: dict[str, list[tuple[MessageHandler, bool]]] = {}
        """Topic → handlers, of topics that were received since the last change of a filter."""
        self._watchers: list[Callable[[bool], None]] = []
        self._refusal_handlers: list[Callable[[str], None]] = []
        self.unreachable_reason: str | None = None
        self._link: _Link | None = None
        self._opened = False
        self._connecting: asyncio.TimerHandle | None = None
        self._confirmations: set[asyncio.Future[None]] = set()
        self._unheard: set[str] = set()

    @property
    def connected(self) -> bool:
        return self._link is not None

    def on_connection(self, handler: Callable[[bool], None]) -> None:
        self._watchers.append(handler)

    def on_refusal(self, handler: Callable[[str], None]) -> None:
        self._refusal_handlers.append(handler)

    async def subscribe(self, topic_filter: str, handler: MessageHandler, *, retained: bool = False, **_: bool) -> None:
        self._handlers[topic_filter] = self._matcher[topic_filter] = handler, retained
        self._matched.clear()
        await self._confirmed(lambda link: self._add_subscription(link, topic_filter))

    async def unsubscribe(self, topic_filter: str) -> None:
        if self._handlers.pop(topic_filter, None) is not None:
            del self._matcher[topic_filter]
            self._matched.clear()
        await self._confirmed(lambda link: link.remove_filter(topic_filter))

    def max_payload_bytes(self, topic: str) -> int:
        limit = self._broker.max_packet_bytes if self._broker.mqtt5 else None
        return MAX_PAYLOAD_BYTES if limit is None else max_payload_bytes(topic, limit)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 0, correlation_data: bytes | None = None
    ) -> bool:
        if self._link is None or len(payload) > self.max_payload_bytes(topic):
            return False
        correlation = correlation_data if self._broker.mqtt5 else None
        unheard = self._unheard if qos and self._broker.mqtt5 else None
        self._link.submit(Message(topic, bytes(payload), retain, self.client_id, correlation, unheard))
        return True

    def is_unheard(self, topic: str) -> bool:
        return topic in self._unheard

    async def __aenter__(self) -> Self:
        self._opened = True
        self._connect_later()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close once the broker has all published messages; a frozen client closes without DISCONNECT."""
        self._opened = False
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._link is not None and not self._broker.is_paused(self.client_id):
            await self._confirmed(lambda link: None)
        if self._link is not None:
            self._broker.release(self._link, publish_will=self._broker.is_paused(self.client_id))

    # For the broker

    def receive(self, topic: str, payload: bytes, *, retained: bool) -> None:
        """Call the handlers of all matching filters; ``retained``: a copy for a new subscription."""
        handlers = self._matched.get(topic)
        if handlers is None:
            handlers = self._matched[topic] = list(self._matcher.iter_match(topic))
        for handler, expects_retained in handlers:
            if expects_retained or not retained:
                handler(topic, payload)

    def lost(self, link: _Link) -> None:
        """Handle the end of the connection."""
        if self._link is not link:
            return
        self._link = None
        self._unheard.clear()
        self.unreachable_reason = "the broker closed the connection"
        for future in self._confirmations:
            if not future.done():
                future.set_result(None)
        if self._opened:
            self._connect_later()
        self._notify_connection(connected=False)

    def _connect_later(self) -> None:
        delay = self._broker.rng.uniform(*self._broker.faults.reconnect_seconds)
        self._connecting = asyncio.get_running_loop().call_later(delay, self._connect)

    def _connect(self) -> None:
        link = self._broker.admit(self)
        if link is None:
            self.unreachable_reason = self._broker.refusal or "the broker is down"
            if self._broker.refusal is not None:
                for handler in self._refusal_handlers:
                    handler(self._broker.refusal)
            self._connect_later()
            return
        self._connecting = None
        self.unreachable_reason = None
        self._link = link
        for topic_filter in list(self._handlers):
            self._add_subscription(link, topic_filter)
        self._notify_connection(connected=True)

    def _add_subscription(self, link: _Link, topic_filter: str) -> None:
        """Add a subscription at the broker, which delivers retained messages if it asks for them."""
        link.add_filter(topic_filter)
        if self._broker.mqtt5 and not self._handlers[topic_filter][1]:
            return
        for topic, payload in sorted(self._broker.retained.items()):
            if topic_matches_sub(topic_filter, topic):
                link.deliver(topic, payload, lossy=False, retained=True)

    def _notify_connection(self, *, connected: bool) -> None:
        for watcher in list(self._watchers):
            watcher(connected)

    async def _confirmed(self, act: Callable[[_Link], object]) -> None:
        """Call ``act`` at the broker; return when its confirmation arrives or the connection ends."""
        link = self._link
        if link is None:
            return
        confirmation: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def confirm() -> None:
            if not confirmation.done():
                confirmation.set_result(None)

        def arrived() -> None:
            act(link)
            link.down(confirm)

        self._confirmations.add(confirmation)
        link.up(arrived)
        try:
            await confirmation
        finally:
            self._confirmations.discard(confirmation)
