"""Maintains the MQTT subscriptions of a shard's device session during one term.

While enabled, it subscribes to every topic of the shard. Otherwise it unsubscribes from all, reads
until every message with a PUBACK is stored, and closes the session; earlier terms may have left
subscriptions or messages.

1. A filter is added or removed only on a connection older than a chunk of this term: the chunk
   proves that there was no successor yet, and a later one takes over the session, which ends the
   connection. Otherwise a deposed leader could remove its successor's filters, and devices would get
   PUBACKs for messages that no session queues. Or it could add filters to a session that its
   successor has emptied, and no leader would read what they queue. Only durable creations and deletions
   of topics count.
2. The queue is empty once a sentinel returns that was sent while only its topic was subscribed to.
   The session closes once the broker has confirmed a packet on that connection, after a later
   chunk: then all messages before the sentinel are acknowledged.
3. The sentinel is repeated: a full queue drops it, and connections break.
4. The session is never deleted at the broker. Nothing fences that call: a paused leader would
   delete messages that the broker confirmed to its successor's devices.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.devices.session_port import Delivery, DeviceSession
from headgate.errors import TransportError
from headgate.protocol import messages as m
from metrics import events
from shard.state.shard_state import ShardState

SENTINEL_INTERVAL_SECONDS = 10.0
"""Between two sentinels: far longer than a broker needs to deliver its queue, without an outage."""

log = structlog.get_logger(__name__)


class DeviceSubscriptions:
    """The filters of one shard's session during one term."""

    def __init__(
        self,
        *,
        cluster: str,
        state: ShardState,
        commit: GroupCommit,
        observer: events.Observer,
        enabled: bool,
    ) -> None:
        self.sentinel_topic = m.device_sentinel_topic(cluster, state.shard)
        """Messages with this topic are passed to `on_sentinel`."""
        self._cluster = cluster
        self._state = state
        self._commit = commit
        self._observer = observer
        self._enabled = enabled
        self._session: DeviceSession | None = None
        self._active_filters: set[str] = set()
        """Filters that the broker may have, as far as known."""
        self._added_filters: set[str] = set()
        """Filters that were added, or rejected, on `_added_connection`."""
        self._added_connection = 0
        self._changed = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._sentinels_sent = 0
        self._first_valid_sentinel = 1
        """Earlier sentinels are invalid: other topics were subscribed to since."""
        self._sentinel_sent_at = -math.inf
        self._empty_connection = 0
        """The connection that delivered a valid sentinel; 0 if none did."""

    def set_enabled(self, enabled: bool) -> None:
        """Subscribe to the topics of the shard, or to none."""
        self._enabled = enabled
        self._first_valid_sentinel = self._sentinels_sent + 1
        self._sentinel_sent_at = -math.inf
        self._empty_connection = 0
        self._changed.set()

    async def run(self, open_session: Callable[[], DeviceSession]) -> None:
        """Keep a session open while it is enabled or not empty, until cancelled."""
        while True:
            # An earlier leader may have left these. It may have ended after it deleted a topic, before its filter.
            self._active_filters = self._publish_filters() | self._filters_of(*self._state.deleted_topics)
            self._added_connection = 0
            async with open_session() as session:
                session.on_connection(lambda _: self._changed.set())
                self._session = session
                self._observer.observe(events.DeviceSessionOpened(shard=self._state.shard))
                try:
                    await self._maintain(session)
                finally:
                    self._session = None
                    self._observer.observe(events.DeviceSessionClosed(shard=self._state.shard))
            log.info("device.session_closed", shard=self._state.shard)
            while not self._enabled:
                self._changed.clear()
                await self._changed.wait()

    def topics_changed(self, callback: Callable[[], None]) -> None:
        """Subscribe to the topics in the state, then call ``callback``; at once without a connection."""
        if self._session is None or not self._session.connected:
            callback()
        else:
            self._callbacks.append(callback)
        self._changed.set()

    def subscribes_to(self, topic: str) -> bool:
        """Return whether the session receives messages for ``topic``, as far as known."""
        return self._filters_of(topic) <= self._active_filters

    def remove_filters(self, topic: str) -> None:
        """Remove the filters of a topic that does not exist. An earlier term left them."""
        self._active_filters |= self._filters_of(topic)
        self._changed.set()

    def on_sentinel(self, sentinel: Delivery) -> None:
        """Record that the session is empty, if the sentinel is valid."""
        sent = {
            b"%d.%d" % (self._state.leader_epoch, number)
            for number in range(self._first_valid_sentinel, self._sentinels_sent + 1)
        }
        if self._session is not None and sentinel.payload in sent:
            self._empty_connection = self._session.connection
            self._changed.set()
        sentinel.acknowledge()

    async def _maintain(self, session: DeviceSession) -> None:
        """Return once it is disabled and the session is empty. Every wait can be cancelled."""
        while True:
            self._changed.clear()
            callbacks, self._callbacks = self._callbacks, []
            await self._change_filters(session)
            for callback in callbacks:
                callback()
            if not self._enabled and not self._active_filters and not self._wanted_filters(session):
                for callback in self._callbacks:  # Disabled: there is nothing to subscribe to.
                    callback()
                self._callbacks = []
                return
            self._send_sentinel(session)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._enabled else SENTINEL_INTERVAL_SECONDS):
                    await self._changed.wait()

    async def _change_filters(self, session: DeviceSession) -> None:
        connection = session.connection
        if connection != self._added_connection:
            # The broker may have lost its data: all wanted filters are added again.
            self._added_connection, self._added_filters = connection, set()
        before = self._wanted_filters(session)
        if connection == 0 or before == self._added_filters == self._active_filters:
            return
        await self._wait_for_barrier()
        # What changed during the wait is not durable yet. It has set `_changed`, so it follows.
        after = self._wanted_filters(session)
        await self._add_filters(session, sorted((before & after) - self._added_filters), connection)
        unwanted = sorted(self._active_filters - before - after)
        if unwanted and await session.remove_subscriptions(unwanted, connection):
            self._active_filters.difference_update(unwanted)
            self._added_filters.difference_update(unwanted)

    async def _add_filters(self, session: DeviceSession, filters: list[str], connection: int) -> None:
        if not filters:
            return
        self._active_filters.update(filters)
        self._added_filters.update(filters)
        try:
            await session.add_subscriptions(filters, connection)
        except TransportError as error:
            # These topics get no messages before the next connection. All others continue.
            log.warning("device.filter_rejected", shard=self._state.shard, reason=str(error))

    async def _wait_for_barrier(self) -> None:
        """Return once a chunk was created after this call."""
        created = asyncio.Event()
        self._commit.after_barrier(created.set)
        await created.wait()

    def _send_sentinel(self, session: DeviceSession) -> None:
        """Send a sentinel, if one is due and only its topic is subscribed to, on this connection."""
        now = asyncio.get_running_loop().time()
        if self._enabled or session.connection != self._added_connection:
            return
        if not (self._added_filters == self._active_filters == {self.sentinel_topic}):
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
        return self._filters_of(*(name for name, topic in self._state.topics.items() if not topic.external))

    def _filters_of(self, *topics: str) -> set[str]:
        return {each for topic in topics for each in m.publish_filters(self._cluster, topic)}
