"""`KinesisConsumer`: reads a Kinesis stream for one subscription, together with any number of copies of the program.

    async def handle(record: KinesisRecord) -> None: ...

    async with KinesisConsumer(config, stream="orders", subscription="billing") as consumer:
        await consumer.run(handle, concurrency=16)

1. The stream is an external topic. headgate grants its shards, a child after all its ancestors, and keeps checkpoints.
2. Records of one partition key are handled one at a time and in order, across shards.
3. The stream's shards are listed at the start, at the end of each shard and every `LISTING_SECONDS`, so a resharding is
   noticed by every copy, also one that happened while none was running.
4. A shard that has expired is reported, and counts as finished; its children are read from their start.
5. A stream that is deleted and created again is another source: it is refused, and needs another topic.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self, cast

from headgate.client.admin import Admin
from headgate.client.client_metrics import ConsumerTotals
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consumer import DEFAULT_LOOK_AHEAD, DEFAULT_RETRY
from headgate.client.consuming.parking import Parking
from headgate.client.decisions.held_segments import HeldKey
from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
from headgate.client.membership import OnGranted, OnRevoked
from headgate.client.processing.calls import refuse_own_caller
from headgate.client.processing.runner import Runner, RunOptions, RunReport
from headgate.client.processing.schedule import BatchPolicy, LastAction, LookAhead, RetryPolicy
from headgate.client.source_listing import ExternalLayout
from headgate.errors import ConfigError, HeadgateError, NoLeaderError, RequestRejectedError
from headgate.kinesis.position import Position, unpack
from headgate.kinesis.stream import KinesisStream, KinesisUnavailableError, Page, ShardGoneError, ShardReader
from headgate.log.event_log import get_logger
from headgate.model.entries import Order, SubscriptionType
from headgate.model.identifiers import Offset
from headgate.process.background import cancel_and_wait, end_tasks
from headgate.settings.arguments import require_count
from headgate.settings.config import ClientConfig

LISTING_SECONDS: Final = 60.0
FIRST_IMPORTS: Final = 3
"""So often a program that starts lists the shards, if another one imports newer ones meanwhile."""
MAX_RECORDS: Final = 10_000
"""GetRecords returns no more."""
QUEUED_RECORDS: Final = 1_000

log = get_logger(__name__)


class KinesisRecord(ConsumedRecord, frozen=True, gc=False):
    """A record of a program; several may have been packed into one record of Kinesis.

    ``key`` is the partition key, ``timestamp_ms`` the arrival at Kinesis. ``offset`` counts what this consumer has read
    of the shard.
    """

    shard: str = ""
    sequence_number: str = ""
    packed_number: int = 0
    """Its place in a packed record, from 0."""
    checkpoint: str = ""
    """Where a reader continues once this record is handled."""


Handler = Callable[[KinesisRecord], object] | Callable[[list[KinesisRecord]], object]
"""The program's function; with batches it gets a list."""


class _HeldShard:
    """A shard that is read, as the runner sees it."""

    def __init__(self, segment: GrantedSegment) -> None:
        self.segment = segment
        self.given, self.handled, self.stopped = 0, 0, False
        self.changed = asyncio.Event()
        self.resumed = asyncio.Event()
        self.resumed.set()

    async def until_handled(self) -> None:
        while self.handled < self.given:
            self.changed.clear()
            await self.changed.wait()


class _Shards:
    """What `Runner` needs of a consumer's feed. Records that are given back are read again by the next holder."""

    def __init__(self) -> None:
        self.holdings: dict[HeldKey, _HeldShard] = {}
        self.totals = ConsumerTotals()
        self.queue: asyncio.Queue[KinesisRecord] = asyncio.Queue(QUEUED_RECORDS)
        self.may_deliver = True
        """The end of the lease cancels what reads a shard."""

    def pause(self, key: HeldKey) -> None:
        if key in self.holdings:
            self.holdings[key].resumed.clear()

    def resume(self, key: HeldKey) -> None:
        if key in self.holdings:
            self.holdings[key].resumed.set()

    def generations(self) -> list[HeldKey]:
        return list(self.holdings)

    def give_back(self, records: list[ConsumedRecord]) -> None:
        """Do nothing: no checkpoint has passed them."""

    @property
    def feed(self) -> Self:
        return self

    @property
    def parking(self) -> Parking:
        raise AssertionError("refused by `run`")

    def fail(self, _record: ConsumedRecord, _delay_seconds: float, _reason: str, /) -> None:
        raise AssertionError("refused by `run`")

    async def begin(self, _: list[ConsumedRecord]) -> list[ConsumedRecord]:
        raise AssertionError("only a QUEUE begins deliveries")

    async def records(self) -> AsyncIterator[tuple[ConsumedRecord]]:
        while True:
            record = await self.queue.get()
            if (held := self.holdings.get((record.segment, record.generation))) is not None and not held.stopped:
                yield (record,)

    async def acknowledge(self, record: ConsumedRecord) -> None:
        assert isinstance(record, KinesisRecord), "from the queue"
        if (held := self.holdings.get((record.segment, record.generation))) is not None:
            await held.segment.acknowledge(checkpoint=record.checkpoint)
            held.segment.report_unhandled(record.timestamp_ms)  # The next one is not older.
            held.handled = record.offset + 1
            held.changed.set()


