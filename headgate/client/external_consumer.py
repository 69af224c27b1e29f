"""The consumer of an external topic: headgate grants segments, the program reads its source.

    async def read(shard: GrantedSegment) -> None:
        async for batch in my_source(shard.label, after=shard.checkpoint):
            handle(batch)
            await shard.acknowledge(checkpoint=batch.last_mark)
        await shard.finish()

    async with ExternalConsumer(config, topic="orders", subscription="billing") as consumer:
        await consumer.run(read)

1. Over all consumers of the subscription, one call at a time reads a segment, besides fenced calls.
2. A revocation cancels the call. The segment moves once the call has ended and its acknowledgements
   are durable, or after a time limit.
3. Only `GrantedSegment.finish` releases the children of a segment. A call that returns without it,
   or raises, ends the consumer with an error: the rest would remain unread.
4. A checkpoint is passed on unchanged. Work after the last one is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Final, Self
from weakref import WeakValueDictionary

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.consumer import CLOSE_TIMEOUT_SECONDS, Consumer
from headgate.client.consuming.record_feed import RecordFeed, Spawn
from headgate.client.consuming.record_queue import HeldSegment, Reader
from headgate.client.decisions.held_segments import HeldKey
from headgate.client.membership import OnGranted, OnRevoked
from headgate.client.processing.calls import stopped_by_sigterm
from headgate.client.processing.schedule import LastAction, RetryPolicy
from headgate.errors import ConfigError, HeadgateError
from headgate.model.entries import Order, SubscriptionType
from headgate.model.external_topic import OPAQUE_END_OFFSET
from headgate.model.identifiers import Offset, SegmentId
from headgate.process.background import end_tasks
from headgate.protocol.replies import Grant
from headgate.protocol.request_fields import MAX_CHECKPOINT_CHARACTERS
from headgate.settings.arguments import require_count
from headgate.settings.config import ClientConfig
from headgate.storage.object_store import Store

Read = Callable[["GrantedSegment"], Awaitable[None]]
"""The program's function. It reads one segment from its checkpoint, to its end or until it is cancelled."""

NO_RETRY: Final = RetryPolicy(attempts=1)

__all__ = ["ExternalConsumer", "GrantedSegment"]


class GrantedSegment:
    """An external segment that this consumer holds."""

    def __init__(self, grant: Grant, member: _ExternalGroupMember) -> None:
        assert grant.external is not None, f"the grant of segment {grant.segment} does not name it at its source"
        self.segment = SegmentId(grant.segment)
        """Its number in headgate."""
        self.generation = grant.generation
        """The generation of this grant: a segment that is granted again has a higher one."""
        self.subscription_id = member.subscription_id
        """Names the subscription in a table of acknowledgements: one that is created again has another id."""
        self.label = grant.external.label
        """Its name at the source."""
        self.checkpoint = grant.external.checkpoint
        """Where to continue: the last checkpoint that any holder acknowledged. None: start at the beginning."""
        self.start_offset = grant.start_offset
        """With ``offsets`` positions: the first offset that is not acknowledged."""
        self.end_offset = grant.end_offset
        """With ``offsets`` positions: the end of a segment that was sealed when it was granted."""
        self._positions = grant.external.positions
        end_offset = OPAQUE_END_OFFSET if self._positions == "opaque" else grant.end_offset
        self.finished = end_offset is not None and grant.start_offset >= end_offset
        """Whether it was read to its end. A former holder may have done so, before the drain check has confirmed it."""
        self._member = member

    @property
    def is_held(self) -> bool:
        """Whether it is this consumer's. Otherwise another one may read it, and what is handled has no effect."""
        return self._member.holds((self.segment, self.generation))

    async def acknowledge(self, *, checkpoint: str | None = None, end_offset: int | None = None) -> None:
        """Acknowledge everything that was read so far. It is sent within a tenth of a second.

        A coroutine, as every acknowledgement is: `Consumer.acknowledge` can wait for capacity.

        Args:
            checkpoint: where the next holder continues, at most `MAX_CHECKPOINT_CHARACTERS` (1024).
            end_offset: with ``offsets`` positions, the offset after the last record that was handled.

        Raises:
            HeadgateError: ``end_offset`` is missing, or is given with opaque positions; the checkpoint is too long.
        """
        if (end_offset is None) == (self._positions == "offsets"):
            wanted = "give end_offset" if end_offset is None else "give a checkpoint, no end_offset"
            raise HeadgateError(f"positions of {self.label} are {self._positions}: {wanted}")
        if (length := len(checkpoint or "")) > MAX_CHECKPOINT_CHARACTERS:
            raise HeadgateError(f"{self.label}: {length} characters in a checkpoint; limit {MAX_CHECKPOINT_CHARACTERS}")
        if checkpoint is not None:
            self.checkpoint = checkpoint
        self.start_offset = max(self.start_offset, end_offset or 0)
        self._member.acknowledge_segment((self.segment, self.generation), end_offset or 0, checkpoint)

    def report_unhandled(self, arrived_ms: int | None) -> None:
        """Say when the oldest unhandled record arrived, in milliseconds since 1970; None: there is none.

        `headgate backlog`, the status page and the metrics show its age, after the next heartbeat.
        """
        self._member.report_unhandled((self.segment, self.generation), arrived_ms)

    async def finish(self, *, end_offset: int | None = None) -> None:
        """Report that the segment was read to its end, and wait until that is durable.

        Args:
            end_offset: with ``offsets`` positions, the end. Default: the one that the import gave.

        Raises:
            HeadgateError: the end is unknown, or is given with opaque positions.
            AcknowledgementsNotStoredError: it was not durable in time. It is sent again; this can be called again.
        """
        if self._positions == "opaque":
            if end_offset is not None:
                raise HeadgateError(f"positions of {self.label} are opaque: finish() without end_offset")
            end_offset = OPAQUE_END_OFFSET
        elif end_offset is None:
            end_offset = self.end_offset
        if end_offset is None:
            raise HeadgateError(f"the end of {self.label} was unknown when it was granted: give end_offset")
        key = (self.segment, self.generation)
        self._member.acknowledge_segment(key, end_offset, None)
        await self._member.flush_acknowledgements(key)
        self.finished = True


