"""Write rows to a topic: each partition of a write is a named producer, whose source position says what is stored.

1. The position is (number, rows, digest): the batch of the query that the producer is named after, or the moment of a
   write that is no stream. A task that runs again, or beside another one, skips the rows that are stored. The digest
   tells whether they are the same, in any order: a checkpoint that was copied gives other rows to the same batch.
   When all others are stored, the driver compares the partitions that have no row when they are repeated, and the first
   that does not exist any more.
2. Of two tasks of a partition at the same time, the one that opened the producer later fences the other one.
3. What is stored is always a beginning of the partition: no record expires alone, but the whole task does.
4. The incarnation of the query's own name is the number of batches that it has committed. A ledger that lacks those
   before a batch refuses it: an older ledger was put back, and Spark would never write them again.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, StringType, StructType, TimestampType

from headgate.client.connection import Client
from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import Delivery
from headgate.client.request_attempts import body_of
from headgate.errors import ConfigError, FencedError, HeadgateError, NoLeaderError, RequestRejectedError
from headgate.model.headers import Headers
from headgate.process.background import end_tasks
from headgate.protocol.replies import Reply, SourcePosition
from headgate.protocol.requests import AnyRequestBody, DescribePosition, OpenProducer
from headgate.settings.arguments import LONGEST_SECONDS
from headgate.settings.config import load_client_config
from headgate.spark.options import SinkOptions
from headgate.spark.source import HEADERS
from headgate.sync import Admin, EventLoopThread

_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "headers": (HEADERS,),
    "timestamp": (TimestampType(),),
}
_REQUIRED: Final = ("key", "value")
_SETTINGS: Final = ProducerSettings(delivery_timeout_seconds=LONGEST_SECONDS)
_POSITION: Final = re.compile(rb"spark (\d+) (\d+) ([0-9a-f]+)")
SENT_ROWS: Final = 10_000
SENT_BYTES: Final = 16 * 1024 * 1024
"""The size of keys and values. So many rows or bytes are sent together, while those before wait for outcomes."""
RANDOM_BITS: Final = 20
"""The number of a write that is no stream has so many. Its others are the time in milliseconds."""
ResultT = TypeVar("ResultT")
Row = tuple[bytes, bytes, Headers, int | None]


class StoredRows(NamedTuple):
    """What of a partition is stored: so many rows, with this sum of their digests."""

    rows: int
    digest: int


def check_columns(schema: StructType) -> None:
    """Raise ConfigError unless rows of ``schema`` can be written."""
    given = {field.name: field.dataType for field in schema.fields}
    if missing := [name for name in _REQUIRED if name not in given]:
        raise ConfigError(f"format headgate: column {missing[0]} is missing; write {_described()}")
    for name, kind in given.items():
        if name not in _TYPES:
            raise ConfigError(f"format headgate: a record has no column {name}; select {_described()}")
        if kind not in _TYPES[name]:
            raise ConfigError(f"format headgate: column {name} is {kind.simpleString()}; write {_described()}")


def _described() -> str:
    return ", ".join(
        f"{name} ({' or '.join(kind.simpleString() for kind in kinds)}{'' if name in _REQUIRED else ', optional'})"
        for name, kinds in _TYPES.items()
    )


def rows_stored(position: bytes | None, number: int) -> StoredRows:
    """Return what of a partition is stored. ``position``: of its producer; ``number``: rises with each write.

    Raises HeadgateError: a later write has begun, or the producer is another program's.
    """
    if position is None:
        return StoredRows(0, 0)
    if (found := _POSITION.fullmatch(position)) is None:
        raise HeadgateError(f"its source position {position!r:.60} is another program's: choose another name")
    if (known := int(found[1])) > number:
        raise HeadgateError(
            f"write {known} has begun after write {number}: use the option producer for writes at the same time, or if "
            "the clock of Spark's driver was ahead, and a new checkpoint for a query that is repeated"
        )
    return StoredRows(int(found[2]), int(found[3], 16)) if known == number else StoredRows(0, 0)


def require_followed(number: int, committed: int) -> None:
    """Raise HeadgateError unless batch ``number`` follows those in the ledger; ``committed``: how many; 0: unknown."""
    if committed and committed not in {number, number + 1}:
        raise HeadgateError(
            f"the query is at batch {number}, and the ledger has its batches up to {committed - 1}: an older ledger, "
            "or an older or copied checkpoint, was put back. A new checkpoint stores all rows again; another value of "
            "the option producer continues with this batch, and what is missing in the ledger remains so"
        )


def unstored(rows: Iterable[Row], stored: StoredRows, number: int) -> Iterator[tuple[bytes, Row]]:
    """Yield the rows behind ``stored``, each with its position. Raises HeadgateError: those before are others."""
    count = digest = 0
    for row in rows:
        key, value, _, _ = row
        content = blake2b(len(key).to_bytes(4) + key + value, digest_size=8).digest()
        count, digest = count + 1, (digest + int.from_bytes(content)) % 2**64
        if count == stored.rows and digest != stored.digest:
            raise HeadgateError(
                f"the first {count} rows are others than those that batch {number} has stored: the checkpoint was "
                "copied or put back, or the rows or their order are not repeatable. Another value of the option "
                "producer stores all rows of this batch, so some twice"
            )
        if count > stored.rows:
            yield f"spark {number} {count} {digest:x}".encode(), row
    if count < stored.rows:
        raise HeadgateError(f"{stored.rows} rows are stored, and the repeated task has {count}")


def portion(rows: Iterator[tuple[bytes, Row]]) -> list[tuple[bytes, Row]]:
    """Return the next rows, as many as are sent together; none at the end."""
    taken: list[tuple[bytes, Row]] = []
    size_bytes = 0
    while size_bytes < SENT_BYTES and len(taken) < SENT_ROWS and (found := next(rows, None)) is not None:
        taken.append(found)
        size_bytes += len(found[1][0]) + len(found[1][1])
    return taken


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of one batch. Raises HeadgateError: a key, a value or a part of a header is null."""
    if nulls := [name for name in _REQUIRED if batch.column(name).null_count]:
        raise HeadgateError(f"a {nulls[0]} is null, and a record needs one: filter such rows")
    keys, values = (batch.column(name).cast(pa.binary()).to_pylist() for name in _REQUIRED)
    nothing: Sequence[Any] = [None] * batch.num_rows
    headers = batch.column("headers").to_pylist() if "headers" in batch.schema.names else nothing
    times = nothing
    if "timestamp" in batch.schema.names:
        times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    for key, value, each, at_ms in zip(keys, values, headers, times, strict=True):
        given = each or ()
        if any(header is None or None in (header["name"], header["value"]) for header in given):
            raise HeadgateError("a header is null, or has no name or no value: filter such rows")
        yield key, value, tuple((header["name"], header["value"]) for header in given), at_ms


