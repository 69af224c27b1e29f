"""Read a topic in Spark: the driver plans tasks, and executors read them from the store as Arrow batches.

The driver asks the cluster once for each batch (`TopicAccess`): for the layout and its ends at one moment, and which
positions are in it. Tasks need the ledger only.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType, TimestampType

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.own_subscription import open_own_subscription
from headgate.client.topic_source import TopicSource, open_topic_source
from headgate.errors import ConfigError, RequestRejectedError
from headgate.ledger.ledger import Ledger
from headgate.log.event_log import get_logger
from headgate.model.identifiers import SegmentId
from headgate.model.positions import decode_positions
from headgate.model.time_text import time_ms
from headgate.process.resources import keep_freed_memory
from headgate.reading.read_tasks import ReadTask, read_tasks
from headgate.reading.stored_rows import OffsetBounds
from headgate.reading.topic_files import positions_at
from headgate.reading.topic_position import Snapshot
from headgate.reading.topic_reader import TopicReader
from headgate.settings.config import load_client_config
from headgate.spark.micro_batches import StreamPosition, batch_end, readable
from headgate.spark.options import BatchOptions, StreamOptions, TopicOptions
from headgate.storage.object_store import open_store
from headgate.sync import EventLoopThread
from headgate.topic_dataset import stored_batches
from headgate.views.topics import TopicInfo

IDLE_SECONDS: Final = 1.0
"""How long a query that has read everything waits for a new chunk, before it asks the leader again all the same."""
REMEDY: Final = "start a query with a new checkpoint"
IF_PRUNED: Final = (
    ", or continue behind pruned records with failOnDataLoss=false; the option subscription keeps what is unread"
)
TOKEN_PREFIX: Final = "positions-"  # noqa: S105 - no password

log = get_logger(__name__)
HEADERS: Final = ArrayType(StructType().add("name", StringType()).add("value", BinaryType()))
_RECORD: Final = {"key": BinaryType(), "value": BinaryType(), "headers": HEADERS, "timestamp": TimestampType()}
_PLACE: Final = {"segment": LongType(), "offset": LongType()}
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in (_RECORD | _PLACE).items()])
ROWS_PER_BATCH: Final = 65_536
"""Small chunks are put together to as many rows, and large objects are divided."""


class TopicAccess:
    """A connection to the cluster, in a thread of its own. It is made on first use; call `close`."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._loop = EventLoopThread()
        self._connections = AsyncExitStack()
        self._source: TopicSource | None = None
        self._admin: Admin | None = None
        self._known_head = 0
        """The newest chunk that was announced before the leader was last asked."""
        self._reported: dict[int, int] | None = None
        """What the subscription was moved to; None: it may not exist."""
        self._has_reported = False

    def close(self) -> None:
        self._loop.run(self._connections.aclose())
        self._loop.close()

    def look(self, idle: Snapshot | None = None) -> Snapshot:
        """Return the topic as it is now; after ``idle``, of which all is read, once a chunk is new or a second passed.

        Raises what `headgate.dataset` raises.
        """
        return self._loop.run(self._look(idle))

    async def _open(self) -> tuple[TopicSource, Admin]:
        if self._source is None or self._admin is None:
            client = Client.from_config(load_client_config(self._options.config), "spark", with_store=True)
            opened = open_topic_source(client, self._options.topic, self._options.timeout_seconds)
            self._source = await self._connections.enter_async_context(opened)
            admin = Admin(client, timeout_seconds=self._options.timeout_seconds)
            self._admin = await self._connections.enter_async_context(admin)
        return self._source, self._admin

    async def _look(self, idle: Snapshot | None) -> Snapshot:
        source, _ = await self._open()
        if idle is not None:
            await source.head.wait_for(max(idle.counted, self._known_head) + 1, IDLE_SECONDS)
        self._known_head = source.head.number
        return await source.look(idle)

    def offsets_after(self, position: StreamPosition, now: Snapshot, *, skip_pruned: bool = False) -> dict[int, int]:
        """Return segment → offset of the first record after ``position``, for every segment.

        Raises OtherHistoryError or PositionOutOfRangeError: a record after it does not exist any more. With
        ``skip_pruned`` the pruned ones are passed over.
        """
        source, _ = self._loop.run(self._open())
        starts = source.starts_after(position, now, remedy=REMEDY, if_pruned=IF_PRUNED, skip_pruned=skip_pruned)
        return now.ends | self._loop.run(starts)

    def offsets_of(self, text: str, now: Snapshot) -> dict[int, int]:
        """Return the offset of each segment that an option names. Raises ConfigError, or as `offsets_after`."""
        if text == "earliest":
            return dict.fromkeys(now.ends, 0)
        if text == "latest":
            return now.ends
        if text.startswith(TOKEN_PREFIX):
            token = decode_positions(text)
            for each in StreamPosition.of_token(token):
                self.offsets_after(each, now)
            return {segment: token.positions.get(SegmentId(segment), 0) for segment in now.ends}
        try:
            at_ms = time_ms(text)
        except ValueError as error:
            raise ConfigError(f"offsets: use earliest, latest, a position token, or a time: {error}") from None
        source, _ = self._loop.run(self._open())
        return self._loop.run(positions_at(source.ledger, now.topic, at_ms))

    def tasks(self, bounds: dict[int, OffsetBounds], now: Snapshot, first_chunk: int = 1) -> list[ReadTask]:
        source, _ = self._loop.run(self._open())
        return self._loop.run(read_tasks(source.ledger, now.topic, bounds, first_chunk))

    def report(self, subscription: str, reached: Mapping[int, int], now: Snapshot) -> None:
        """Move a subscription to ``reached``, and create it if it does not exist.

        Records of segments that wait for their ancestors count as unread.
        """
        self._loop.run(self._report(now, subscription, readable(reached, now.topic.segments)))

    async def _report(self, now: Snapshot, subscription: str, positions: dict[int, int]) -> None:
        topic, point, (_, admin) = now.topic, (now.chunk, now.term_id), await self._open()
        try:
            if self._reported is None:
                await open_own_subscription(admin, topic.topic, topic.topic_id, subscription)
                self._reported, self._has_reported = {}, True
            if moved := {segment: at for segment, at in positions.items() if self._reported.get(segment) != at}:
                await admin.seek(topic.topic, subscription, positions=moved, point=point, topic_id=topic.topic_id)
                self._reported |= moved
        except RequestRejectedError as error:
            if not self._has_reported:
                raise
            # A segment that was read to its end may be pruned before this, or the topic created again. If the
            # subscription was deleted, retention keeps nothing: the next report creates it.
            log.warning("spark.subscription_not_moved", subscription=subscription, reason=str(error))
            self._reported = None


