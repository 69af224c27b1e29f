"""What a leader follows of plain devices, in a session that the broker keeps; and how that is left when switched off.

One per reign, beside the `DeviceIntake` that stores what comes. Switched on, it follows every topic of the shard.
Switched off, it drops every filter, so that the broker keeps nothing more for it, and reads on until everything that
devices have a PUBACK for is stored; then it leaves the session. A reign that begins switched off does the same: an
earlier one may have left something.

Rules:

1. A filter is dropped only on a connection that stood before a chunk of this reign was created. A leader that was
   deposed and does not know takes the session away from its successor by reconnecting, and would drop what that one
   follows: devices would get PUBACKs for what nobody keeps. The chunk proves that there was no successor then, and a
   later one takes the session over, which ends this connection, and follows everything anew. For the same reason a
   topic is followed until its deletion is durable.
2. Nothing waits any more once a mark has come back that was sent while nothing but marks was followed. The session is
   left once the broker has confirmed a packet on the connection by which it came, after a chunk that was created since:
   then all that came before the mark is durable, and the broker knows.
3. A mark is sent again now and then: a broker whose queue is full throws it away, or the connection breaks.

What it deliberately does not do: end the session at the broker. Only a new connection can, and nothing fences that
one: a leader that stood still before it would throw away what its successor's devices were promised. A session without
filters costs the broker nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

import structlog

from controller.commit import GroupCommit
from controller.devices.session_port import Delivery, DeviceSession
from controller.state.shard_state import ShardState
from headgate.errors import TransportError
from headgate.protocol import messages as m
from metrics import events

SENTINEL_INTERVAL_SECONDS = 10.0
"""Between two marks: far above what a broker needs for its queue, if there is no outage."""

log = structlog.get_logger(__name__)


class DeviceSubscriptions:
    """The filters of one shard's session, during one reign."""

    def __init__(
        self,
        *,
        cluster: str,
        state: ShardState,
        commit: GroupCommit,
        observer: events.Observer,
        enabled: bool,
    ) -> None:
        """``state`` and ``commit`` are the reign's."""
        self.sentinel_topic = m.device_sentinel_topic(cluster, state.shard)
        """What is published here is for `on_sentinel`."""
        self._cluster = cluster
        self._state = state
        self._commit = commit
        self._observer = observer
        self._enabled = enabled
        self._session: DeviceSession | None = None
        self._active_filters: set[str] = set()
        """Filters that stand at the broker as far as we know, or will as soon as it is in reach."""
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._sentinels_sent = 0
        self._first_valid_sentinel = 1
        """Those before it say nothing: more was followed since."""
        self._sentinel_sent_at = -math.inf
        self._empty_connection = 0
        """The connection by which one came back; 0: none did."""

    def set_enabled(self, enabled: bool) -> None:
        """Follow the topics of the shard, or none."""
        self._enabled = enabled
        self._first_valid_sentinel = self._sentinels_sent + 1
        self._sentinel_sent_at = -math.inf
        self._empty_connection = 0
        self._changed.set()

    async def run(self, open_session: Callable[[], DeviceSession]) -> None:
        """Keep a session for as long as there is something to read in it, until cancelled."""
        while True:
            # Whoever led before may have left these.
            self._active_filters = set() if self._enabled else self._publish_filters()
            async with open_session() as session:
                session.on_connection(lambda _: self._changed.set())
                self._session = session
                self._observer.observe(events.DeviceSessionOpened(shard=self._state.shard))
                try:
                    await self._maintain(session)
                finally:
                    self._session = None
                    self._observer.observe(events.DeviceSessionClosed(shard=self._state.shard))
            log.info("device.session_left", shard=self._state.shard)
            while not self._enabled:
                self._changed.clear()
                await self._changed.wait()

    def topics_changed(self, callback: Callable[[], None]) -> None:
        """Follow what the state holds now, and call ``callback`` when that is done; at once without a broker."""
        if self._session is None or not self._session.connected:
            callback()
        else:
            self._callbacks.append(callback)
        self._changed.set()

    def remove_filter(self, topic: str) -> None:
        """Drop the filter of a topic that does not exist; an earlier reign left it."""
        self._active_filters.add(m.publish_filter(self._cluster, topic))
        self._changed.set()

    def on_sentinel(self, mark: Delivery) -> None:
        """Take note of a mark, if it is one that says something."""
        sent = {
            b"%d.%d" % (self._state.leader_epoch, mark)
            for mark in range(self._first_valid_sentinel, self._sentinels_sent + 1)
        }
        if self._session is not None and mark.payload in sent:
            self._empty_connection = self._session.connection
            self._changed.set()
        mark.acknowledge()

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _maintain(self, session: DeviceSession) -> None:
        """Return once it is switched off and nothing waits. A cancelled wait leaves nothing half done."""
        while True:
            self._changed.clear()
            callbacks, self._callbacks = self._callbacks, []
            await self._add_wanted_filters(session)
            await self._remove_unwanted_filters(session)
            for callback in callbacks:
                callback()
            if not self._enabled and not self._active_filters:
                for callback in self._callbacks:  # there is nothing to follow
                    callback()
                self._callbacks = []
                return
            self._send_sentinel(session)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._enabled else SENTINEL_INTERVAL_SECONDS):
                    await self._changed.wait()

    async def _add_wanted_filters(self, session: DeviceSession) -> None:
        for topic_filter in sorted(self._wanted_filters(session) - self._active_filters):
            self._active_filters.add(topic_filter)
            try:
                await session.add_subscription(topic_filter)
            except TransportError as error:
                # Nothing of this topic comes in before the next connection; everything else goes on.
                log.warning("device.filter_refused", shard=self._state.shard, reason=str(error))

    async def _remove_unwanted_filters(self, session: DeviceSession) -> None:
        connection = session.connection
        if connection == 0 or self._active_filters <= self._wanted_filters(session):
            return
        await self._wait_for_barrier()
        unwanted = sorted(
            self._active_filters - self._wanted_filters(session)
        )  # it may have been switched on meanwhile
        if unwanted and await session.remove_subscriptions(unwanted, connection):
            self._active_filters.difference_update(unwanted)

    async def _wait_for_barrier(self) -> None:
        """Return once a chunk was created after this moment."""
        created = asyncio.Event()
        self._commit.when_durable(self._commit.barrier(), created.set)
        await created.wait()

    def _send_sentinel(self, session: DeviceSession) -> None:
        """Ask for the end of what waits, if that can be asked now."""
        now = asyncio.get_running_loop().time()
        if self._enabled or not session.connected or self._active_filters != {self.sentinel_topic}:
            return
        if now - self._sentinel_sent_at >= SENTINEL_INTERVAL_SECONDS:
            self._sentinels_sent += 1
            self._sentinel_sent_at = now
            session.publish_sentinel(self.sentinel_topic, b"%d.%d" % (self._state.leader_epoch, self._sentinels_sent))

    def _wanted_filters(self, session: DeviceSession) -> set[str]:
        if self._enabled:
            return self._publish_filters()
        return (
            set()
            if self._empty_connection != 0 and self._empty_connection == session.connection
            else {self.sentinel_topic}
        )

    def _publish_filters(self) -> set[str]:
        return {
            m.publish_filter(self._cluster, name) for name, topic in self._state.topics.items() if not topic.external
        }
