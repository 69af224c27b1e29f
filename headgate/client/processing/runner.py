"""One call of `Consumer.run`: it takes records, calls the handler, and acknowledges what is handled.

`headgate.client.processing.schedule` decides which records start. However a run ends (the program's stop, SIGTERM,
cancellation, a failure), no further record is begun, the calls at work have ``stop_seconds`` to end, and what they
have handled is acknowledged. A second cancellation cancels the calls at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headgate.client.client_metrics import ConsumerTotals
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.parking import Parking
from headgate.client.decisions.held_segments import HeldKey
from headgate.client.interceptors import Handle, chained
from headgate.client.processing.calls import awaitable
from headgate.client.processing.schedule import SINGLE, Batch, BatchPolicy, LastAction, LookAhead, RetryPolicy, Schedule
from headgate.errors import ConfigError, HandlerFailedError, RequestRejectedError
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.process.background import end_tasks
from headgate.settings.arguments import require_count, require_seconds, require_type

Handler = Callable[[ConsumedRecord], object] | Callable[[list[ConsumedRecord]], object]
"""The program's function; with batches it gets a list."""
TURN_RECORDS: Final = 32
"""Most records to take before handlers that have ended continue."""
TURN_SECONDS: Final = 0.01
STARTING: Final = 4
"""Most workers that are about to begin."""
CANCEL_SECONDS: Final = 5.0
"""For a handler that was cancelled to end."""
Work = Callable[[], Coroutine[Any, Any, None]]


class Feed(Protocol):
    """The segments that are held; see `headgate.client.consuming.record_feed.RecordFeed`."""

    totals: ConsumerTotals

    @property
    def holdings(self) -> Sized: ...
    @property
    def may_deliver(self) -> bool: ...
    def generations(self) -> list[HeldKey]: ...
    def pause(self, key: HeldKey) -> None: ...
    def resume(self, key: HeldKey) -> None: ...
    def give_back(self, records: list[ConsumedRecord]) -> None: ...


