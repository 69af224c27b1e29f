"""Reading a topic with the Spark source: rows a second, compared with Spark's own reader of Parquet.

The source over ``spark.read.parquet``, in turns: the same columns of the same chunks, into Spark's sink `noop`. The
source verifies each checksum, reads with arro3 in Python workers and passes Arrow batches on; Spark's reader skips the
columns that it does not need, verifies nothing, and does not leave the JVM. The cluster is not asked. Spark has the two
settings that [its page](spark.md#read) recommends; without them the source reaches 0.65.
"""

import asyncio
import random
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from controller.chunk_writer.builder import ChunkBuilder
from drain.spark.session import build_session
from headgate.ledger.ledger import Ledger
from headgate.reading.read_tasks import read_tasks
from headgate.spark.source import SCHEMA, TaskPartition, TopicReading
from headgate.storage.object_store import open_store
from headgate.views.topics import TopicInfo

CHUNKS, VALUE_BYTES, SEGMENTS = 32, 100, 4
COLUMNS = "key", "value", "offset"
TRANSPORT = {"spark.python.unix.domain.socket.enabled": "true", "spark.buffer.size": "4194304"}
TOPIC = TopicInfo(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=(), subscriptions=())


class StoredTopic(DataSource):
    """The source without a cluster: its ends are an option."""

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, self.options["url"], int(self.options["end"]))


class _Reader(TopicReading, DataSourceReader):
    def __init__(self, schema: StructType, url: str, end: int) -> None:
        super().__init__(schema)
        self._url, self._bounds = url, dict.fromkeys(range(SEGMENTS), (0, end))

    def partitions(self) -> list[InputPartition]:
        tasks = asyncio.run(read_tasks(Ledger(open_store(self._url), 0), TOPIC, self._bounds))
        return [TaskPartition(self._url, TOPIC, task) for task in tasks]


async def _write(url: str, rows: int) -> None:
    ledger, draw = Ledger(open_store(url), 0), random.Random(1)
    for number in range(1, CHUNKS + 1):
        builder = ChunkBuilder()
        for row in range(rows):
            columns = builder.records
            columns.topic_id.append(1)
            columns.segment.append(row % SEGMENTS)
            columns.offset.append(((number - 1) * rows + row) // SEGMENTS)
            columns.timestamp_ms.append(0)
            columns.key.append(b"k%d" % (row % 1000))
            columns.value.append(draw.randbytes(VALUE_BYTES))
            columns.headers.append(())
        await ledger.append(number, builder.encode(shard=0, number=number, leader_epoch=1, at_ms=number))


def measure(effort: Effort) -> Measurement:
    """Return the rows per second of the source, divided by those of Spark's reader."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        url, rows = f"file://{folder}/ledger", effort.pick(64_000, 16_000)
        asyncio.run(_write(url, rows))
        effort.progress(f"wrote {CHUNKS * rows:,} records")
        with build_session(wrapper_folder=Path(folder) / "java", extra=TRANSPORT) as session:
            session.dataSource.register(StoredTopic)
            return _measure(effort, session, url, rows)


def _measure(effort: Effort, session: SparkSession, url: str, rows: int) -> Measurement:
    schema, end = StructType([SCHEMA[name] for name in COLUMNS]), CHUNKS * rows // SEGMENTS
    frames = {
        "source": session.read.format("StoredTopic").schema(schema).options(url=url, end=end).load(),
        "parquet": session.read.parquet(f"{url}/chunks/shard=0000").where("fact = 'record'").select(*COLUMNS),
    }
    writers = {name: each.write.format("noop").mode("overwrite") for name, each in frames.items()}
    sides = {name: partial(asyncio.to_thread, each.save) for name, each in writers.items()}
    measured = asyncio.run(run_alternating(sides, effort.pick(7, 3), effort.progress))
    ratio = measured.median_ratio("parquet", "source")
    speed = round(CHUNKS * rows / measured.median_seconds("source"))
    return Measurement(ratio.value, {**ratio.parts, "source_rows_per_second": speed})


BENCHMARK = Benchmark(unit="of its rows per second", goal=0.7, better="higher", measure=measure)
