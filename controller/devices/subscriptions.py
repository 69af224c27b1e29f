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
from typing import Protocol

import structlog

from controller.commit import GroupCommit
from controller.devices.session_port import Delivery, DeviceSession
from controller.state.shard_state import ShardState
from headgate.errors import TransportError
from headgate.protocol import messages as m

MARK_SECONDS = 10.0
"""Between two marks: far above what a broker needs for its queue, if there is no outage."""

log = structlog.get_logger(__name__)


class FollowingObserver(Protocol):
    """Who is told of the session (metrics)."""

    def device_session(self, shard: int, *, is_open: bool) -> None:
        """Tell whether the session of devices is being read."""


class DeviceFollowing:
    """The filters of one shard's session, during one reign."""

    def __init__(
        self,
        *,
        cluster: str,
        state: ShardState,
        commit: GroupCommit,
        observer: FollowingObserver,
        on: bool,
    ) -> None:
        """``state`` and ``commit`` are the reign's."""
        self.mark_topic = m.device_mark_topic(cluster, state.shard)
        """What is published here is for `mark_arrived`."""
        self._cluster = cluster
        self._state = state
        self._commit = commit
        self._observer = observer
        self._on = on
        self._session: DeviceSession | None = None
        self._standing: set[str] = set()
        """Filters that stand at the broker as far as we know, or will as soon as it is in reach."""
        self._changed = asyncio.Event()
        self._releases: list[Callable[[], None]] = []
        self._marks = 0
        self._first_mark = 1
        """Those before it say nothing: more was followed since."""
        self._marked_at = -math.inf
        self._empty_on = 0
        """The connection by which one came back; 0: none did."""

    def switch(self, on: bool) -> None:
        """Follow the topics of the shard, or none."""
        self._on = on
        self._first_mark = self._marks + 1
        self._marked_at = -math.inf
        self._empty_on = 0
        self._changed.set()

    async def run(self, open_session: Callable[[], DeviceSession]) -> None:
        """Keep a session for as long as there is something to read in it, until cancelled."""
        while True:
            # Whoever led before may have left these.
            self._standing = set() if self._on else self._filters()
            async with open_session() as session:
                session.on_connection(lambda _: self._changed.set())
                self._session = session
                self._observer.device_session(self._state.shard, is_open=True)
                try:
                    await self._keep(session)
                finally:
                    self._session = None
                    self._observer.device_session(self._state.shard, is_open=False)
            log.info("device.session_left", shard=self._state.shard)
            while not self._on:
                self._changed.clear()
                await self._changed.wait()

    def topics_changed(self, release: Callable[[], None]) -> None:
        """Follow what the state holds now, and call ``release`` when that is done; at once without a broker."""
        if self._session is None or not self._session.connected:
            release()
        else:
            self._releases.append(release)
        self._changed.set()

    def drop(self, topic: str) -> None:
        """Drop the filter of a topic that does not exist; an earlier reign left it."""
        self._standing.add(m.publish_filter(self._cluster, topic))
        self._changed.set()

    def mark_arrived(self, mark: Delivery) -> None:
        """Take note of a mark, if it is one that says something."""
        sent = {b"%d.%d" % (self._state.leader_epoch, mark) for mark in range(self._first_mark, self._marks + 1)}
        if self._session is not None and mark.payload in sent:
            self._empty_on = self._session.connection
            self._changed.set()
        mark.acknowledge()

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _keep(self, session: DeviceSession) -> None:
        """Return once it is switched off and nothing waits. A cancelled wait leaves nothing half done."""
        while True:
            self._changed.clear()
            releases, self._releases = self._releases, []
            await self._follow_wanted(session)
            await self._drop_unwanted(session)
            for release in releases:
                release()
            if not self._on and not self._standing:
                for release in self._releases:  # there is nothing to follow
                    release()
                self._releases = []
                return
            self._mark(session)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._on else MARK_SECONDS):
                    await self._changed.wait()

    async def _follow_wanted(self, session: DeviceSession) -> None:
        for topic_filter in sorted(self._wanted(session) - self._standing):
            self._standing.add(topic_filter)
            try:
                await session.follow(topic_filter)
            except TransportError as error:
                # Nothing of this topic comes in before the next connection; everything else goes on.
                log.warning("device.filter_refused", shard=self._state.shard, reason=str(error))

    async def _drop_unwanted(self, session: DeviceSession) -> None:
        connection = session.connection
        if connection == 0 or self._standing <= self._wanted(session):
            return
        await self._chunk_created()
        unwanted = sorted(self._standing - self._wanted(session))  # it may have been switched on meanwhile
        if unwanted and await session.unfollow(unwanted, connection):
            self._standing.difference_update(unwanted)

    async def _chunk_created(self) -> None:
        """Return once a chunk was created after this moment."""
        self._commit.prove()
        created = asyncio.Event()
        self._commit.when_durable(self._commit.newest, created.set)
        await created.wait()

    def _mark(self, session: DeviceSession) -> None:
        """Ask for the end of what waits, if that can be asked now."""
        now = asyncio.get_running_loop().time()
        if self._on or not session.connected or self._standing != {self.mark_topic}:
            return
        if now - self._marked_at >= MARK_SECONDS:
            self._marks += 1
            self._marked_at = now
            session.mark(self.mark_topic, b"%d.%d" % (self._state.leader_epoch, self._marks))

    def _wanted(self, session: DeviceSession) -> set[str]:
        if self._on:
            return self._filters()
        return set() if self._empty_on != 0 and self._empty_on == session.connection else {self.mark_topic}

    def _filters(self) -> set[str]:
        return {
            m.publish_filter(self._cluster, name) for name, topic in self._state.topics.items() if not topic.external
        }
