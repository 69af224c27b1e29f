"""Opens and ends the MQTT sessions of a shard's topics during one term: one session per topic.

So a device fills no queue but that of the topic to which it may publish: the broker drops what exceeds the queue
of a session, after its PUBACK. The name of a session contains the topic's id, which no other topic ever has, and the id
of the shard's first term: what waits for another ledger is not stored in this one.

1. A term opens the session of each topic with records, and of each deleted topic that an earlier leader
   may not have removed: its data is deleted after its session.
2. While devices are enabled, each topic is subscribed to. Otherwise each session is emptied and removed.
3. All sessions share what may be unacknowledged, so memory is independent of the number of topics.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import count
from typing import Final, get_args

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext, OpenSession
from headgate.errors import TransportError
from headgate.protocol.codec import device_sentinel_topic, device_session_id, publish_filters
from headgate.transport.mqtt_packets import ArrivedMessage, ReadingWindow
from headgate.transport.mqtt_persistent_session import MqttPersistentSession
from metrics import events
from metrics.label_values import DeviceSessionState
from shard.state.shard_state import ShardState

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
    """Keeps the MQTT session of one topic during one term: subscribed, or emptied and removed.

    1. The session is changed only on a connection older than a chunk of this term: the chunk proves that there was no
       successor yet, and a later one takes over the session, which ends the connection. Otherwise a deposed leader
       could remove its successor's filters, and devices would get PUBACKs for messages that no session queues. Or it
       could add filters to a session that its successor has emptied, and no leader would read what they queue. Only
       durable creations and deletions of topics count.
    2. The session is empty once a sentinel returns that was sent after the topic's filters were removed. It is
       removed once the broker has confirmed a packet on that connection, after a later chunk: then all messages
       before the sentinel are acknowledged.
    3. The sentinel is repeated: a full queue drops it, and connections break.
    4. The end of a connection that rule 1 allows to change the session also removes it from the broker (MQTT 5). A
       second connection that deletes it would be fenced by nothing.
    """

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


COUNT_INTERVAL_SECONDS: Final = 1.0
COUNTS_PER_REPORT: Final = 60
"""Between two log lines about sessions that the broker does not accept."""


class DeviceSessions:
    def __init__(self, context: LeaderContext, state: ShardState, commit: GroupCommit) -> None:
        self._context = context
        self._state = state
        self._commit = commit
        self._enabled = context.ingest.mqtt_devices
        self._sessions: dict[int, TopicSession] = {}
        self._missing: set[int] = set()
        """Topics whose sessions were missing at the time of the last report."""
        self._sentinels = count(1)
        self._start: Callable[[int, TopicSession], object] | None = None
        """Starts a session; None: no session can be opened."""

    def set_enabled(self, enabled: bool) -> None:
        """Subscribe to the topics of the shard, or to none."""
        self._enabled = enabled
        for topic_id in self._state.topics_by_id if enabled else ():
            self._open(topic_id)
        for session in self._sessions.values():
            session.follow_goal()

    def topics_changed(self, topic_id: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the broker queues messages for a new topic, if it can; at once for a deleted one."""
        goal = self._goal(topic_id)
        if goal is Goal.SUBSCRIBED:
            self._open(topic_id)
        session = self._sessions.get(topic_id)
        if session is not None:
            session.follow_goal(callback if goal is Goal.SUBSCRIBED else None)
        if session is None or goal is not Goal.SUBSCRIBED:
            callback()

    def exists(self, topic_id: int) -> bool:
        """Return whether the broker may have a session of this topic, as far as this term knows."""
        return topic_id in self._sessions

    def take_sentinel(self, topic_id: int, delivery: ArrivedMessage) -> bool:
        """Return whether ``delivery`` is no message of a device, or late: its session was removed."""
        session = self._sessions.get(topic_id)
        if session is None:
            delivery.acknowledge()  # Its connection has ended, so this only frees space in the window.
        return session is None or session.take_sentinel(delivery)

    async def run(self, open_session: OpenSession, on_delivery: Callable[[int, ArrivedMessage], None]) -> None:
        """Keep the sessions until cancelled. ``on_delivery`` gets the topic id of the session."""
        # A quarter of the ingest queue, so that devices do not displace producers with an identity.
        window = ReadingWindow(self._context.ingest.queue_bytes // 4)

        async def keep(topic_id: int, session: TopicSession) -> None:
            first_term = self._state.terms.ids[0]
            name = device_session_id(self._context.cluster, self._state.shard, topic_id, first_term)
            await session.run(open_session(name, partial(on_delivery, topic_id), window))
            log.info("device.session_closed", shard=self._state.shard, topic_id=topic_id)
            del self._sessions[topic_id]
            if self._goal(topic_id) is Goal.SUBSCRIBED:
                self._open(topic_id)

        deleted = {topic_id for topic_id, _ in self._state.tombstones} - self._state.topics_by_id.keys()
        async with asyncio.TaskGroup() as tasks:
            self._start = lambda topic_id, session: tasks.create_task(keep(topic_id, session))
            for topic_id in (*self._state.topics_by_id, *sorted(deleted)):
                self._open(topic_id)
            try:
                for number in count(1):
                    self._observe(Counter(session.state for session in self._sessions.values()))
                    await asyncio.sleep(COUNT_INTERVAL_SECONDS)
                    if number % COUNTS_PER_REPORT == 0:
                        self._report_missing()
            finally:
                self._start = None
                self._observe(Counter())

    def _open(self, topic_id: int) -> None:
        topic = self._state.topics_by_id.get(topic_id)
        external = topic is not None and topic.external is not None
        if self._start is None or external or topic_id in self._sessions:
            return
        self._sessions[topic_id] = session = TopicSession(
            filters=frozenset() if topic is None else publish_filters(self._context.cluster, topic.name),
            sentinel_topic=device_sentinel_topic(self._context.cluster, self._state.shard, topic_id),
            new_sentinel=lambda: b"%x.%d" % (self._state.terms.newest_id, next(self._sentinels)),
            goal=partial(self._goal, topic_id),
            commit=self._commit,
        )
        self._start(topic_id, session)

    def _goal(self, topic_id: int) -> Goal:
        if topic_id not in self._state.topics_by_id:
            return Goal.REMOVED
        return Goal.SUBSCRIBED if self._enabled else Goal.EMPTY

    def _observe(self, counts: Counter[DeviceSessionState]) -> None:
        for state in get_args(DeviceSessionState):
            event = events.DeviceSessionsCounted(shard=self._state.shard, state=state, sessions=counts[state])
            self._context.observer.observe(event)

    def _report_missing(self) -> None:
        before, self._missing = self._missing, {at for at, each in self._sessions.items() if each.state == "missing"}
        if missing := sorted(self._missing & before):  # One that is just being opened is missing for a moment.
            topic_id, found = missing[0], self._sessions[missing[0]]
            log.warning(
                "device.sessions_missing",
                shard=self._state.shard,
                sessions=len(missing),
                topic_id=topic_id,
                reason=None if found.session is None else found.session.unreachable_reason,
                remedy="compare max_connections and the open files of the broker with docs/operations/sizing.md: "
                "messages to a topic that never had a session are lost, others wait",
            )