@dataclass
class PartitionStored(WriterCommitMessage):
    """What the driver learns of a task. It compares the empty ones: each producer would be a connection."""

    query: str
    """Its own name; empty for a write that is no stream."""
    producer: str
    number: int
    empty: bool = False


class _Writer:
    """Made in the driver, and sent to each task."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_columns(schema)
        if overwrite:
            raise ConfigError("format headgate: a topic is only appended to; use mode append")
        self._options = options
        self._config = load_client_config(options.config)

    def _store(self, batches: Iterable[pa.RecordBatch], task: PartitionStored) -> WriterCommitMessage:
        """Store the rows of one partition, except those that an earlier task has stored."""
        given = (batch for batch in batches if batch.num_rows)
        if (first := next(given, None)) is None:
            task.empty = True
            return task
        name, number = task.producer, task.number
        sent: list[Delivery] = []
        with EventLoopThread() as loop:
            client = Client.from_config(self._config, "producer")
            producer = Producer(client, name, _SETTINGS, connect_timeout_seconds=self._options.timeout_seconds)
            try:
                stored = rows_stored(loop.run(self._within(producer, _opened(producer, self._options.topic))), number)
                if task.query:
                    loop.run(self._require_followed(client, task))
                new = unstored(chain.from_iterable(map(rows_of, chain((first,), given))), stored, number)
                while rows := portion(new):
                    sent = loop.run(self._within(producer, self._send(producer, rows, sent)))
                loop.run(self._within(producer, _outcomes(sent)))
            except HeadgateError as error:
                error.add_note(f"headgate: rows for topic {self._options.topic!r} by producer {name!r}: {error}")
                if type(error) is FencedError:
                    # By a speculative task, perhaps: Spark ends this one when that has stored the rows. A failure would
                    # start a third one, which fences the second, until Spark gives up the job.
                    time.sleep(self._options.timeout_seconds)
                raise
            finally:
                loop.run(producer.close(timeout_seconds=0))
        return task

    def commit(self, messages: list[WriterCommitMessage | None], *_: int) -> None:
        """Raise HeadgateError: rows of a partition are stored that has none this time, or the batch does not follow."""
        tasks = [each for each in messages if isinstance(each, PartitionStored)]
        query = next((each for each in tasks if each.query), None)
        if query is not None or any(each.empty for each in tasks):
            with EventLoopThread() as loop:
                loop.run(self._commit(tasks, query))

    async def _commit(self, tasks: list[PartitionStored], query: PartitionStored | None) -> None:
        empty = [each for each in tasks if each.empty]
        async with Client.from_config(self._config, "spark") as client:
            if query is not None:
                if empty == tasks:
                    await self._require_followed(client, query)
                empty.append(PartitionStored(query.query, f"{query.query}-{len(tasks)}", query.number))
            questions = (self._position(client, each.producer) for each in empty)
            for each, answer in zip(empty, await asyncio.gather(*questions, return_exceptions=True), strict=True):
                if isinstance(answer, BaseException):
                    raise answer
                try:
                    list(unstored((), rows_stored(answer.position, each.number), each.number))
                except HeadgateError as error:
                    topic = self._options.topic
                    raise HeadgateError(f"rows for topic {topic!r} by producer {each.producer!r}: {error}") from None
            if query is not None:
                token = blake2b(f"{query.query} {query.number}".encode(), digest_size=16).hexdigest()
                await self._ask(client, OpenProducer(token=token, name=query.query, incarnation=query.number + 1))

    async def _require_followed(self, client: Client, task: PartitionStored) -> None:
        require_followed(task.number, (await self._position(client, task.query, task.number)).incarnation)

    async def _position(self, client: Client, producer: str, incarnation: int | None = None) -> SourcePosition:
        """Return what the leader knows of ``producer``; nothing if it has never been opened."""
        try:
            question = DescribePosition(producer=producer, topic=self._options.topic, incarnation=incarnation)
            reply = await self._ask(client, question)
        except RequestRejectedError as error:
            if error.verdict != "invalid":
                raise
            return SourcePosition(topic_id=0)
        return body_of(reply, SourcePosition, "the leader")

    async def _ask(self, client: Client, body: AnyRequestBody) -> Reply:
        seconds = self._options.timeout_seconds
        return await client.request(await client.places.shard_of(self._options.topic, seconds), body, seconds)

    async def _send(
        self, producer: Producer, rows: Iterable[tuple[bytes, Row]], earlier: list[Delivery]
    ) -> list[Delivery]:
        """Send rows with their positions, wait for the outcomes of ``earlier`` ones, and return the new deliveries."""
        sent = [
            await producer.send(
                self._options.topic, key, value, headers=headers, timestamp_ms=at_ms, source_position=position
            )
            for position, (key, value, headers, at_ms) in rows
        ]
        await _outcomes(earlier)
        return sent

    async def _within(self, producer: Producer, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return the result of ``work``. Raises NoLeaderError: it takes too long, and stores nothing meanwhile.

        A user who is beyond a quota stores slowly. Who stores nothing is refused, or has no leader.
        """
        seconds, before = self._options.timeout_seconds, -1
        task = asyncio.ensure_future(work)
        try:
            while (stored := producer.metrics().committed_records) > before:
                before = stored
                await asyncio.wait({task}, timeout=seconds)
                if task.done():
                    return task.result()
        finally:
            await end_tasks(task)
        obstacles = {each.session.obstacle() for each in producer.sessions.values()}
        raise NoLeaderError(": ".join([f"rows were not stored within timeoutSeconds={seconds:g}", *sorted(obstacles)]))


async def _opened(producer: Producer, topic: str) -> bytes | None:
    await producer.__aenter__()
    await producer.open(topic)
    return producer.source_position


async def _outcomes(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        await delivery


def _task() -> TaskContext:
    found = TaskContext.get()
    assert found is not None, "Spark writes in tasks"
    return found


class TopicBatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._number = (time.time_ns() // 1_000_000 << RANDOM_BITS) + secrets.randbits(RANDOM_BITS)
        with Admin(self._config, timeout_seconds=options.timeout_seconds) as admin:
            if admin.describe_topic(options.topic).external is not None:
                raise ConfigError(
                    f"format headgate: topic {options.topic!r} is external: its source stores its records"
                )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        prefix = self._options.producer or f"spark-{self._options.topic}"
        return self._store(iterator, PartitionStored("", f"{prefix}-{_task().partitionId()}", self._number))


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        assert query is not None, "Spark names the query"
        assert batch is not None, "Spark numbers the batches of a query"
        name = f"{self._options.producer or 'spark'}-{query}"
        return self._store(iterator, PartitionStored(name, f"{name}-{task.partitionId()}", int(batch)))
