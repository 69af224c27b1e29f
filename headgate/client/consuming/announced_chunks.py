"""Take the small chunks that a leader publishes, instead of reading them from the store.

1. Only a consumer that has read to the end of its shard follows; it says so in its heartbeats.
2. A chunk counts if it is authenticated with the key that the leader of its term has stated in a reply. One of another
   term is passed over: its key is not known, or no longer.
3. Nothing depends on it. What was not announced, or is lost, is read from the store.
"""

from collections.abc import Callable

from headgate.client.connection import Client
from headgate.client.consuming.record_feed import RecordFeed
from headgate.errors import TransportError
from headgate.log.event_log import EventLogger
from headgate.protocol.announcements import ChunkAnnouncement
from headgate.protocol.replies import HeartbeatReply


class AnnouncedChunks:
    def __init__(self, client: Client, feed: RecordFeed, log: EventLogger) -> None:
        self.follows = False
        """Whether the leader is to announce chunks to this consumer."""
        self._client = client
        self._feed = feed
        self._log = log
        self._key = 0
        self._term_id = 0
        self._reported = False
        self._asked = False
        self._receives = False
        self._remove: Callable[[], None] = lambda: None

    async def heard(self, shard: int, alive: HeartbeatReply) -> None:
        """Decide by a leader's reply whether to follow from now on."""
        self._key, self._term_id = alive.chunk_key, alive.term_id
        near = self._feed.is_near(alive.head)
        if near and not self._asked:
            self._asked = True
            try:
                self._remove = await self._client.watch_chunks(shard, self._received)
                self._receives = True
            except TransportError as error:
                self._log.warning("announcements.refused", shard=shard, reason=str(error))
        self.follows = near and self._receives

    def close(self) -> None:
        self._remove()
        self._asked = self._receives = self.follows = False

    def _received(self, announced: ChunkAnnouncement) -> None:
        if not self._key or announced.term_id != self._term_id:
            return
        if announced.is_authentic(self._key):
            self._feed.offer(announced.number, announced.object)
        elif not self._reported:
            self._reported = True
            self._log.warning("chunk.not_authentic", shard=announced.shard, chunk=announced.number)