class TaskPartition(InputPartition):
    """What one executor reads. It needs the ledger's URL, and the store's credentials from its environment."""

    def __init__(self, ledger_url: str, topic: TopicInfo, task: ReadTask) -> None:
        self.ledger_url = ledger_url
        self.topic = msgspec.structs.replace(topic, segments=(), subscriptions=())
        self.task = task

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        starts, ends = ({segment: each[side] for segment, each in self.task.bounds.items()} for side in (0, 1))
        ledger = Ledger(open_store(self.ledger_url), self.topic.shard)
        gathered: list[pa.RecordBatch] = []
        rows = 0
        for found in stored_batches(TopicReader(ledger, self.topic, starts=starts, ends=ends, plan=self.task.plan)):
            batch = pa.record_batch(found).select(schema.names).cast(schema)
            if rows + batch.num_rows > ROWS_PER_BATCH:
                yield from _divided(gathered)
                gathered, rows = [], 0
            gathered.append(batch)
            rows += batch.num_rows
        yield from _divided(gathered)


def _divided(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)


def _partitions(
    access: TopicAccess,
    config: str | None,
    now: Snapshot,
    start: Mapping[int, int],
    end: Mapping[int, int],
    first_chunk: int = 1,
) -> list[InputPartition]:
    url = load_client_config(config).ledger_url
    bounds = {segment: (start[segment], end[segment]) for segment in now.ends}
    return [TaskPartition(url, now.topic, task) for task in access.tasks(bounds, now, first_chunk)]


