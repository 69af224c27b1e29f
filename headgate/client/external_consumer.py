"""The consumer of an external topic: headgate says who reads which segment when, the program reads its own source.

    async def read(shard: GrantedSegment) -> None:
        async for batch in my_source(shard.label, after=shard.checkpoint):
            handle(batch)
            await shard.acknowledge(checkpoint=batch.last_mark)
        await shard.finish()

    async with ExternalConsumer(config, topic="orders", subscription="billing") as consumer:
        await consumer.run(read)

Registering, handovers and acknowledgements are headgate.client.consumer's; here a granted segment's reader is a call
of the program's function, in a task of its own.

The rules:

1. A segment is read by one call at a time over all consumers of the subscription, apart from one that is fenced.
2. A revoked segment's call is cancelled. The segment moves on once the call has ended and what it acknowledged is
   durable, or when the time for it is over.
3. Only `finish` says that a segment was read to its end: that lets its children through. A call that returns without it
   ends the consumer with an error, because nobody would read the rest. So does one that raises.
4. A checkpoint is kept for the next holder as it is. What was handled after the last one is handled again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from headgate.client.connection import Client
from headgate.client.consumer import CLOSE_TIMEOUT_SECONDS, REVOCATION_TIMEOUT_SECONDS, Consumer
from headgate.client.record_feed import HeldSegment, Reader, RecordFeed, Spawn
from headgate.config import ClientConfig
from headgate.errors import HeadgateError
from headgate.model.entries import Order, SubscriptionType
from headgate.model.external_topic import OPAQUE_END_OFFSET
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol import messages as m
from headgate.storage.object_store import Store

Read = Callable[["GrantedSegment"], Awaitable[None]]
"""The program's function: reads one segment from its checkpoint on, until its end or until it is cancelled."""

__all__ = ["ExternalConsumer", "GrantedSegment"]


class GrantedSegment:
    """A segment that this consumer reads now."""

    def __init__(self, grant: m.Grant, member: _ExternalGroupMember) -> None:
        assert grant.external is not None, f"segment {grant.segment} was granted without its name at the source"
        self.segment = SegmentId(grant.segment)
        """Its number in headgate."""
        self.label = grant.external.label
        """Its name at the source."""
        self.checkpoint = grant.external.checkpoint
        """Where to go on: the last one that was acknowledged, by whoever held it. None: begin at the beginning."""
        self.start_offset = grant.start_offset
        """Where offsets count: the first offset that is not acknowledged."""
        self.end_offset = grant.end_offset
        """Where offsets count: the end of a segment that was sealed when it was granted."""
        self.finished = False
        self._generation = grant.generation
        self._positions = grant.external.positions
        self._member = member

    async def acknowledge(self, *, checkpoint: str | None = None, end_offset: int | None = None) -> None:
        """Say that everything so far needs no other reading; it leaves with the next batch, within a tenth of a second.

        A coroutine, as every acknowledgement is: one may have to wait until the leader has taken earlier ones.

        Args:
            checkpoint: where the next holder goes on, at most 1024 characters.
            end_offset: where offsets count, the offset after the last one handled.

        Raises:
            HeadgateError: an end offset is missing, or given where positions are opaque.

        """
        if (end_offset is None) == (self._positions == "offsets"):
            wanted = "give end_offset" if end_offset is None else "give a checkpoint, no end_offset"
            raise HeadgateError(f"positions of {self.label} are {self._positions}: {wanted}")
        if checkpoint is not None:
            self.checkpoint = checkpoint
        self._member.acknowledge_segment(self.segment, self._generation, end_offset or 0, checkpoint)

    async def finish(self, *, end_offset: int | None = None) -> None:
        """Say that the segment was read to its end, and wait until that is durable.

        Args:
            end_offset: where offsets count, the end; left out, the one that the import gave.

        Raises:
            HeadgateError: no end is known, or it is given where positions are opaque.

        """
        if self._positions == "opaque":
            if end_offset is not None:
                raise HeadgateError(f"positions of {self.label} are opaque: finish() without end_offset")
            end_offset = OPAQUE_END_OFFSET
        elif end_offset is None:
            end_offset = self.end_offset
        if end_offset is None:
            raise HeadgateError(f"where {self.label} ends was not known when it was granted: give end_offset")
        self.finished = True
        self._member.acknowledge_segment(self.segment, self._generation, end_offset, None)
        await self._member.flush_acknowledgements()


