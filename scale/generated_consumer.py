"""A consumer that does everything but read: it registers, holds segments, sends heartbeats and confirms revocations.

Ten thousand programs do not fit on one machine. Many of these share a few connections, and run the membership of
`headgate.Consumer` unchanged. Reading is left out: it costs the object store and the consumer's own machine, not the
daemons.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from headgate.client.consumer import Consumer
from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.consuming.record_queue import HeldSegment
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol.replies import Grant


class GeneratedConsumer(Consumer):
    registrations = 0
    registered_at_ns = 0
    """The time of the last registration, by the monotonic clock that all processes of a machine share."""

    @property
    def held_segments(self) -> int:
        """How many segments, or bucket ranges of them, it holds."""
        return len(self._feed.holdings)

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        self._idle_feed = _IdleFeed(self._topic, self._kind, positions, self._tasks.spawn)
        return self._idle_feed

    def _open_feed(self, shard: int, topic_id: int) -> None:
        """Note a registration; ``topic_id`` would name what to read."""
        self._log.debug("consumer.registered", shard=shard, topic_id=topic_id)
        self._idle_feed.registered = True
        self.registrations += 1
        self.registered_at_ns = time.monotonic_ns()


class _IdleFeed(RecordFeed):
    """Holds segments without reading them."""

    registered = False

    @property
    def is_open(self) -> bool:
        return self.registered

    def begin(self, grant: Grant, _after: asyncio.Task[None] | None = None, /) -> HeldSegment:
        start = Offset(grant.start_offset)
        holding = HeldSegment(grant, _IDLE, delivered=start, acknowledged=start)
        self.holdings[grant.segment, grant.generation] = holding
        return holding


class _IdleReader:
    async def run(self) -> None:
        raise AssertionError("an idle feed starts no reader")

    def has_read(self, chunk: int) -> bool:
        return chunk >= 0


_IDLE: Final = _IdleReader()
