"""Catch-up of a new consumer from compacted objects, against the raw chunks that they were made from.

Ours: readers of all segments read from offset 0 to the end of a fully compacted ledger. The other
side: the same readers on the same ledger without manifests, chunk by chunk. Both read every record
from a local folder in one process; delivering each record to the program is the same for both. The
value is the ratio of records per second.

The parts contain the speed of compaction itself, warm, in MB of keys and values per second (local
Spark, all cores), and the objects that each side opens. On a bucket each of those is a request, so
the difference is larger there.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import AT_MS, Shard, batches
from drain.backlog.job import BacklogJob, count_on
from drain.compaction.job import CompactionJob, CompactionSettings
from drain.spark.chunks import LedgerChunks
from drain.spark.session import build_session
from headgate.ledger.ledger import Ledger
from headgate.protocol.messages import Grant
from headgate.reading.chunk_cache import ChunkCache
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.head import Head
from headgate.reading.segment_reader import SegmentReader
from headgate.storage.object_store import LocalStore, Store

CHUNKS, QUICK_CHUNKS = 2048, 256
BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES = 5, 20, 200
SEGMENTS = 8
TOPIC_ID = 1


def measure(effort: Effort) -> Measurement:
    """Return how many times as fast compacted objects are read."""
    chunks = effort.pick(CHUNKS, QUICK_CHUNKS)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, asyncio.Runner() as runner:
        root = Path(folder, "ledger")
        store = LocalStore(root)
        effort.progress(f"writing {chunks} chunks")
        ends = runner.run(_fill(Ledger(store, 0), chunks))
        effort.progress("compacting")
        compacted_mb_a_second, objects = runner.run(_compact(root.as_uri(), chunks, Path(folder)))
        bare = LocalStore(Path(folder, "bare"))
        Path(folder, "bare").mkdir()
        opened: dict[str, int] = {}

        async def catch_up(side: str, manifests: Store) -> None:
            opened[side] = await _read_all(Ledger(store, 0), manifests, chunks, ends)

        sides = {
            "raw": lambda: runner.run(catch_up("raw", bare)),
            "compacted": lambda: runner.run(catch_up("compacted", store)),
        }
        rounds = run_alternating(sides, effort.pick(7, 2), effort.progress)
    measured = rounds.median_ratio("raw", "compacted")
    records = sum(ends)
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "records": records,
            "compacted_records_a_second": round(records / rounds.median_seconds("compacted")),
            "raw_records_a_second": round(records / rounds.median_seconds("raw")),
            "compacted_objects_opened": opened["compacted"],
            "raw_objects_opened": opened["raw"],
            "raw_objects_for_one_compacted": round(opened["raw"] / opened["compacted"], 1),
            "compacted_objects": objects,
            "compaction_mb_a_second": round(compacted_mb_a_second, 2),
        },
    )


async def _read_all(ledger: Ledger, manifests: Store, head_chunk: int, ends: list[int]) -> int:
    """Read every record, as a new consumer does; return how many objects were opened. ``ends``: records by segment."""
    cache, compacted, head = ChunkCache(ledger, TOPIC_ID), CompactedRecords(manifests, 0, TOPIC_ID), Head()
    head.advance(head_chunk)
    read = [0] * len(ends)

    async def read_segment(segment: int, end: int) -> None:
        async def deliver(_: int, __: int, ___: bytes, ____: bytes) -> None:
            read[segment] += 1

        grant = Grant(
            segment=segment,
            generation=1,
            first_hash=0,
            last_hash=0xFFFF,
            start_offset=0,
            start_chunk=1,
            end_offset=end,
        )
        await SegmentReader(grant, cache=cache, compacted=compacted, head=head, deliver=deliver).run()

    await asyncio.gather(*(read_segment(segment, end) for segment, end in enumerate(ends)))
    await cache.close()
    assert read == ends, "every record must have been read"
    return cache.loads + compacted.opened


async def _fill(ledger: Ledger, chunks: int) -> list[int]:
    """Write ``chunks`` chunks and return how many records each segment has."""
    shard = Shard(SEGMENTS)
    await ledger.append(1, shard.encode(shard.first))
    pending = iter(batches((chunks - 1) * BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    for number in range(2, chunks + 1):
        builder = shard.begin()
        for _ in range(BATCHES_A_CHUNK):
            shard.add_batch(builder, next(pending))
        await ledger.append(number, shard.encode(builder))
    return [tail.next_offset for _, tail in sorted(shard.state.topics["bench"].tails.items())]


async def _compact(url: str, chunks: int, folder: Path) -> tuple[float, int]:
    """Compact everything in two ranges; return MB per second of the second, warm one, and the objects of both."""
    session = await asyncio.to_thread(build_session, wrapper_folder=folder / "java")
    settings = CompactionSettings(chunks=chunks // 2, delay_seconds=0)
    compaction_job = CompactionJob(url, session, settings, now_ms=lambda: AT_MS + 1000)
    try:
        ledger = LedgerChunks(url)
        outcome = await BacklogJob(ledger, count_on(session, ledger)).run([0])
        assert not outcome.failures, outcome.failures
        first = await compaction_job.compact_next(0)
        began = time.perf_counter()
        second = await compaction_job.compact_next(0)
        seconds = time.perf_counter() - began
    finally:
        compaction_job.close()
        await asyncio.to_thread(session.stop)
    assert first is not None, "two ranges are due"
    assert second is not None, "two ranges are due"
    size = sum(item.size_bytes for item in second.objects)
    return size / 1e6 / seconds, len(first.objects) + len(second.objects)


BENCHMARK = Benchmark(
    unit="times the records a second",
    goal=1.5,
    better="higher",
    measure=measure,
    part_goals={"raw_objects_for_one_compacted": 10.0},
)