class ExternalConsumer:
    """Is given segments of an external topic for one subscription. Use it as an async context manager, then `run`."""

    def __init__(
        self,
        config: ClientConfig | Client,
        *,
        topic: str,
        subscription: str,
        name: str | None = None,
        order: Order | None = None,
    ) -> None:
        """Describe what to be given; nothing happens before it is entered.

        Args:
            config: the cluster, or a client on it.
            topic: an external topic.
            subscription: whose position this is; created where it is missing, at the earliest record.
            name: of this consumer; the same name takes up what it held before. None: a new one each time.
            order: ``strict`` (the default) holds children back until their parents are drained, ``none`` does not.

        Raises:
            InvalidNameError: a name cannot be used.

        """
        self._member = _ExternalGroupMember(
            config,
            topic=topic,
            subscription=subscription,
            type=SubscriptionType.STREAM,
            name=name,
            start="earliest",
            order=order,
        )

    @property
    def name(self) -> str:
        """Of this consumer."""
        return self._member.name

    @property
    def segments(self) -> list[SegmentId]:
        """The segments that are held now."""
        return self._member.segments

    async def __aenter__(self) -> Self:
        """Connect and register; raises what `headgate.Consumer` raises."""
        await self._member.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """End every call, bring what they acknowledged, and leave; some seconds at most."""
        await self._member.cancel_readers()
        await self._member.__aexit__(*error)

    async def run(self, read: Read) -> None:
        """Call ``read`` for every segment that is granted, until cancelled.

        Raises:
            FencedError: a newer program of this name has taken over.
            HeadgateError: a call failed (the cause says how), or returned before its segment's end.

        """
        self._member.start_reading(read)
        async for record in self._member:
            raise AssertionError(f"a record of a topic that is not stored: {record}")


class _ExternalGroupMember(Consumer):
    """A consumer whose segments are read by the program."""

    _reads_source = True

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        self._grants = _GrantFeed(self._topic, positions, self._spawn, self)
        return self._grants

    def _open_feed(self, topic_id: int) -> None:
        """Without a store: headgate keeps nothing of this topic that could be read."""
        self._log.debug("consumer.registered", topic_id=topic_id)
        self._grants.registered = True

    def start_reading(self, read: Read) -> None:
        self._grants.read = read
        self._grants.started.set()

    async def cancel_readers(self) -> None:
        """Cancel every call, and wait until what they acknowledged can be brought."""
        readers = [holding.read_task for holding in self._feed.holdings.values() if holding.read_task is not None]
        for reader in readers:
            reader.cancel()
        if readers:
            await asyncio.wait(readers, timeout=CLOSE_TIMEOUT_SECONDS)

    def acknowledge_segment(self, segment: int, generation: int, end_offset: int, checkpoint: str | None) -> None:
        self._acknowledger.checkpoint(segment, generation, end_offset, checkpoint)

    async def flush_acknowledgements(self) -> None:
        if not await self._acknowledger.flush(REVOCATION_TIMEOUT_SECONDS):
            self._log.warning("consumer.acknowledgements_not_flushed")


class _GrantFeed(RecordFeed):
    """In place of records: calls of the program's function, one for each segment that is held."""

    def __init__(
        self, topic: str, positions: Mapping[SegmentId, Offset], spawn: Spawn, member: _ExternalGroupMember
    ) -> None:
        super().__init__(topic, SubscriptionType.STREAM, positions, spawn)
        self.registered = False
        self.read: Read | None = None
        self.started = asyncio.Event()
        """Set once ``read`` is there: segments may be granted before the program calls `run`."""
        self._member = member

    @property
    def is_open(self) -> bool:
        return self.registered

    def open(self, store: Store, shard: int, topic_id: int) -> None:
        raise AssertionError(f"topic {topic_id} of shard {shard} is external: nothing of it is in {store}")

    def begin(self, grant: m.Grant) -> HeldSegment:
        holding = super().begin(grant)
        # A call that runs counts as one delivery that is out: a revocation waits for its end.
        holding.delivered = holding.acknowledged + 1
        return holding

    def _reader(self, grant: m.Grant, _start: int, /) -> Reader:
        return _CallbackReader(GrantedSegment(grant, self._member), self, grant.generation)

    def reader_ended(self, segment: int, generation: int) -> None:
        """Note that a call has ended."""
        holding = self.holdings.get((segment, generation))
        if holding is not None:
            holding.acknowledged = holding.delivered
            holding.progress.set()


class _CallbackReader:
    """One call of the program's function. See `headgate.client.record_feed.Reader`."""

    def __init__(self, segment: GrantedSegment, feed: _GrantFeed, generation: int) -> None:
        self._segment = segment
        self._feed = feed
        self._generation = generation

    async def run(self) -> None:
        try:
            await self._feed.started.wait()
            assert self._feed.read is not None, "started without a function"
            await self._feed.read(self._segment)
        finally:
            self._feed.reader_ended(self._segment.segment, self._generation)
        if not self._segment.finished:
            raise HeadgateError(
                f"reading {self._segment.label} returned before its end: call finish() once it is read to the end",
            )

    def has_read(self, chunk: int) -> bool:
        """There are no chunks to read."""
        return chunk >= 0