class ExternalConsumer:
    """Reads segments of an external topic for one subscription. Use it as an async context manager, and `run` it."""

    def __init__(
        self,
        config: ClientConfig | Client,
        *,
        topic: str,
        subscription: str,
        name: str | None = None,
        order: Order | None = None,
        on_granted: OnGranted | None = None,
        on_revoked: OnRevoked | None = None,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Describe what to read; the arguments and errors are those of `headgate.Consumer`.

        A new subscription starts at the earliest record. ``order`` is ``strict`` if it is None.
        """
        self._member = _ExternalGroupMember(
            config,
            topic=topic,
            subscription=subscription,
            type=SubscriptionType.STREAM,
            name=name,
            start="earliest",
            order=order,
            on_granted=on_granted,
            on_revoked=on_revoked,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        self.refuse_own_caller = self._member.refuse_own_caller

    @property
    def name(self) -> str:
        """Name of this consumer."""
        return self._member.name

    @property
    def segments(self) -> list[SegmentId]:
        """The segments that are held now."""
        return self._member.segments

    async def __aenter__(self) -> Self:
        """Connect and register; raises what `headgate.Consumer` raises."""
        await self._member.__aenter__()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Cancel every call, flush their acknowledgements, and leave; some seconds at most."""
        self.refuse_own_caller("close")
        await self._member.cancel_readers()
        await self._member.__aexit__(exc_type)

    async def run(self, read: Read, *, concurrency: int | None = None, retry: RetryPolicy = NO_RETRY) -> None:
        """Call ``read`` for every granted segment, until cancelled, `stop`, or SIGTERM as for `headgate.Consumer.run`.

        Args:
            read: a coroutine function, see `GrantedSegment`.
            concurrency: segments that are read at the same time, at most; None: all that are granted.
            retry: when a call that raised is repeated, with the checkpoint that it reached. Its last action is to stop.

        Raises:
            FencedError: a newer program of this name is running.
            ConfigError: an argument is out of range.
            HeadgateError: a call failed (see the cause), or returned before its segment's end.
        """
        require_count("run: concurrency", 1 if concurrency is None else concurrency)
        if retry.then != LastAction.STOP:
            raise ConfigError(
                f"run: retry.then={str(retry.then)!r}: use 'stop'; a segment that is skipped stays unread"
            )
        self.refuse_own_caller("run")
        self._member.start_reading(read, asyncio.Semaphore(concurrency or 2**31), retry)
        with stopped_by_sigterm(partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)):
            async for record in self._member:
                raise AssertionError(f"a record of a topic that is not stored: {record}")

    def stop(self) -> None:
        """End `run`, without waiting for it. The end of the ``async with`` block cancels the calls."""
        self._member.stop()