class Intake(Protocol):
    """What becomes of the records; see `headgate.client.consuming.deliveries.Deliveries`."""

    @property
    def feed(self) -> Feed: ...
    @property
    def parking(self) -> Parking: ...
    async def begin(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """QUEUE: return those of ``records`` whose delivery the leader has stored as begun."""

    def fail(self, record: ConsumedRecord, delay_seconds: float, reason: str, /) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    concurrency: int
    retry: RetryPolicy
    batch: BatchPolicy | None
    look_ahead: LookAhead
    stop_seconds: float

    def __post_init__(self) -> None:
        require_count("run: concurrency", self.concurrency)
        require_type("run: retry", self.retry, RetryPolicy)
        require_type("run: batch", SINGLE if self.batch is None else self.batch, BatchPolicy)
        require_type("run: look_ahead", self.look_ahead, LookAhead)
        require_seconds("run: stop_seconds", self.stop_seconds, at_least=0.0)


@dataclass
class RunReport:
    """What one run did, in records."""

    handled: int = 0
    retried: int = 0
    """Counted once for each attempt after the first one."""
    skipped: int = 0
    parked: int = 0
    """STREAM: taken, and sent to the dead-letter topic."""
    redelivered: int = 0
    """QUEUE: acknowledged negatively, once for each delivery that failed."""
    unhandled: int = 0
    """Taken and not handled when the run ended: they are delivered again."""


class Workers:
    """The tasks of one run, which call its handler.

    1. A worker that begins lets the next one begin before it calls the handler. So calls that wait have a worker each,
       and those that never wait share one.
    2. Workers that never wait let the loop do other work, once it could not for `TURN_SECONDS`.
    """

    def __init__(self, work: Work, fail: Callable[[BaseException], None]) -> None:
        """``work`` is what a worker does. ``fail`` gets the error of a task that has failed."""
        self._work = work
        self._fail = fail
        self.tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._turn_began_at: float | None = None
        """Loop time of the first question of this turn of the loop."""

    def start(self) -> None:
        """Start a worker, unless enough are about to begin."""
        if self._starting < STARTING:
            self._starting += 1
            self.spawn(self._begin())

    async def _begin(self) -> None:
        self._starting -= 1
        await self._work()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def should_pause(self, now: float) -> bool:
        """Rule 2. The first question of each turn of the loop begins its time."""
        if self._turn_began_at is not None:
            return now > self._turn_began_at + TURN_SECONDS
        self._turn_began_at = now
        asyncio.get_running_loop().call_soon(self._end_turn)
        return False

    def _end_turn(self) -> None:
        self._turn_began_at = None

    async def cancel(self) -> None:
        await end_tasks(*self.tasks, seconds=CANCEL_SECONDS)


class Runner:
    def __init__(
        self,
        handler: Handler,
        options: RunOptions,
        deliveries: Intake,
        kind: SubscriptionType,
        acknowledge: Callable[[ConsumedRecord], Awaitable[None]],
        *,
        wrappers: Sequence[Callable[[Handle], Handle]] = (),
        draw: Callable[[], float],
        log: EventLogger,
    ) -> None:
        """Prepare a run.

        ``acknowledge`` gets a record that is handled; unless it is of a QUEUE, so are those before it. ``wrappers``
        wrap each call of the handler, the first one outermost.
        """
        self.report = RunReport()
        self._options = options
        self._acknowledge = acknowledge
        self._deliveries = deliveries
        self._draw = draw
        self._log = log
        self._threads = ThreadPoolExecutor(options.concurrency, "headgate-handler")  # starts none before it is used
        call = awaitable("run: handler", handler, self._threads)
        handle: Handle = call if options.batch else lambda records: call(records[0])
        self._handle = chained(handle, wrappers)
        cumulative = kind != SubscriptionType.QUEUE
        suits = {LastAction.REDELIVER: SubscriptionType.QUEUE, LastAction.PARK: SubscriptionType.STREAM}
        if (wanted := suits.get(LastAction(options.retry.then), kind)) != kind:
            raise ConfigError(
                f"run: then='{LastAction(options.retry.then)}' is for type {wanted}, and this subscription is of type "
                f"{kind}"
            )
        self.schedule = Schedule(
            options.concurrency, options.batch or SINGLE, options.look_ahead, cumulative=cumulative
        )
        self.workers = Workers(self._work, self._fail)
        self._batch_timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._stopping = asyncio.Event()
        self._progress = asyncio.Event()
        """Set whenever a call has ended, records were given back, or the run has ended."""
        self._ended = False

    # The run

    async def run(self, records: AsyncIterator[Sequence[ConsumedRecord]]) -> RunReport:
        """Handle ``records``, which yields at most `TURN_RECORDS` at a time."""
        intake = self.workers.spawn(self._take(records))
        try:
            await self._stopping.wait()
        finally:
            intake.cancel()
            await self._wind_down()
        if self._failure is not None:
            raise self._failure
        return self.report

    def stop(self) -> None:
        self._stopping.set()

    def hurry(self) -> None:
        """Begin an incomplete batch: no further record is expected, unless one that is handled fails."""
        self.schedule.hurried = True
        self.start()

    async def close(self) -> None:
        self.stop()
        while not self._ended:
            await self._next_progress()

    async def _take(self, records: AsyncIterator[Sequence[ConsumedRecord]]) -> None:
        """Take records as they arrive. After the last one, end the run once all are handled."""
        clock, feed, schedule = asyncio.get_running_loop().time, self._deliveries.feed, self.schedule
        async for some in records:
            now, held = clock(), len(feed.holdings)
            schedule.hurried = False
            for record in some:
                if (full := schedule.add(record, now, held)) is not None:
                    feed.pause(full)
            self.start()
            await asyncio.sleep(0)
        self.hurry()
        while schedule.unfinished:
            await self._next_progress()
        self.stop()

    async def _wind_down(self) -> None:
        schedule, seconds = self.schedule, self._options.stop_seconds
        schedule.hurried = True
        self.report.unhandled += sum(self._give_back(key) for key in self._deliveries.feed.generations())
        self.start()
        try:
            async with asyncio.timeout(seconds):
                while schedule.unfinished and (schedule.running or self._deliveries.feed.may_deliver):
                    await self._next_progress()
        except TimeoutError:
            self._log.warning("run.handlers_late", records=schedule.unfinished, seconds=seconds)
        finally:
            self.report.unhandled += schedule.unfinished
            self._ended = True
            self._progress.set()
            if self._batch_timer is not None:
                self._batch_timer.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self.workers.cancel()

    # Calls of the handler

    def start(self) -> None:
        """Call the handler for what may start."""
        if not self._deliveries.feed.may_deliver:
            return
        if self.schedule.can_start(asyncio.get_running_loop().time()):
            self.workers.start()
        if self._options.batch is not None and not self._ended:
            if self._batch_timer is not None:
                self._batch_timer.cancel()
            due = self.schedule.starts_at
            self._batch_timer = None if due is None else asyncio.get_running_loop().call_at(due, self.start)

    async def _work(self) -> None:
        """Call the handler for what may start, until nothing may."""
        clock, schedule, totals = asyncio.get_running_loop().time, self.schedule, self._deliveries.feed.totals
        batch = schedule.start(clock())
        self.start()
        while batch is not None and not self._ended:
            begun = None
            try:
                begun = batch.records if schedule.cumulative else await self._deliveries.begin(batch.records)
                batch.begin(begun)
                if begun:
                    began_at = clock()
                    totals.handler_calls += 1
                    try:
                        await self._handle(begun)
                    finally:
                        totals.handler_seconds += clock() - began_at
            except BaseException as error:  # SystemExit in the loop would end the connections as well
                if self._ended and isinstance(error, asyncio.CancelledError):
                    raise
                if begun is not None and isinstance(error, Exception | asyncio.CancelledError):
                    await self._failed(batch, error)  # the retry policy decides, and its last action names it
                else:  # the handler ends the program, or was not called: nothing is skipped, parked or acknowledged
                    schedule.failed(batch)
                    self.report.unhandled += schedule.abandon(batch)
                    self._fail(error)
            else:
                self.report.handled += len(begun)
                await self._store(schedule.finished(batch))
            if self.workers.should_pause(now := clock()):
                await asyncio.sleep(0)
            batch = schedule.start(now) if self._deliveries.feed.may_deliver else None
            if self._options.batch is not None:
                self.start()

    async def _failed(self, batch: Batch, error: BaseException) -> None:
        """Retry after a pause, or perform the last action. The pause keeps only the batch's keys waiting."""
        schedule, records = self.schedule, batch.records
        schedule.failed(batch)
        self.start()
        outcome = self._options.retry.after(batch.failures, error, self._draw())
        log = self._log.bind(
            segment=batch.works[0].record.segment, offset=batch.works[0].record.offset, error=repr(error)
        )
        if records and not isinstance(outcome, LastAction):
            log.warning("run.retry", records=len(records), attempt=batch.failures, pause_seconds=round(outcome, 3))
            await asyncio.sleep(outcome)
            records = batch.records
        if not records:  # another consumer may hold them by now
            await self._store(schedule.give_up(batch))
        elif outcome == LastAction.SKIP:
            log.error("run.skipped", records=len(records), attempts=batch.failures)
            self.report.skipped += len(records)
            await self._store(schedule.give_up(batch))
        elif outcome == LastAction.REDELIVER:
            log.error("run.redelivered", records=len(records), attempts=batch.failures)
            self.report.redelivered += len(records)
            for record in records:
                self._deliveries.fail(record, 0.0, repr(error))
            schedule.give_up(batch)
            await self._store([])
        elif outcome == LastAction.PARK and await self._park(batch, error, log):
            await self._store(schedule.give_up(batch))
        elif isinstance(outcome, LastAction):
            self.report.unhandled += schedule.abandon(batch)
            self._fail(_failure(records, batch.failures, error))
        else:
            self.report.retried += len(records)
            schedule.retry(batch)

    async def _park(self, batch: Batch, error: BaseException, log: EventLogger) -> bool:
        """Park the keys of ``batch``, with their later records; return whether that was possible."""
        parking = self._deliveries.parking
        try:
            for record in batch.records:
                await parking.park(record, repr(error))
            parked = len(batch.works)
            self.schedule.join_later(batch)
            for work in batch.works[parked:]:
                if not work.holding.ended:
                    await parking.park(work.record, "")
        except RequestRejectedError as refusal:
            log.warning("run.not_parked", reason=str(refusal))
            return False
        self.report.parked += len(batch.works)
        log.error("run.parked", records=len(batch.works), attempts=batch.failures)
        return True

    async def _store(self, handled: list[ConsumedRecord]) -> None:
        for record in handled:
            await self._acknowledge(record)
        for key in self.schedule.take_resumed():
            self._deliveries.feed.resume(key)
        self._progress.set()

    # Segments

    async def settle(self, key: HeldKey, *, is_lost: bool = False) -> None:
        """Give back what was not begun of a segment that is revoked, and wait for the rest."""
        self._give_back(key, is_lost=is_lost)
        while self.schedule.unfinished_of(key) and not self._ended:
            await self._next_progress()

    def ended(self, key: HeldKey) -> None:
        """Ignore what is still handled of a segment that another consumer may hold."""
        self.schedule.end(key)
        self._progress.set()

    def _give_back(self, key: HeldKey, *, is_lost: bool = False) -> int:
        records = self.schedule.revoke(key, is_lost=is_lost)
        self._deliveries.feed.give_back(records)
        self._progress.set()
        return len(records)

    # The end

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()
        self._progress.set()

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()


def _failure(records: list[ConsumedRecord], attempts: int, error: BaseException) -> HandlerFailedError:
    """Return an error that names the record or batch that failed, and says what becomes of it."""
    first = records[0]
    what = "the record" if len(records) == 1 else f"a batch of {len(records)} records, the first one"
    failure = HandlerFailedError(
        f"the handler failed for {what} of {first.topic} in segment {first.segment} at offset {first.offset}, "
        f"key {first.key!r:.80}, in attempt {attempts}: {error!r}. It is not acknowledged, and is delivered again: "
        'correct the handler, or run with retry=RetryPolicy(then="skip")',
        records,
    )
    failure.__cause__ = error
    return failure
