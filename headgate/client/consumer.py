"""The public consumer: the records of the segments that it has been granted, in order per segment.

headgate.client.membership keeps it registered, and starts and finishes segments. headgate.client.consuming delivers
records and stores acknowledgements.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, Self

from headgate.backoff import Backoff, BackoffSchedule
from headgate.client.admin import Admin, Seen, explained_topic, subscription_type
from headgate.client.client_metrics import ConsumerMetrics
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client, ClientLease
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.acknowledger import Acknowledger
from headgate.client.consuming.consumer_context import ConsumerContext, ConsumerOptions, ConsumerRequests, ConsumerTasks
from headgate.client.consuming.deliveries import Deliveries
from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.interceptors import Interceptor
from headgate.client.membership import Holdings, Membership, OnGranted, OnRevoked, SegmentCallbacks
from headgate.client.processing.calls import refuse_own_caller, stopped_by_sigterm
from headgate.client.processing.runner import TURN_RECORDS, Handler, Runner, RunOptions, RunReport
from headgate.client.processing.schedule import BatchPolicy, LookAhead, RetryPolicy
from headgate.errors import (
    AcknowledgementsNotStoredError,
    ConfigError,
    FencedError,
    HeadgateError,
    RequestRejectedError,
)
from headgate.log.event_log import get_logger
from headgate.model.entries import Balance, Order, SubscriptionType
from headgate.model.identifiers import Offset, SegmentId
from headgate.protocol.replies import Grant, HeartbeatReply
from headgate.protocol.request_fields import MAX_DELAY_MS, Behind, Start, require_name
from headgate.settings.arguments import require_count, require_seconds
from headgate.settings.config import ClientConfig
from headgate.views.subscriptions import SeekResult

CATCH_UP_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0)
"""Between two questions whether everything is read."""
SILENT_PASSES: Final = 10
"""After so many questions without a record, some seconds, a consumer that reads to the end logs what it waits for."""
CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""For the last acknowledgements, and again for leaving."""

DEFAULT_RETRY: Final = RetryPolicy()
DEFAULT_LOOK_AHEAD: Final = LookAhead()

__all__ = ["ConsumedRecord", "Consumer"]

log = get_logger(__name__)


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    ENDED = "ended"  # Open, and delivers nothing any more.
    CLOSED = "closed"


