"""The public consumer: the records of the segments that it has been granted, in order per segment.

1. Undelivered records of a revoked segment are dropped: its next holder delivers them.
2. The revocation of a segment is confirmed once every record delivered from it is durably
   acknowledged, or shortly before the leader would fence the segment (`finish_seconds`).
3. The consumer registers again at every leader announcement, which also follows every reconnection.
   It keeps its incarnation, and continues to deliver meanwhile. A heartbeat without a reply is no
   reason to: a registration costs a leader that is late already far more.
4. Pushes can be lost, so every heartbeat lists what the consumer holds, and the leader pushes what
   is missing again.
5. A newer program of the same name, an eviction by a command, or the deletion of the subscription
   fences this consumer: the iterator raises FencedError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Self

from headgate.arguments import require_seconds
from headgate.client.acknowledger import Acknowledger
from headgate.client.admin import Admin
from headgate.client.admin_values import SeekResult
from headgate.client.client_lease import ClientLease
from headgate.client.confirmations import Confirmations
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.consumer_requests import ConsumerOptions, ConsumerRequests, subscription_type
from headgate.client.decisions.held_segments import Changes, HeldSegments, finish_seconds
from headgate.client.record_feed import ConsumedRecord, RecordFeed
from headgate.config import ClientConfig
from headgate.errors import ConfigError, FencedError, HeadgateError, NoLeaderError, RequestRejectedError
from headgate.event_log import get_logger
from headgate.model.bucket_ranges import slice_of
from headgate.model.entries import Balance, Order, SubscriptionType
from headgate.model.hashing import shard_of
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol import messages as m

ACK_INTERVAL_SECONDS: Final = 0.1
CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""For the last acknowledgements, and again for leaving."""

__all__ = ["ConsumedRecord", "Consumer"]

log = get_logger(__name__)


