"""Warm up a fresh JVM with a few runs before the first request.

The first run of a JVM takes as long as hundreds of later ones. The warm-up counts a generated chunk
with both readers: read in this process, as in most runs, and by a scan, as after an outage.

Only for engines that see this machine's files. Executors of a cluster stay warm on their own.
"""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from drain.backlog.counting import ChunkBatch, aggregate_chunks
from drain.spark.fact_source import CHUNK_FACTS, SparkFiles
from headgate.ledger.facts import facts_of
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
    """Return an object with all facts that a run counts, as a leader would state them."""
    layout = Layout.initial(1, 0).split(0, 1, 0)
    created = e.TopicCreated(topic_id=1, topic="warm-up", segments=1, token="warm-up")  # noqa: S106 - a command's token
    subscribed = e.SubscriptionCreated(
        topic_id=1,
        subscription_id=2,
        subscription="warm-up",
        subscription_type=e.SubscriptionType.QUEUE,
        order="none",
        positions={},
    )
    split = e.SegmentSplit(topic_id=1, segment=0, end_offset=1, token="split")  # noqa: S106 - as above
    ranges = [e.AcknowledgedRange(0, 0, 1), e.AcknowledgedRange(0, 3, 4)]
    acknowledged = e.RecordsAcknowledged(topic_id=1, subscription_id=2, seek_generation=0, ranges=ranges)
    record = {"fact": "record", "topic_id": 1, "segment": 0, "offset": 0, "timestamp_ms": 0, "size_bytes": 8}
    facts = [fact for entry in (created, subscribed, split, acknowledged) for fact in facts_of(entry, layout)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([*facts, record], schema=CHUNK_FACTS), sink)
    return bytes(sink.getvalue())
