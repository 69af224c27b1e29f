"""Warm up a fresh JVM with a few runs before the first request.

The first run of a JVM takes as long as hundreds of later ones. The warm-up counts a generated chunk
with both readers: read in this process, as in most runs, and by a scan, as after an outage.

Only for engines that see this machine's files. Executors of a cluster stay warm on their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from drain.backlog.counting import ChunkBatch, aggregate_chunks
from drain.spark.fact_source import SparkFiles
from headgate.ledger.chunk import ChunkBuilder
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.model.layout import Layout

RUNS = 3
"""Runs of each kind. After these, a run takes about three times as long as in the steady state."""


def warm_up(session: SparkSession, folder: Path, report: Callable[[str], None]) -> None:
    """Count a generated ledger below ``folder`` for some seconds; ``report`` each run. Raises RunError."""
    path = folder / chunk_folder(0) / chunk_name(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_chunk())
    sources = (SparkFiles(folder.as_uri()), SparkFiles(folder.as_uri(), small_read_max_rows=0))
    for number, source in enumerate(sources * RUNS, start=1):
        aggregate_chunks(session, source, [ChunkBatch(0, [source.path(0, 1)])])
        report(f"warm-up run {number} of {len(sources) * RUNS} completed")


def _chunk() -> bytes:
    builder = ChunkBuilder()
    layout = Layout.initial(1, 0).split(0, 1, 0)
    builder.add(e.TopicCreated(topic_id=1, topic="warm-up", segments=1, token="warm-up"))  # noqa: S106 - a command's token
    builder.add(
        e.SubscriptionCreated(
            topic_id=1,
            subscription_id=2,
            subscription="warm-up",
            subscription_type=e.SubscriptionType.QUEUE,
            order="none",
            positions={},
        ),
    )
    builder.add(e.SegmentSplit(topic_id=1, segment=0, end_offset=1, token="split"), layout)  # noqa: S106 - as above
    ranges = [e.AcknowledgedRange(0, 0, 1), e.AcknowledgedRange(0, 3, 4)]
    builder.add(e.RecordsAcknowledged(topic_id=1, subscription_id=2, seek_generation=0, ranges=ranges))
    records = builder.records
    for column, value in (
        (records.topic_id, 1),
        (records.segment, 0),
        (records.offset, 0),
        (records.timestamp_ms, 0),
    ):
        column.append(value)
    records.key.append(b"key")
    records.value.append(b"value")
    return builder.encode(shard=0, number=1, leader_epoch=1, at_ms=0)