class Consumer:
    """Receives records of one subscription.

    Use it as an async context manager, and `run` it or iterate over it. Nothing happens before it is entered.

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
        behind: CHECKPOINT only: "error": `PositionOutOfRangeError` if retention has deleted records that
            are not read; "continue": with the first records that are kept.
        balance: how to balance segments across the consumers of the subscription: by "count",
            or by "load" (traffic and backlog, damped). None: the subscription's current setting, initially "count".
        capacity: load of this consumer relative to an ordinary one, 0.01 to 10. Used when the
            subscription is balanced by load.
        on_granted: called with a list of segments before their first record is delivered; a part of one is a
            `BucketRange`. A function that is no coroutine function is called in a thread.
        on_revoked: called once for each granted segment when it goes, after the handlers of `run`, with a list of
            segments and the seconds that are left to acknowledge. 0.0: another consumer may read them already.
        connect_timeout_seconds: how long entering may take: connecting, and registering with the leader.
        interceptors: what `run` adds around each call of the handler, the outermost first.

    Raises:
        ConfigError, InvalidNameError: an argument is invalid. The text names it.
    """

    _reads_source = False  # Whether it reads an external topic's source (headgate.client.external_consumer).
    _state = _State.NEW

    def __init__(
        self,
        config: ClientConfig | Client,
        *,
        topic: str,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.STREAM,  # noqa: A002 - the domain's term
        name: str | None = None,
        start: Start = "latest",
        order: Order | None = None,
        positions: str | None = None,
        behind: Behind = "error",
        balance: Balance | None = None,
        capacity: float = 1.0,
        on_granted: OnGranted | None = None,
        on_revoked: OnRevoked | None = None,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        self._kind = subscription_type(type)
        if positions is not None and self._kind != SubscriptionType.CHECKPOINT:
            raise ConfigError(f"positions: only for type CHECKPOINT; the leader stores those of a {self._kind}")
        if behind == "continue" and self._kind != SubscriptionType.CHECKPOINT:
            raise ConfigError(f'behind="continue": only for type CHECKPOINT; a {self._kind} passes over gaps')
        options = ConsumerOptions(self._kind, start, order, balance, capacity, self._reads_source, behind)
        self._lease = ClientLease(config, "consumer", connect_timeout_seconds, with_store=not self._reads_source)
        self._client = self._lease.client
        self._topic = topic = require_name("topic", topic)
        self._subscription = subscription = require_name("subscription", subscription)
        drawn = f"consumer-{self._client.rng.getrandbits(48):012x}"
        self.name = require_name("consumer", drawn if name is None else name)
        self._interceptors = interceptors
        self._log = log.bind(topic=topic, subscription=subscription, consumer=self.name)
        self._tasks = ConsumerTasks(self.name, self._log)
        self._tasks.on_failure = self._on_failure
        requests = ConsumerRequests(
            self._client, topic=topic, subscription=subscription, consumer=self.name, options=options
        )
        self._acknowledger = Acknowledger(requests.acknowledge, self._kind, draw=self._client.rng.random, log=self._log)
        token = None if positions is None else requests.use_positions(positions)
        self._feed = self._new_feed({} if token is None else token.positions)
        self._feed.own.update(() if token is None else token.held)
        self._feed.head.history = requests.history
        self._feed.on_skipped = self._on_skipped
        context = ConsumerContext(
            self._kind, self._client, requests, self._feed, self._acknowledger, self._tasks, self._log
        )
        self._deliveries = Deliveries(context)
        callbacks = SegmentCallbacks(on_granted, on_revoked, self._tasks.spawn, self._log)
        self._holdings = Holdings(context, callbacks)
        self._membership = Membership(context, self._holdings, self._deliveries, open_feed=self._open_feed)

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        return RecordFeed(self._topic, self._kind, positions, self._tasks.spawn)

    def _open_feed(self, shard: int, topic_id: int) -> None:
        self._feed.open(self._client.store, shard, topic_id)

    def _on_skipped(self, grant: Grant, first_offset: int, end_offset: int) -> None:
        """Acknowledge records whose keys are in other consumers' buckets."""
        self._acknowledger.acknowledge((grant.segment, grant.generation), first_offset, end_offset)

    def _on_failure(self) -> None:
        self._feed.queue.wake()
        self._acknowledger.stop()

    # Opening and closing

    async def __aenter__(self) -> Self:
        """Connect and register.

        Raises:
            NoLeaderError: the cluster, or the leader of the topic's shard, cannot be reached.
            RequestRejectedError: the leader refuses, e.g. because the topic does not exist.
            PositionOutOfRangeError: ``positions`` are of another topic, or one is not in its segment.
            OtherHistoryError: ``positions`` are of a ledger that was replaced by an older one.
            LedgerError: the store has another ledger than the daemons, or none.
        """
        if self._state is not _State.NEW:
            raise HeadgateError("this consumer was opened before; create another one")
        deadline = asyncio.get_running_loop().time() + self._lease.timeout_seconds
        await self._lease.open()
        try:
            await self._join(deadline)
        except BaseException:
            await self._release()
            raise
        self._tasks.spawn(self._acknowledger.run(), "acknowledgements")
        if self._kind == SubscriptionType.QUEUE:
            self._deliveries.start()
        self._state = _State.OPEN
        return self

    def _require_record(self, method: str, record: object) -> None:
        if not isinstance(record, ConsumedRecord):
            raise TypeError(f"{method}: {record!r:.60} is no ConsumedRecord as the iterator and get_many() return them")
        self._lease.require_own_loop()
        if record.topic != self._topic or not self._feed.may_be_delivered(record):
            place = f"offset {record.offset} of segment {record.segment} of topic {record.topic!r}"
            raise ConfigError(f"{method}: this consumer has not delivered a record at {place}")

    async def _join(self, deadline: float) -> None:
        """Register where the topic is by now: what is remembered of its place is a hint."""
        clock = asyncio.get_running_loop().time

        async def open_at(shard: int) -> None:
            self._membership.close()
            await self._membership.open(shard, max(0.0, deadline - clock()))

        try:
            await self._client.places.at(self._topic, open_at, deadline - clock())
        except RequestRejectedError as error:
            raise await explained_topic(self._client, self._topic, error) from None

    async def __aexit__(self, exc_type: object, exc: BaseException | None = None, *_: object) -> None:
        """Flush acknowledgements and leave; a few seconds at most.

        If the block ends with an error, the deliveries of a QUEUE that had begun count as failed. An exit with a code
        other than 0 is an error, a cancellation or an interrupt is none.

        Raises AcknowledgementsNotStoredError: something that was acknowledged is not stored. If the block ends with
        an exception, that one is raised, and this is logged.
        """
        if self._state not in (_State.OPEN, _State.ENDED):
            return
        self.refuse_own_caller("close")
        self._lease.require_own_loop()
        self._state = _State.CLOSED
        unstored: AcknowledgementsNotStoredError | None = None
        try:
            await self._holdings.close()  # Handlers end, and `on_revoked` may still acknowledge.
            self._lease.opened = False
            failed = bool(exc.code) if isinstance(exc, SystemExit) else isinstance(exc, Exception)
            unstored = await self._flush_and_leave(failed=failed)
        finally:
            await self._release()
        if unstored is not None and exc_type is None:
            raise unstored

    async def close(self) -> None:
        """Flush acknowledgements and leave, like the end of the ``async with`` block. A second call does nothing.

        Raises AcknowledgementsNotStoredError: something that was acknowledged is not stored; HeadgateError: it would
        wait for the handler or callback that calls it.
        """
        await self.__aexit__(None)

    def refuse_own_caller(self, what: str) -> None:
        """Raise HeadgateError if a function that this consumer calls is what calls ``what``: it would wait for itself.

        :meta private:
        """
        readers = [each.read_task for each in list(self._feed.holdings.values())]  # of an external topic
        workers = () if (run := self._holdings.handling) is None else run.workers.tasks
        refuse_own_caller(what, [self._holdings.callbacks.caller, *readers, *workers])

    async def _flush_and_leave(self, *, failed: bool) -> AcknowledgementsNotStoredError | None:
        """Return the error of the last flush. A fenced consumer has no segments, so there is nothing to wait for."""
        unstored = None
        fenced = isinstance(self._tasks.failure, FencedError)
        try:
            await self._acknowledger.flush(0.0 if fenced else CLOSE_TIMEOUT_SECONDS)
        except AcknowledgementsNotStoredError as error:
            unstored, failed = error, failed or self._acknowledger.unstored.has_negative()
            # A negative one that is not stored is a failure of the whole program.
            self._log.warning("consumer.acknowledgements_not_stored", reason=str(error))
        if not fenced:
            await self._membership.leave(CLOSE_TIMEOUT_SECONDS, failed=failed)
        return unstored

    async def _release(self) -> None:
        self._state = _State.CLOSED
        self._membership.close()
        self._acknowledger.stop()
        try:
            await self._tasks.cancel()
            await self._holdings.close()
        finally:  # also if this is cancelled
            await self._lease.close()

    # Receiving

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        retry: RetryPolicy = DEFAULT_RETRY,
        batch: BatchPolicy | None = None,
        look_ahead: LookAhead = DEFAULT_LOOK_AHEAD,
        stop_seconds: float = 20.0,
        until_caught_up: bool = False,
    ) -> RunReport:
        """Call ``handler`` for each record, and acknowledge what it has handled.

        Records of one key are handled one at a time and in order, those of different keys in parallel. STREAM
        acknowledges, and CHECKPOINT moves `positions`, up to the first record of a segment that is not handled. QUEUE
        acknowledges each record. However a run ends (`stop`, SIGTERM, cancellation, an error), no further record is
        begun, and handlers at work have ``stop_seconds`` to end. SIGTERM counts in the main thread, if nothing else in
        the program handles it.

        Args:
            handler: a coroutine function, or a function that is called in threads. It gets one record, or a list of
                them with ``batch``. A record is handled when it returns, whatever it returns.
            concurrency: calls at the same time, at most.
            retry: what happens when the handler raises.
            batch: how records are collected for one call; None: one record each.
            look_ahead: how far records are read beyond those that are not handled.
            stop_seconds: after this time, handlers are cancelled. A thread cannot be.
            until_caught_up: end as the iteration of `until_caught_up` does, once everything is handled.

        Raises:
            HandlerFailedError: the handler failed for the last time, and the policy's last action is to stop.
            SystemExit: the handler raised it; it ends the run like a failure.
            ConfigError: an argument is out of range.
            AcknowledgementsNotStoredError: see `flush`.
            HeadgateError: what the iterator raises; or `run` is called during another call.
        """
        self._lease.require_own_loop()
        options, feed = RunOptions(concurrency, retry, batch, look_ahead, stop_seconds), self._feed
        self._require_no_run("run")
        runner = self._runner(handler, options)
        self._holdings.handling, feed.positions_follow_handling = runner, self._kind == SubscriptionType.CHECKPOINT
        try:
            with stopped_by_sigterm(partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)):
                report = await runner.run((self._until_caught_up if until_caught_up else self._following)(TURN_RECORDS))
        finally:
            self._holdings.handling, feed.positions_follow_handling = None, False
            if runner.report.unhandled:  # they were delivered, so an acknowledgement of a later one would include them
                self.stop()
        await self._acknowledger.flush(DEFAULT_TIMEOUT_SECONDS)  # also if it was closed meanwhile
        if until_caught_up:
            await self._store_dead_letters()
        return report

    def _require_no_run(self, what: str) -> None:
        if self._holdings.handling is not None:
            raise HeadgateError(f"{what}: this consumer runs already, and run() takes its records; create another one")

    async def _store_dead_letters(self) -> None:
        """Wait until those are stored that this consumer can send: handlers may have failed after the last delivery."""
        pauses = BackoffSchedule(CATCH_UP_BACKOFF, self._client.rng.random)
        while self._state is _State.OPEN and self._sends(await self._membership.heartbeat()):  # noqa: ASYNC110 - the leader knows
            await asyncio.sleep(pauses.next_seconds())

    def _in_hand(self) -> set[tuple[tuple[int, int], int]]:
        """Return what handlers of a QUEUE may still fail, which would come again. An incomplete batch begins."""
        run, held = self._holdings.handling, self._feed.holdings
        if run is None:
            return set()
        run.hurry()
        return {(key, offset) for key, each in held.items() for offset in each.deliveries.unacknowledged_offsets}

    def _sends(self, alive: HeartbeatReply) -> bool:
        """Return whether this consumer has dead letters to store, and can."""
        return bool(alive.dead_letters) and not self._deliveries.sender.problem

    def _runner(self, handler: Handler, options: RunOptions) -> Runner:
        wrappers = [
            partial(each.intercept_handle, subscription=self._subscription, consumer=self.name)
            for each in self._interceptors
        ]
        acknowledge, draw = self._handled, self._client.rng.random
        return Runner(
            handler, options, self._deliveries, self._kind, acknowledge, wrappers=wrappers, draw=draw, log=self._log
        )

    def stop(self) -> None:
        """End `run` and every iteration, without waiting for it. Then close the consumer."""
        if self._state is _State.OPEN:
            self._state = _State.ENDED
        if self._holdings.handling is not None:
            self._holdings.handling.stop()
        self._feed.queue.wake()

    def __aiter__(self) -> Self:
        """Iterate over records as they arrive; ends when the consumer is stopped or closed."""
        return self

    async def __anext__(self) -> ConsumedRecord:
        """Return the next record.

        Raises:
            FencedError: a newer program of this name is running, a command evicted this one, or the
                subscription was deleted.
            OtherHistoryError: an older ledger was put back while this consumer ran.
            PositionOutOfRangeError: CHECKPOINT: a segment was pruned before this consumer read it to its end.
            HeadgateError: reading failed for good, this consumer is not open, or `run` takes its records.
        """
        self._require_no_run("the iteration")
        while True:
            if not (records := self._take(1)):
                await self._feed.queue.changed()
            elif begun := await self._hand_over(records):
                return begun[0]

    async def _following(self, max_records: int) -> AsyncGenerator[list[ConsumedRecord], None]:
        """Yield what the iteration returns, some records at a time."""
        with contextlib.suppress(StopAsyncIteration):
            while True:
                if records := self._take(max_records):
                    yield records
                else:
                    await self._feed.queue.changed()

    async def _hand_over(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """Begin the deliveries of ``records``. `run` does so itself, when it calls the handler."""
        begins = self._holdings.handling is None and self._deliveries.begins
        return await self._deliveries.hand_over(records) if begins else records

    def _take(self, max_records: int) -> list[ConsumedRecord]:
        """Return the next records of the feed, if there are any. They are not handed to the program yet."""
        self._feed.totals.asked += 1
        if self._tasks.failure is not None:
            raise self._tasks.failure
        if self._state in (_State.ENDED, _State.CLOSED):
            raise StopAsyncIteration
        self._lease.require_own_loop()
        while self._deliveries.returned and self._feed.may_deliver:
            record = self._deliveries.returned.popleft()
            if self._feed.is_present(record):
                return [record]
        return self._feed.take(max_records)

    async def get_many(self, max_records: int = 500, timeout_seconds: float = 0.0) -> list[ConsumedRecord]:
        """Return the records that are available, at most ``max_records``.

        Waits up to ``timeout_seconds`` for the first record, and for no further one. Returns an
        empty list if none came. Records of one segment are in the order of their offsets. A record of a QUEUE that has
        failed before is returned alone: if it ends the program, no other record counts as failed with it.

        Raises:
            ConfigError: an argument is out of range.
            FencedError: a newer program of this name is running, a command evicted this one, or the
                subscription was deleted.
            HeadgateError: reading failed for good, or this consumer is closed.
        """
        require_count("get_many: max_records", max_records)
        require_seconds("get_many: timeout_seconds", timeout_seconds, at_least=0.0)
        self._require_no_run("get_many")
        return await self._get_many(max_records, timeout_seconds)

    async def _get_many(self, max_records: int, timeout_seconds: float) -> list[ConsumedRecord]:
        try:
            if not (records := self._take(max_records)):
                async with asyncio.timeout(timeout_seconds):
                    while not (records := self._take(max_records)):
                        await self._feed.queue.changed()
        except TimeoutError:
            return []
        except StopAsyncIteration:
            raise HeadgateError("get_many: this consumer is closed") from None
        while len(records) < max_records and records[0].delivery_count == 1:
            following = self._take(max_records - len(records))
            if not following or following[0].delivery_count > 1:
                self._deliveries.returned.extendleft(following)
                break
            records += following
        return await self._hand_over(records)

    async def until_caught_up(self) -> AsyncGenerator[ConsumedRecord, None]:
        """Iterate over records until everything that was stored when the iteration began is read.

        It ends when this consumer has delivered all of that in its segments, no other segment of the subscription with
        unacknowledged records is blocked, is moving, or belongs to a consumer that has gone, and everything
        acknowledged here is stored. Segments of other connected consumers are theirs to read. Records that are stored
        meanwhile may be delivered too. Acknowledge records in the loop: the children of a split wait for it. Dead
        letters that this consumer can send are stored, and keys that are being resumed are resumed.

        Raises what the iterator and `flush` raise, and NoLeaderError: no leader replies.
        """
        self._require_no_run("until_caught_up")
        async for records in self._until_caught_up(1):
            yield records[0]

    async def _until_caught_up(self, max_records: int) -> AsyncGenerator[list[ConsumedRecord], None]:
        pauses = BackoffSchedule(CATCH_UP_BACKOFF, self._client.rng.random)
        self._lease.require_own_loop()
        goal = (await self._membership.heartbeat()).head
        passes = 0
        in_hand: set[tuple[tuple[int, int], int]] | None = None
        while True:
            try:
                records = await self._get_many(max_records, pauses.next_seconds())
            except HeadgateError:
                if self._state is _State.ENDED and self._tasks.failure is None:
                    break  # `stop` was called.
                raise
            if records:
                pauses.reset()
                passes = 0
                yield records
            elif not self._deliveries.returned and self._feed.has_delivered(goal):
                in_hand = self._in_hand() if in_hand is None else in_hand & self._in_hand()
                if in_hand:
                    continue
                await self.flush()  # What is parked by then is a dead letter.
                alive = await self._membership.heartbeat(asks_unread=True)
                resumes = bool(alive.resuming) and not self._deliveries.parking.problem
                if not (alive.unread or resumes or self._sends(alive)) and self._feed.has_delivered(goal):
                    break
                if (passes := passes + 1) == SILENT_PASSES:
                    waits = self._log.bind(unread=alive.unread, blocked=alive.blocked)
                    waits.warning("consumer.waits", see=f"headgate explain {self._topic} {self._subscription}")
        await self.flush()

    async def acknowledge(self, record: ConsumedRecord) -> None:
        """Acknowledge ``record``; with STREAM also every record delivered before it in its segment.

        The acknowledgement is sent in the background, with the next batch, and again until it is stored: `flush` waits
        for that. This method is a coroutine because it waits while too many acknowledgements are collected. If another
        consumer holds the segment by now, the acknowledgement has no effect, and counts in `metrics`.

        Raises:
            TypeError, ConfigError: ``record`` is no record that this consumer has delivered.
            HeadgateError: the subscription is of type CHECKPOINT, or `run` acknowledges.
        """
        self._require_record("acknowledge", record)
        if self._kind == SubscriptionType.CHECKPOINT:
            raise HeadgateError(
                "a CHECKPOINT consumer does not acknowledge: store its positions, and pass them to the next consumer"
            )
        if self._holdings.handling is not None:
            raise HeadgateError("acknowledge: run() acknowledges each record once its handler has returned")
        await self._acknowledge(record)

    async def _handled(self, record: ConsumedRecord) -> None:
        if self._kind == SubscriptionType.CHECKPOINT:
            self._feed.handled(record)
        else:
            await self._acknowledge(record)

    async def _acknowledge(self, record: ConsumedRecord) -> None:
        if self._kind == SubscriptionType.QUEUE:
            self._deliveries.acknowledge(record)
            await self._acknowledger.wait_for_capacity()
        elif record.parked_number:
            self._deliveries.parking.acknowledge(record)
        elif self._feed.acknowledge(record):
            self._acknowledger.acknowledge((record.segment, record.generation), record.offset, record.offset + 1)
            self._feed.acknowledge_skipped(record.segment, record.generation)
            await self._acknowledger.wait_for_capacity()

    async def negative_acknowledge(
        self, record: ConsumedRecord, *, delay_seconds: float = 0.0, reason: str = ""
    ) -> None:
        """QUEUE: say that ``record`` could not be processed. It is delivered again, and other records meanwhile.

        It is sent and repeated like an acknowledgement, waits up to a day, and keeps 200 characters of ``reason``. One
        of a delivery that has ended has no effect, and counts in `metrics`.

        Raises TypeError, ConfigError: an argument is invalid. HeadgateError: the subscription is no QUEUE.
        """
        self._require_queue("negative_acknowledge", record)
        delay_seconds = require_seconds("negative_acknowledge: delay_seconds", delay_seconds, at_least=0.0)
        if delay_seconds > MAX_DELAY_MS / 1000:
            raise ConfigError(f"negative_acknowledge: delay_seconds={delay_seconds:g} is above a day")
        self._deliveries.fail(record, delay_seconds, reason)
        await self._acknowledger.wait_for_capacity()

    async def park(self, record: ConsumedRecord, *, reason: str = "") -> None:
        """STREAM: send ``record`` and every later record of its key to the dead-letter topic; other keys continue.

        They count as acknowledged, and so does every record delivered before ``record`` in its segment. The key stays
        parked for all consumers until `Admin.resume_key`. Then its records are delivered in order, before newer ones:
        acknowledge each of them, or park it again. If `get_many` has returned later records of the key, park each.

        Waits for the leader, which may park the key although the call is cancelled.

        Raises:
            RequestRejectedError: the subscription has no dead-letter topic, or too many parked keys, or the key is
                longer than 256 bytes. The record is not acknowledged.
            TypeError, HeadgateError: as `acknowledge`; keys of an external topic cannot be parked.
        """
        self._require_record("park", record)
        if self._reads_source or self._kind != SubscriptionType.STREAM:
            raise HeadgateError("park: only a STREAM of a topic whose records are stored by headgate parks keys")
        if self._holdings.handling is not None:
            raise HeadgateError('park: run() parks the key of a record with retry=RetryPolicy(then="park")')
        await self._deliveries.parking.park(record, reason)
        if not record.parked_number:
            await self._acknowledge(record)

    async def extend(self, record: ConsumedRecord, seconds: float) -> None:
        """QUEUE: let the delivery of ``record`` time out ``seconds`` from now, whatever it was before.

        It has no effect without a time-out, or after the end of the delivery. Raises as `negative_acknowledge`.
        """
        self._require_queue("extend", record)
        self._deliveries.extend(record, require_seconds("extend: seconds", seconds, at_least=0.0))

    def _require_queue(self, method: str, record: ConsumedRecord) -> None:
        self._require_record(method, record)
        if self._kind != SubscriptionType.QUEUE:
            raise HeadgateError(f"{method}: a {self._kind} subscription delivers in order; only QUEUE delivers again")

    async def flush(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """Wait until everything that was acknowledged before this call is stored.

        What came too late, because the segment has moved to another consumer or the subscription
        was moved, does not count: see `ConsumerMetrics.rejected_acknowledgements`.

        Raises:
            AcknowledgementsNotStoredError: something is not stored after ``timeout_seconds``, or was given up since the
                last call. It names segments and offsets. What this consumer still holds is sent again meanwhile.
            ConfigError: ``timeout_seconds`` is negative, or no number.
        """
        self._lease.require_own_loop()
        await self._acknowledger.flush(require_seconds("flush: timeout_seconds", timeout_seconds, at_least=0.0))

    async def seek(
        self,
        *,
        to: Start | None = None,
        timestamp_ms: int | None = None,
        positions: Mapping[SegmentId, Offset] | None = None,
    ) -> SeekResult:
        """Move the subscription, for all its consumers.

        The arguments and errors are those of `Admin.seek`. The move is durable when this returns. The leader issues new
        grants with higher generations. A consumer learns of that by a message, so it may still deliver a few records of
        lower generations from before the seek; their acknowledgements count as
        `ConsumerMetrics.rejected_acknowledgements`. A CHECKPOINT subscription cannot be moved.
        """
        self._lease.require_own_loop()
        requests = self._membership.requests
        own = self.topic_id, self._subscription, requests.subscription_id
        seen = Seen(self._topic, *own, history=requests.history.points)
        async with Admin(self._client) as admin:
            return await admin.bound_to(seen).seek(
                self._topic, self._subscription, to=to, timestamp_ms=timestamp_ms, positions=positions
            )

    @property
    def positions(self) -> str:
        """Where the next consumer continues, as text; see ``positions`` of the constructor.

        The text names the topic and the history of the positions. Others refuse it. Raises
        HeadgateError before the consumer is entered.
        """
        return self._membership.requests.positions_text(self._feed.positions, self._feed.own)

    @property
    def topic_id(self) -> int:
        """Id of the topic, which a topic that is created again does not have. Raises like `positions`."""
        return self._membership.topic_id

    @property
    def segments(self) -> list[SegmentId]:
        """The segments that are held now."""
        return sorted({SegmentId(segment) for segment, _ in self._feed.holdings})

    def metrics(self) -> ConsumerMetrics:
        """Return what this consumer has counted. Any thread may call it."""
        feed, totals = self._feed, self._feed.totals
        return ConsumerMetrics(
            delivered_records=totals.delivered,
            redelivered_records=totals.redelivered,
            acknowledged_records=self._acknowledger.unstored.stored,
            rejected_acknowledgements=self._acknowledger.unstored.late,
            handler_calls=totals.handler_calls,
            handler_seconds=totals.handler_seconds,
            held_segments=len(feed.holdings),
            queued_records=feed.queue.records,
            lag_seconds=feed.lag_seconds(self._client.now_ms()),
        )

    async def caught_up(self) -> bool:
        """Return whether this consumer has delivered every record that is durable now.

        False also while a segment of the subscription is blocked or moving. Segments of other consumers do not count.

        Raises:
            NoLeaderError: no leader replies.
            FencedError: a newer program of this name is running.
        """
        self._lease.require_own_loop()
        alive = await self._membership.heartbeat()
        if alive.blocked or not alive.stable or self._deliveries.returned or not self._feed.has_delivered(alive.head):
            return False
        # Without a grant whose push was lost, there seems to be nothing to read: compare the list.
        held = self._feed.generations()
        await self._membership.register()
        return held == self._feed.generations() and self._feed.has_delivered(alive.head)