class KinesisConsumer:
    """Reads the shards of one stream that headgate grants it. Use it as an async context manager, and `run` it."""

    def __init__(
        self,
        config: ClientConfig | Client,
        *,
        stream: str,
        subscription: str,
        topic: str | None = None,
        start: Literal["earliest", "latest"] | datetime = "earliest",
        name: str | None = None,
        order: Order | None = None,
        client: Any = None,
        max_records: int = MAX_RECORDS,
        stream_consumer: str | None = None,
        on_granted: OnGranted | None = None,
        on_revoked: OnRevoked | None = None,
        connect_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Describe what to read.

        Args:
            stream: name of the stream. Its user needs the rights to DescribeStreamSummary, ListShards,
                GetShardIterator and GetRecords.
            topic: the external topic; default: the stream's name. It is created if it is missing, for which headgate's
                user needs the right to administer it.
            start: where a new subscription begins: the oldest record, its creation, or a time, which counts only if it
                is earlier. After a seek that is the oldest record.
            client: boto3's client for Kinesis; default: one from the configuration and environment of AWS.
            max_records: for each request to Kinesis.
            stream_consumer: name of a consumer of the stream, the same in all copies of the program, to which Kinesis
                pushes records (enhanced fan-out). It is registered if it is missing, and stays. Needs the rights to
                ListStreamConsumers, RegisterStreamConsumer and SubscribeToShard, too.

        The other arguments, and the errors, are those of `headgate.ExternalConsumer`.
        """
        require_count("KinesisConsumer: max_records", max_records, MAX_RECORDS)
        self._topic = topic or stream
        self._subscription = subscription
        self._start = start
        self._stream = KinesisStream(client, stream)
        self._admin = Admin(config, timeout_seconds=connect_timeout_seconds)
        self._external = ExternalConsumer(
            config,
            topic=self._topic,
            subscription=subscription,
            name=name,
            order=order,
            on_granted=on_granted,
            on_revoked=on_revoked,
            connect_timeout_seconds=connect_timeout_seconds,
        )
        self._max_records = max_records
        self._stream_consumer = stream_consumer
        self._consumer_arn: str | None = None
        self._entered_at_ms = 0
        self._layout: ExternalLayout | None = None
        """What was imported last."""
        self._shards = _Shards()
        self._runner: Runner | None = None
        self._draw = random.Random()  # noqa: S311 - jitter
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect, import the stream's shards, and register; raises what `headgate.Consumer` raises."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._stream.close)
            await stack.enter_async_context(self._admin)
            await self._import()
            if self._stream_consumer is not None:
                self._consumer_arn = await self._stream.register(self._stream_consumer)
            self._entered_at_ms = self._admin.client.now_ms()
            await stack.enter_async_context(self._external)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Cancel what is read, flush its checkpoints, and leave; some seconds at most."""
        refuse_own_caller("close", [] if self._runner is None else self._runner.workers.tasks)
        self._external.refuse_own_caller("close")
        await self._stack.aclose()

    @property
    def name(self) -> str:
        """Name of this consumer."""
        return self._external.name

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        retry: RetryPolicy = DEFAULT_RETRY,
        batch: BatchPolicy | None = None,
        look_ahead: LookAhead = DEFAULT_LOOK_AHEAD,
        stop_seconds: float = 20.0,
    ) -> RunReport:
        """Call ``handler`` for each `KinesisRecord`, until cancelled, `stop`, or SIGTERM as `headgate.Consumer.run`.

        The arguments are those of `headgate.Consumer.run`; a retry ends with "stop" or "skip". A checkpoint moves up to
        the first record of a shard that is not handled.

        Raises:
            HandlerFailedError: the handler failed for the last time, and the policy's last action is to stop.
            ConfigError: an argument is out of range.
            HeadgateError: the stream cannot be read; or what `headgate.ExternalConsumer.run` raises.
        """
        if retry.then not in (LastAction.STOP, LastAction.SKIP):
            raise ConfigError(f"run: retry.then={str(retry.then)!r}: use 'stop' or 'skip'")
        if self._runner is not None:
            raise HeadgateError("run: this consumer has run; create another one")
        runner = self._runner = Runner(
            cast("Any", handler),  # it gets what `_Shards.records` yields
            RunOptions(concurrency, retry, batch, look_ahead, stop_seconds),
            self._shards,
            SubscriptionType.STREAM,
            self._shards.acknowledge,
            draw=self._draw.random,
            log=log,
        )
        reading = asyncio.create_task(self._external.run(self._read))
        listing = asyncio.create_task(self._follow())
        handling = asyncio.create_task(runner.run(self._shards.records()))
        try:
            await asyncio.wait((reading, listing, handling), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            runner.stop()
            try:
                await asyncio.wait((reading, handling))
            finally:  # A second cancellation does not wait for the handlers.
                await end_tasks(listing, reading, handling)
        await cancel_and_wait(listing, reading, handling)  # Raises why one of them has ended.
        return handling.result()

    def stop(self) -> None:
        """End `run`, without waiting for it."""
        self._external.stop()

    async def _read(self, segment: GrantedSegment) -> None:
        """Read a shard for the runner, and finish it once everything is handled."""
        assert self._runner is not None, "it runs"
        shard, key = segment.label, (segment.segment, segment.generation)
        held = self._shards.holdings[key] = _HeldShard(segment)
        try:
            try:
                await self._give(segment, held)
            except ShardGoneError as error:
                log.warning("kinesis.shard_expired", shard=shard, checkpoint=segment.checkpoint, reason=str(error))
            await held.until_handled()
        except asyncio.CancelledError:
            held.stopped = True
            await self._runner.settle(key, is_lost=not segment.is_held)
            raise
        finally:
            self._runner.ended(key)
            del self._shards.holdings[key]
        await self._import()  # The children, before their parent is finished.
        await segment.finish()

    async def _give(self, segment: GrantedSegment, held: _HeldShard) -> None:
        shard = segment.label
        position = None if segment.checkpoint is None else Position.read(segment.checkpoint)
        hashes = await self._hashes_of(shard)
        reader = ShardReader(self._stream, shard, self._max_records, self._draw, self._consumer_arn)
        start = await self._start_of_shards() if position is None else None
        async with contextlib.aclosing(reader.pages(position, start)) as pages:
            async for page in pages:
                if held.handled == held.given and (page.records or page.behind_ms == 0):
                    segment.report_unhandled(page.records[0][3] if page.records else None)
                for record in self._records_of(page, held, position, hashes):
                    await held.resumed.wait()
                    held.given += 1
                    await self._shards.queue.put(record)

    def _records_of(
        self, page: Page, held: _HeldShard, position: Position | None, hashes: tuple[int, int]
    ) -> Iterator[KinesisRecord]:
        """Yield what ``position`` leaves of a page. Count each record as given before the next one is made."""
        for sequence, partition_key, data, arrived_ms in page.records:
            whole = unpack(partition_key, data, hashes)
            for packed in whole if position is None else position.unhandled(sequence, whole):
                yield KinesisRecord(
                    topic=self._topic,
                    segment=held.segment.segment,
                    offset=Offset(held.given),
                    key=packed.key.encode(),
                    value=packed.data,
                    timestamp_ms=arrived_ms,
                    generation=held.segment.generation,
                    shard=held.segment.label,
                    sequence_number=sequence,
                    packed_number=packed.number,
                    checkpoint=Position(sequence, None if packed is whole[-1] else packed.number).checkpoint,
                )

    async def _start_of_shards(self) -> datetime | None:
        """Return from when shards without a checkpoint are read; None: from the oldest record, as after each seek.

        A program that starts again, or beside others, may name a later time than the one that began the subscription.
        The leader says when that was, and when this consumer joined. Its clock may be ahead: Kinesis refuses a time in
        the future, and later passes over what arrived until then. So only the time between both counts.
        """
        while self._start != "earliest":
            with contextlib.suppress(NoLeaderError):
                info = await self._admin.describe_subscription(self._topic, self._subscription)
                joined_ms = next((each.registered_at_ms for each in info.consumers if each.consumer == self.name), None)
                ago_ms = (joined_ms or info.started_at_ms) - info.started_at_ms
                began_ms = min(info.started_at_ms, self._entered_at_ms - ago_ms)
                began = datetime.fromtimestamp(began_ms / 1000, UTC)
                wanted = began if self._start == "latest" else self._start.astimezone(UTC)
                return None if info.seek_generation else min(wanted, began)
        return None

    async def _hashes_of(self, shard: str) -> tuple[int, int]:
        """Return the hashes of a shard, which another copy of the program may have imported; all if it has expired."""
        assert self._layout is not None, "it is imported before a shard is granted"
        segments, listed = self._layout.segments, False
        while (found := next((each.hashes for each in segments if each.segment == shard), None)) is None and not listed:
            with contextlib.suppress(KinesisUnavailableError):  # It has waited between its attempts.
                segments, listed = (await self._stream.shards()).segments, True
        return (0, 2**128 - 1) if found is None else (int(found[0]), int(found[1]))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LISTING_SECONDS * (0.5 + self._draw.random()))
            await self._import()

    async def _import(self, attempt: int = 1) -> None:
        """Import the stream's shards, if they have changed since the last time."""
        try:
            layout = await self._stream.shards()
            if layout == self._layout:
                return
            found = await self._admin.import_topic(self._topic, layout)
        except (KinesisUnavailableError, NoLeaderError) as error:
            if self._layout is None:
                raise
            log.warning("kinesis.not_listed", reason=str(error))
        except RequestRejectedError as error:
            if self._layout is None and (attempt == FIRST_IMPORTS or error.verdict != "invalid"):
                raise
            # Another copy of the program may have imported a newer listing.
            log.warning("kinesis.not_imported", reason=str(error))
            if self._layout is None:
                await self._import(attempt + 1)
        else:
            self._layout = layout
            if found.created:
                log.info("kinesis.imported", shards=list(found.created))
