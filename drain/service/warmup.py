"""Warm up a fresh JVM with a few runs before the first request.

The first run of a JVM takes as long as hundreds of later ones. The warm-up counts a generated chunk.

Only for engines that see this machine's files. Executors of a cluster stay warm on their own.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from drain.backlog.aggregates import FACTS
from drain.backlog.counting import count_chunks
from headgate.ledger.checksum import seal_parquet
from headgate.ledger.chunk import FORMAT, METADATA_KEY, ChunkHeader, facts_of
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.model.layout import Layout

RUNS = 5
"""After these, a run takes about three times as long as in the steady state."""


def warm_up(session: SparkSession, folder: Path, report: Callable[[str], None]) -> None:
    """Count a generated ledger below ``folder`` for some seconds; ``report`` each run. Raises RunError."""
    path, url = folder / chunk_path(0, 1), folder.as_uri()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_chunk())
    for number in range(1, RUNS + 1):
        count_chunks(session, url, {0: range(1, 2)})
        report(f"warm-up run {number} of {RUNS} completed")


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
    header = ChunkHeader(format=FORMAT, shard=0, number=1, leader_epoch=1, at_ms=0, entries=0, records=1)
    schema = FACTS.remove(FACTS.get_field_index("shard")).with_metadata({METADATA_KEY: msgspec.json.encode(header)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([*facts, record], schema=schema), sink)
    return seal_parquet(memoryview(sink.getvalue()))