class Consumer:
    """Receives records of one subscription.

    Use it as an async context manager, and iterate over it. Nothing happens before it is entered.

    Args:
        config: the cluster, or a client that is connected to it.
        topic: what to read.
        subscription: whose position to use. It is created if it does not exist.
        type: how to acknowledge, see `SubscriptionType`; a name is accepted in any case.
        name: name of this consumer. A consumer of the same name resumes what it held before.
            None: a new name each time.
        start: where a new subscription starts.
        order: "strict": a segment waits for its ancestors; "none": it does not. None: "strict"
            for STREAM, "none" otherwise.
        positions: CHECKPOINT only: where to continue, as `positions` returned it.
        balance: how to balance segments across the consumers of the subscription: by "count",
            or by "load" (traffic and backlog, damped). None: the subscription's current
            setting, initially "count".
        capacity: load of this consumer relative to an ordinary one, 0.01 to 10. Used when the
            subscription is balanced by load.
        connect_timeout_seconds: how long entering may take: connecting, and registering with
            the leader.

    Raises:
        ConfigError, InvalidNameError: an argument is invalid. The text names it.

    """

    _reads_source = False
    """Whether it reads an external topic's source (headgate.client.external_consumer)."""

    def __init__(
        self,
        config: ClientConfig | Client,
        *,
        topic: str,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.STREAM,  # noqa: A002 - the domain's term
        name: str | None = None,
        start: m.Start = "latest",
        order: Order | None = None,
        positions: str | None = None,
        balance: Balance | None = None,
        capacity: float = 1.0,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._kind = subscription_type(type)
        if positions is not None and self._kind != SubscriptionType.CHECKPOINT:
            raise ConfigError(
                f"positions: only for type CHECKPOINT; the leader stores those of a {self._kind} subscription"
            )
        options = ConsumerOptions(self._kind, start, order, balance, capacity, self._reads_source)
        self._lease = ClientLease(config, "consumer", with_store=not self._reads_source)
        self._client = self._lease.client
        self._connect_timeout_seconds = require_seconds("connect_timeout_seconds", connect_timeout_seconds)
        self._topic = m.require_name("topic", topic)
        self._subscription = m.require_name("subscription", subscription)
        self.name = m.require_name("consumer", name or f"consumer-{self._client.rng.getrandbits(48):012x}")
        self._requests = ConsumerRequests(
            self._client, topic=topic, subscription=subscription, consumer=self.name, options=options
        )
        self.incarnation = 0
        """When the consumer was entered, in milliseconds: rises with every start of the program."""
        self._subscription_id: int | None = None  # Of the last registration.
        self._held_segments = HeldSegments()
        token = None if positions is None else self._requests.use_positions(positions)
        self._feed = self._new_feed({} if token is None else token.positions)
        self._feed.own.update(() if token is None else token.held)
        self._feed.head.history = self._requests.history
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HeadgateError | None = None
        self._opened = False
        self._closed = False
        self._registration_needed = asyncio.Event()
        self._interval_seconds = 5.0
        self._finish_seconds = 0.0
        """How long the records delivered from a revoked segment can be acknowledged."""
        self._cleanup_callbacks: list[Callable[[], None]] = []
        self._log = log.bind(topic=topic, subscription=subscription, consumer=self.name)
        self._confirmations = Confirmations(self._requests.confirm, self._on_confirmed, self._log)

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        return RecordFeed(self._topic, self._kind, positions, self._spawn)

    # Opening and closing

    async def __aenter__(self) -> Self:
        """Connect and register.

        Raises:
            NoLeaderError: the cluster, or the leader of the topic's shard, cannot be reached.
            RequestRejectedError: the leader refuses, e.g. because the topic does not exist.
            PositionOutOfRangeError: ``positions`` are of another topic, or one is not in its segment.
            OtherHistoryError: ``positions`` are of a ledger that was replaced by an older one.

        """
        deadline = asyncio.get_running_loop().time() + self._connect_timeout_seconds
        shards = await self._lease.open(self._connect_timeout_seconds)
        try:
            await self._open(shards, deadline)
        except BaseException:
            await self._release()
            raise
        self._opened = True
        return self

    async def _open(self, shards: int, deadline: float) -> None:
        self._shard = shard_of(self._topic, shards)
        self.incarnation = self._client.now_ms()
        self._requests.open(self._shard, self.incarnation)
        self._feed.on_skipped = self._on_skipped
        self._acknowledger = Acknowledger(
            self._client,
            self._shard,
            topic=self._topic,
            subscription=self._subscription,
            consumer=self.name,
            incarnation=self.incarnation,
            kind=self._kind,
            interval_seconds=ACK_INTERVAL_SECONDS,
            history=self._requests.history,
            on_fenced=lambda reason: self._fail(FencedError("fenced", reason)),
        )
        self._client.replies.expect_pushes(self._push_key, self._on_push)
        self._cleanup_callbacks.append(lambda: self._client.replies.forget_pushes(self._push_key))
        self._cleanup_callbacks.append(
            await self._client.watch_head(self._shard, lambda head: self._feed.head.advance(head.head))
        )
        await self._acknowledger.start()
        await self._register(max(0.0, deadline - asyncio.get_running_loop().time()))
        self._cleanup_callbacks.append(self._client.on_leader(self._shard, lambda _: self._registration_needed.set()))
        self._spawn(self._maintain_registration(), "membership")
        self._spawn(self._confirmations.run(), "confirmations")

    async def __aexit__(self, exc_type: object, *_: object) -> None:
        """Flush acknowledgements and leave; a few seconds at most."""
        self._closed = True
        try:
            await self._feed.close()
            if not isinstance(self._failure, FencedError):
                if not await self._acknowledger.flush(CLOSE_TIMEOUT_SECONDS):
                    self._log.warning("consumer.acknowledgements_not_flushed")
                await self._leave()
        finally:
            await self._release()

    async def _leave(self) -> None:
        try:
            await self._requests.leave(CLOSE_TIMEOUT_SECONDS)
        except (NoLeaderError, RequestRejectedError) as error:
            self._log.warning("consumer.leave_failed", reason=str(error))

    async def _release(self) -> None:
        for remove in self._cleanup_callbacks:
            remove()
        self._cleanup_callbacks.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if hasattr(self, "_acknowledger"):
            await self._acknowledger.close(0)
            await self._feed.close()
        await self._lease.close()

    # Receiving

    def __aiter__(self) -> Self:
        """Iterate over records as they arrive; ends when the consumer is closed."""
        return self

    async def __anext__(self) -> ConsumedRecord:
        """Return the next record.

        Raises:
            FencedError: a newer program of this name is running, a command evicted this one, or the
                subscription was deleted.
            OtherHistoryError: an older ledger was put back while this consumer ran.
            PositionOutOfRangeError: CHECKPOINT: a segment was pruned before this consumer read it to its end.
            HeadgateError: reading failed for good, or this consumer is not open.

        """
        while True:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise StopAsyncIteration
            if not self._opened:
                raise HeadgateError("this consumer is not open; use it as an async context manager")
            record = await self._feed.next()
            if record is not None:
                return record

    async def get_many(self, max_records: int = 500, timeout_seconds: float = 0.0) -> list[ConsumedRecord]:
        """Return the records that are available, at most ``max_records``.

        Waits up to ``timeout_seconds`` for the first record, and for no further one. Returns an
        empty list if none came. Records of one segment are in the order of their offsets.

        Raises:
            ConfigError: an argument is out of range.
            FencedError: a newer program of this name is running, a command evicted this one, or the
                subscription was deleted.
            HeadgateError: reading failed for good, or this consumer is closed.

        """
        if max_records < 1:
            raise ConfigError(f"get_many: max_records={max_records} has to be 1 or more")
        require_seconds("get_many: timeout_seconds", timeout_seconds, at_least=0.0)
        try:
            async with asyncio.timeout(timeout_seconds):
                first = await anext(self)
        except TimeoutError:
            return []
        except StopAsyncIteration:
            raise HeadgateError("get_many: this consumer is closed") from None
        records = [first]
        while len(records) < max_records and (record := self._feed.next_nowait()) is not None:
            records.append(record)
        return records

    async def acknowledge(self, record: ConsumedRecord) -> None:
        """Acknowledge ``record``; with STREAM also every record delivered before it in its segment.

        The acknowledgement is sent in the background, with the next batch. This method waits while too
        many are collected. If another consumer holds the segment by now, it is counted in `rejected`.

        Raises:
            TypeError: ``record`` is no record of a consumer.
            HeadgateError: the subscription is of type CHECKPOINT.

        """
        if not isinstance(record, ConsumedRecord):
            raise TypeError(
                f"acknowledge: {record!r:.60} is of type {type(record).__name__}; give one ConsumedRecord, as the "
                "iterator or get_many() returned it"
            )
        if self._kind == SubscriptionType.CHECKPOINT:
            raise HeadgateError(
                "a CHECKPOINT consumer does not acknowledge: store its positions, and pass them to the next consumer"
            )
        if self._feed.acknowledge(record):
            self._acknowledger.acknowledge(record.segment, record.generation, record.offset)
            self._feed.acknowledge_skipped(record.segment, record.generation)
            await self._acknowledger.wait_for_capacity()

    async def seek(
        self,
        *,
        to: m.Start | None = None,
        timestamp_ms: int | None = None,
        positions: Mapping[SegmentId, Offset] | None = None,
    ) -> SeekResult:
        """Move the subscription, for all its consumers.

        The arguments and errors are those of `Admin.seek`. The move is durable when this returns.
        The leader issues new grants with higher generations. A consumer learns of that by a message,
        so it may still deliver a few records of lower generations from before the seek; their
        acknowledgements are counted in `rejected`. A CHECKPOINT subscription cannot be moved.
        """
        async with Admin(self._client) as admin:
            return await admin.seek(
                self._topic, self._subscription, to=to, timestamp_ms=timestamp_ms, positions=positions
            )

    @property
    def positions(self) -> str:
        """Where the next consumer continues, as text; see ``positions`` of the constructor.

        The text names the topic and the history of the positions. Others refuse it. Raises
        HeadgateError before the consumer is entered.
        """
        return self._requests.positions_text(self._feed.positions, self._feed.own)

    @property
    def segments(self) -> list[SegmentId]:
        """The segments that are held now."""
        return sorted({SegmentId(segment) for segment, _ in self._feed.holdings})

    @property
    def acknowledged(self) -> int:
        """Number of acknowledgements that the leader has accepted."""
        return self._acknowledger.committed

    @property
    def rejected(self) -> int:
        """Number of acknowledgements that the leader has rejected because they were late."""
        return self._acknowledger.rejected

    async def caught_up(self) -> bool:
        """Return whether this consumer has delivered every record that is durable now.

        False also while a segment of the subscription is blocked or moving. Segments of other
        consumers do not count.

        Raises:
            NoLeaderError: no leader replies.
            FencedError: a newer program of this name is running.

        """
        alive = await self._heartbeat()
        if alive.blocked or not alive.stable or not self._feed.has_delivered(alive.head):
            return False
        # Without a grant whose push was lost, there seems to be nothing to read: compare the list.
        held = self._feed.generations()
        await self._register()
        return held == self._feed.generations() and self._feed.has_delivered(alive.head)

    # Membership

    @property
    def _push_key(self) -> tuple[str, str, str]:
        return self._topic, self._subscription, self.name

    async def _register(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._held_segments.registration_requested()
        registered, leader_epoch = await self._requests.register(
            self._subscription_id, self._feed.own_positions, timeout_seconds
        )
        self._subscription_id = registered.subscription_id
        self._feed.head.advance(registered.head)
        self._interval_seconds = registered.heartbeat_interval_seconds
        self._finish_seconds = finish_seconds(registered.revoke_timeout_seconds)
        self._open_feed(registered.topic_id)
        self._apply_changes(self._held_segments.registered(leader_epoch, registered))
        self._feed.own = {SegmentId(segment) for segment, _ in self._feed.holdings}

    def _open_feed(self, topic_id: int) -> None:
        self._feed.open(self._client.store, self._shard, topic_id)

    async def _heartbeat(self) -> m.HeartbeatReply:
        self._held_segments.may_lack_grants = False
        alive = await self._requests.heartbeat(self._feed.generations())
        self._feed.head.advance(alive.head)
        return alive

    async def _maintain_registration(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._held_segments.may_lack_grants else self._interval_seconds):
                    await self._registration_needed.wait()
            registers = self._registration_needed.is_set()
            try:
                if registers:
                    self._registration_needed.clear()
                    await self._register()
                else:
                    await self._heartbeat_unless_evicted()
            except NoLeaderError as error:
                self._log.warning("consumer.no_leader", reason=str(error))
                if registers:
                    self._registration_needed.set()

    async def _heartbeat_unless_evicted(self) -> None:
        try:
            await self._heartbeat()
        except FencedError:
            raise
        except RequestRejectedError as error:
            # Evicted while disconnected. The registration shows whether for good.
            self._log.warning("consumer.heartbeat_rejected", reason=str(error))
            self._apply_changes(self._held_segments.drop_all())
            self._registration_needed.set()

    def _on_push(self, push: m.Push) -> None:
        if push.incarnation != self.incarnation:
            return
        if isinstance(push, m.AssignmentChanged):
            self._apply_changes(self._held_segments.changed(push))
        elif isinstance(push, m.ConsumerFenced) and self._feed.is_open:
            self._log.warning("consumer.fenced", reason=push.reason)
            known = self._client.leader(self._shard)
            if known is None or push.leader_epoch >= known.leader_epoch:
                self._apply_changes(self._held_segments.drop_all())
                # The reply shows whether another program has this name, or this one was only evicted.
                self._registration_needed.set()

    # Segments

    def _apply_changes(self, changes: Changes) -> None:
        if self._closed:
            return
        for segment, generation in changes.stop:
            self._feed.drop(segment, generation)
            self._log.info("segment.dropped", segment=segment, generation=generation)
            if self._kind == SubscriptionType.CHECKPOINT and self._opened:
                self._registration_needed.set()  # The leader says whether it was pruned before its end.
        for revocation in changes.finish:
            self._spawn(self._finish(revocation), f"finish-{revocation.segment}")
        for revocation in changes.confirm:
            self._confirmations.add(revocation)
        for grant in changes.start:
            self._feed.begin(grant)
            segment_slice = slice_of(grant.segment, grant.first_bucket, grant.end_bucket)
            self._log.info("segment.granted", segment=str(segment_slice), generation=grant.generation)

    def _on_skipped(self, grant: m.Grant, first_offset: int, end_offset: int) -> None:
        """Acknowledge records whose keys are in other consumers' buckets."""
        self._acknowledger.acknowledge_range(grant.segment, grant.generation, first_offset, end_offset)

    async def _finish(self, revocation: m.Revocation) -> None:
        """Rule 2."""
        holding = self._feed.holdings[revocation.segment, revocation.generation]
        self._feed.stop(holding)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._finish_seconds
        if self._kind != SubscriptionType.CHECKPOINT:
            try:
                async with asyncio.timeout_at(deadline):
                    while not holding.is_acknowledged(self._kind) and self._feed.holds(holding):
                        holding.progress.clear()
                        await holding.progress.wait()
            except TimeoutError:
                self._log.warning("segment.released_unacknowledged", segment=revocation.segment)
            await self._acknowledger.flush(max(1.0, deadline - loop.time()))
        if self._feed.holds(holding):
            self._confirmations.add(revocation)

    def _on_confirmed(self, revocation: m.Revocation) -> None:
        self._held_segments.confirmed(revocation)
        self._feed.drop(revocation.segment, revocation.generation)
        self._feed.own.discard(SegmentId(revocation.segment))

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, HeadgateError):
            self._fail(error)
        elif error is not None:
            # A bug: the iterator raises it, with its own traceback as the cause.
            failure = HeadgateError(f"{task.get_name()} failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, error: HeadgateError) -> None:
        if self._failure is None:
            self._failure = error
            self._log.error("consumer.failed", reason=str(error))
            self._feed.wake()
