"""Keeps the MQTT session of one topic during one term: subscribed, or emptied and removed.

1. The session is changed only on a connection older than a chunk of this term: the chunk proves that
   there was no successor yet, and a later one takes over the session, which ends the connection.
   Otherwise a deposed leader could remove its successor's filters, and devices would get PUBACKs for
   messages that no session queues. Or it could add filters to a session that its successor has
   emptied, and no leader would read what they queue. Only durable creations and deletions of topics count.
2. The session is empty once a sentinel returns that was sent after the topic's filters were removed.
   It is removed once the broker has confirmed a packet on that connection, after a later chunk: then
   all messages before the sentinel are acknowledged.
3. The sentinel is repeated: a full queue drops it, and connections break.
4. The end of a connection that rule 1 allows to change the session also removes it from the broker (MQTT 5).
   A second connection that deletes it would be fenced by nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from headgate.errors import TransportError
from headgate.transport.mqtt_packets import ArrivedMessage
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from metrics.label_values import DeviceSessionState

SENTINEL_INTERVAL_SECONDS: Final = 10.0
"""Between two sentinels: far longer than a broker needs to deliver its queue, without an outage."""
REPLY_SECONDS: Final = 5.0
"""How long the reply to the creation of a topic waits for a broker that does not accept the session."""

log = structlog.get_logger(__name__)


class Goal(Enum):
    SUBSCRIBED = auto()
    EMPTY = auto()
    """Messages with a PUBACK are stored, later ones are not. Then it is removed."""
    REMOVED = auto()


@dataclass(eq=False, repr=False, kw_only=True)
class TopicSession:
    """The session of one topic. ``goal`` returns what it shall be, and can change at any time."""

    filters: frozenset[str]
    sentinel_topic: str
    new_sentinel: Callable[[], bytes]
    """Returns a payload that no sentinel had before."""
    goal: Callable[[], Goal]
    commit: GroupCommit
    session: MqttPersistentSession | None = None
    subscribed: bool = False
    """Whether the broker queues what devices publish to the topic, as far as known."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _callbacks: list[Callable[[], None]] = field(default_factory=list)
    _reached: tuple[int, Goal] = 0, Goal.REMOVED
    """The connection on which the session was changed last, and for which goal."""
    _sentinel: bytes = b""
    """Sentinels with another payload were sent before the topic's filters were removed."""
    _empty_connection: int = 0
    """The connection that delivered a valid sentinel; 0 if none did."""

    @property
    def state(self) -> DeviceSessionState:
        """What the broker has of it, as far as known."""
        if self.subscribed:
            return "subscribed"
        return "missing" if self.goal() is Goal.SUBSCRIBED else "ending"

    def follow_goal(self, callback: Callable[[], None] | None = None) -> None:
        """Notice that the goal may have changed; call ``callback`` when it is reached, or after `REPLY_SECONDS`."""
        if callback is not None:
            self._callbacks.append(callback)
        self._changed.set()

    def take_sentinel(self, delivery: ArrivedMessage) -> bool:
        """Return whether ``delivery`` is a sentinel. A valid one shows that the session is empty."""
        if delivery.topic != self.sentinel_topic:
            return False
        if self.session is not None and self._reached[1] is Goal.EMPTY and delivery.payload == self._sentinel:
            self._empty_connection = self.session.connection
            self._changed.set()
        delivery.acknowledge()
        return True

    async def run(self, session: MqttPersistentSession) -> None:
        """Return once the session is removed, or all that can be done is done. Every wait can be cancelled."""
        async with session:
            self.session = session
            session.on_connection(lambda _: self._changed.set())
            while not await self._approach_goal(session):
                wait_seconds = SENTINEL_INTERVAL_SECONDS if self.goal() is not Goal.SUBSCRIBED else None
                try:
                    async with asyncio.timeout(REPLY_SECONDS if self._callbacks else wait_seconds):
                        await self._changed.wait()
                except TimeoutError:
                    self._call_back()
            self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    async def _approach_goal(self, session: MqttPersistentSession) -> bool:
        """Do what is possible now; return whether the session is removed."""
        self._changed.clear()
        connection, goal = session.connection, self._next_goal(session)
        self.subscribed &= connection == self._reached[0]
        if connection != 0 and self._reached != (connection, goal):
            await self._wait_for_barrier()
            if self._next_goal(session) is not goal:
                self._changed.set()
            elif await self._change(session, connection, goal):
                self._reached = connection, goal
        if connection == 0 or self._reached != (connection, goal):
            return False
        self._call_back()
        if goal is Goal.EMPTY:
            session.publish_sentinel(self.sentinel_topic, self._sentinel)
        return goal is Goal.REMOVED

    def _next_goal(self, session: MqttPersistentSession) -> Goal:
        """Return the goal, which is `Goal.REMOVED` when the session is empty and is not wanted."""
        goal = self.goal()
        empty = self._empty_connection != 0 and self._empty_connection == session.connection
        return Goal.REMOVED if goal is Goal.EMPTY and empty else goal

    async def _change(self, session: MqttPersistentSession, connection: int, goal: Goal) -> bool:
        """Change the session for ``goal``; return whether the broker confirmed it on ``connection``."""
        filters, sentinels = sorted(self.filters), [self.sentinel_topic]
        self._empty_connection = 0
        try:
            if goal is Goal.SUBSCRIBED:
                self.subscribed = await session.add_subscriptions(filters + sentinels, connection)
                return self.subscribed
            self.subscribed = False
            if goal is Goal.EMPTY and not await session.add_subscriptions(sentinels, connection):
                return False
        except TransportError as error:
            # The topic gets no messages before the next connection. All others continue.
            log.warning("device.filter_rejected", filters=filters, reason=str(error))
            return True
        self._sentinel = self.new_sentinel()
        if goal is Goal.EMPTY:
            return await session.remove_subscriptions(filters, connection)
        if not await session.remove_subscriptions(filters + sentinels, connection):
            return False
        session.end_at_close(connection)
        return True

    async def _wait_for_barrier(self) -> None:
        """Return once a chunk was created after this call."""
        created = asyncio.Event()
        self.commit.after_barrier(created.set)
        await created.wait()