def _columns(schema: StructType) -> pa.Schema:
    """Return the wanted columns; raises ConfigError if the topic does not have them."""
    known = [(field.name, field.dataType) for field in SCHEMA.fields]
    if wrong := [each for each in schema.fields if (each.name, each.dataType) not in known]:
        raise ConfigError(
            f"format headgate: a topic has no column {wrong[0].name} {wrong[0].dataType.simpleString()}; it has "
            f"{SCHEMA.simpleString()}"
        )
    return to_arrow_schema(schema, timezone="UTC")


class TopicReading:
    """Reads the columns of a schema."""

    def __init__(self, schema: StructType) -> None:
        self._schema = _columns(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partition.batches(self._schema) if isinstance(partition, TaskPartition) else iter(())


class TopicBatchReader(TopicReading, DataSourceReader):
    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        super().__init__(schema)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        access = TopicAccess(self._options)
        try:
            now = access.look()
            start = access.offsets_of(self._options.starting_offsets, now)
            end = access.offsets_of(self._options.ending_offsets, now)
            if behind := sorted(segment for segment, offset in start.items() if offset > end.get(segment, offset)):
                raise ConfigError(
                    f"format headgate: endingOffsets is before startingOffsets in segment {behind[0]} of "
                    f"{self._options.topic!r}, at {end[behind[0]]} and {start[behind[0]]}"
                )
            return _partitions(access, self._options.config, now, start, end)
        finally:
            access.close()


class TopicStreamReader(TopicReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs in a Python process of the driver. Spark's offset is a `StreamPosition`."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        super().__init__(schema)
        self._options = options
        self._access: TopicAccess | None = None
        self._now: Snapshot | None = None
        """The topic as the newest batch was planned from it."""
        self._target: Snapshot | None = None
        """With the trigger AvailableNow: where the query ends."""
        self._idle: Snapshot | None = None
        """The topic, if everything is read."""

    def _look(self) -> tuple[Snapshot, TopicAccess]:
        if self._access is None:
            self._access = TopicAccess(self._options)
        self._now = self._target or self._access.look(self._idle)
        return self._now, self._access

    def _known(self) -> tuple[Snapshot, TopicAccess]:
        """Return the topic as the newest batch was planned from it, or as it is after a restart."""
        return self._look() if self._now is None or self._access is None else (self._now, self._access)

    def _after(self, position: StreamPosition) -> dict[int, int]:
        now, access = self._known()
        return access.offsets_after(position, now, skip_pruned=self._options.fail_on_data_loss == "false")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        now, access = self._look()
        start = access.offsets_of(self._options.starting_offsets, now)
        self._report(start)
        return StreamPosition.at(now, start).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target, _ = self._look()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        position = StreamPosition.of_json(start)
        now, _ = self._look()
        begin = self._after(position)
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else getattr(limit, "max_rows", None)
        end = batch_end(begin, now.topic.segments, most, in_bytes=isinstance(limit, ReadMaxBytes))
        if end == begin:
            self._idle = now
            self._report(begin)  # Spark commits a batch when it has the next one.
            return start
        self._idle = None
        return StreamPosition.at(now, end, position.first_chunk).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._now is None else StreamPosition.at(self._now, self._now.ends).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = StreamPosition.of_json(start), StreamPosition.of_json(end)
        now, access = self._known()
        return _partitions(access, self._options.config, now, self._after(begin), self._after(stop), begin.first_chunk)

    def commit(self, end: dict[str, Any]) -> None:
        self._report(self._after(StreamPosition.of_json(end)))

    def _report(self, reached: dict[int, int]) -> None:
        if self._options.subscription is not None:
            now, access = self._known()
            access.report(self._options.subscription, reached, now)

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
