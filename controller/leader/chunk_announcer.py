"""Publish small chunks of one shard to the consumers at its end, so that these need not read them from the store.

1. A chunk is published once it is durable, and before the head that includes it.
2. A client follows from a heartbeat that says so until `MISSED_HEARTBEATS` heartbeats later.
3. The broker sends a chunk to each client that follows. It is published if that is at most ``ingest.announce_bytes``.
4. Only replies to consumers that follow state the key that authenticates what is published.
"""

import asyncio

from controller.context.leader_context import LeaderContext
from headgate.protocol import codec
from headgate.protocol.announcements import ChunkAnnouncement
from headgate.protocol.mqtt_topics import chunk_topic
from metrics import events
from shard.state.shard_state import ShardState
from shard.subscriptions.sessions import MISSED_HEARTBEATS


class ChunkAnnouncer:
    def __init__(self, state: ShardState, context: LeaderContext) -> None:
        self._shard = state.shard
        self._term_id = state.terms.newest_id
        self._context = context
        self._key = context.new_producer_id()
        self._followers: dict[str, float] = {}
        """Client id → loop time until which it follows, rising."""

    def follow(self, client_id: str) -> int:
        """Announce chunks to the consumers of a client from now on. Returns their key."""
        seconds = MISSED_HEARTBEATS * self._context.subscriptions.heartbeat_interval_seconds
        self._followers.pop(client_id, None)
        self._followers[client_id] = asyncio.get_running_loop().time() + seconds
        return self._key

    def announce(self, number: int, data: bytes) -> None:
        """Publish durable chunk ``number`` if rule 3 allows it."""
        while self._followers and next(iter(self._followers.values())) <= asyncio.get_running_loop().time():
            del self._followers[next(iter(self._followers))]
        if not 0 < len(self._followers) * len(data) <= self._context.ingest.announce_bytes:
            return
        message = ChunkAnnouncement.of(data, shard=self._shard, number=number, term_id=self._term_id, key=self._key)
        self._context.transport.publish(chunk_topic(self._context.cluster, self._shard), codec.encode(message))
        self._context.observer.observe(events.ChunkAnnounced(shard=self._shard))