class _ExternalGroupMember(Consumer):
    _reads_source = True

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        self._grants = _GrantFeed(self._topic, positions, self._tasks.spawn, self)
        return self._grants

    def _open_feed(self, shard: int, topic_id: int) -> None:
        """Open without a store: headgate does not store this topic."""
        self._log.debug("consumer.registered", shard=shard, topic_id=topic_id)

    def start_reading(self, read: Read, slots: asyncio.Semaphore, retry: RetryPolicy) -> None:
        async def attempts(segment: GrantedSegment) -> None:
            for failures in count(1):
                try:
                    async with slots:
                        await read(segment)
                        break
                except Exception as error:
                    pause = retry.after(failures, error, self._client.rng.random())
                    if isinstance(pause, LastAction):
                        raise
                    self._log.warning("segment.read_again", segment=segment.label, reason=repr(error))
                    await asyncio.sleep(pause)

        self._grants.read = attempts
        self._grants.started.set()

    async def cancel_readers(self) -> None:
        """Cancel every call, and wait until all have ended."""
        readers = [holding.read_task for holding in self._feed.holdings.values() if holding.read_task is not None]
        await end_tasks(*readers, seconds=CLOSE_TIMEOUT_SECONDS)

    def holds(self, key: HeldKey) -> bool:
        return key in self._feed.holdings

    def acknowledge_segment(self, key: HeldKey, end_offset: int, checkpoint: str | None) -> None:
        self._acknowledger.acknowledge(key, 0, end_offset, checkpoint)

    def report_unhandled(self, key: HeldKey, arrived_ms: int | None) -> None:
        self._grants.arrivals[key] = arrived_ms

    @property
    def subscription_id(self) -> int:
        return self._membership.requests.subscription_id

    async def flush_acknowledgements(self, key: HeldKey) -> None:
        await self._acknowledger.flush(self._holdings.finish_seconds, [key])


class _GrantFeed(RecordFeed):
    """Calls the program's function once per held segment, instead of reading records."""

    reads_by_call = True

    def __init__(
        self, topic: str, positions: Mapping[SegmentId, Offset], spawn: Spawn, member: _ExternalGroupMember
    ) -> None:
        super().__init__(topic, SubscriptionType.STREAM, positions, spawn)
        self.read: Read | None = None
        self.started = asyncio.Event()
        """Set together with ``read``: segments can be granted before the program calls `run`."""
        self.turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """Segment → held by its call, which may still be at work although its holding was dropped."""
        self.arrivals: dict[HeldKey, int | None] = {}
        """What was reported last, see `GrantedSegment.report_unhandled`."""
        self._member = member

    def open(self, store: Store, shard: int, topic_id: int) -> None:
        raise AssertionError(f"topic {topic_id} of shard {shard} is external: nothing of it is in {store}")

    def begin(self, grant: Grant, after: asyncio.Task[None] | None = None) -> HeldSegment:
        holding = super().begin(grant, after)
        # A running call counts as one unacknowledged delivery, so a revocation waits for its end.
        holding.delivered = holding.acknowledged + 1
        return holding

    def _reader(self, grant: Grant, _start: int, /) -> Reader:
        return _CallbackReader(GrantedSegment(grant, self._member), self, grant.generation)

    @property
    def unhandled(self) -> list[tuple[int, int, int | None]]:
        return [(*key, arrived_ms) for key, arrived_ms in self.arrivals.items()]

    def reader_ended(self, reader: _CallbackReader, segment: int, generation: int) -> None:
        self.arrivals.pop((segment, generation), None)
        self.totals.asked += 1  # It can be given segments again, if it was too slow.
        holding = self.holdings.get((segment, generation))
        if holding is not None and holding.reader is reader:
            holding.acknowledged = holding.delivered
            holding.progress.set()


class _CallbackReader:
    """One call of the program's function. See `headgate.client.consuming.record_feed.Reader`."""

    def __init__(self, segment: GrantedSegment, feed: _GrantFeed, generation: int) -> None:
        self._segment = segment
        self._feed = feed
        self.generation = generation

    async def run(self) -> None:
        try:
            await self._feed.started.wait()
            assert self._feed.read is not None, "started without the program's function"
            async with self._feed.turns.setdefault(self._segment.segment, asyncio.Lock()):
                if not self._segment.finished:
                    await self._feed.read(self._segment)
        finally:
            self._feed.reader_ended(self, self._segment.segment, self.generation)
        if not self._segment.finished:
            raise HeadgateError(
                f"reading {self._segment.label} returned before its end: call finish() once it is read to the end"
            )

    def has_read(self, chunk: int) -> bool:
        """Return True: there are no chunks to read."""
        return chunk >= 0
