"""A fresh consumer's catch-up from rolled objects, against the raw chunks that they were made from.

Ours: readers of all segments begin at offset 0 and read to the end, as a new consumer's do, where everything is rolled
up. The other side: the same readers on the same ledger without manifests, chunk after chunk. Both see every record,
from a local folder, in one process. The value is how many times as many records a second the first reads.

Beside it: what roll-up itself takes, warm, in MB of keys and values a second (local Spark on all cores), and the
objects that each side opens. On a bucket each of those is a request, so the difference there is larger than what is
measured here.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from bench._harness import Effort, Figure, Measured, in_turns
from bench._workload import AT_MS, Shard, batches
from drain.backlog.counting import merge
from drain.backlog.job import BacklogJob
from drain.compaction.job import RollUp, RollUpSettings
from drain.spark.chunks import LedgerChunks
from drain.spark.session import build_session
from headgate.ledger.ledger import Ledger
from headgate.protocol.messages import Grant
from headgate.reading.compacted_reader import RolledRecords
from headgate.reading.segment_reader import ChunkCache, Head, SegmentReader
from headgate.storage.object_store import LocalStore, Store

CHUNKS, QUICK_CHUNKS = 2048, 256
BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES = 5, 20, 200
SEGMENTS = 8
TOPIC_ID = 1


def measure(effort: Effort) -> Measured:
    """Return how many times as fast rolled objects are read."""
    chunks = effort.pick(CHUNKS, QUICK_CHUNKS)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, asyncio.Runner() as runner:
        root = Path(folder, "ledger")
        store = LocalStore(root)
        effort.progress(f"writing {chunks} chunks")
        ends = runner.run(_fill(Ledger(store, 0), chunks))
        effort.progress("rolling up")
        rolled_mb_a_second, objects = runner.run(_roll_up(root.as_uri(), chunks, Path(folder)))
        bare = LocalStore(Path(folder, "bare"))
        Path(folder, "bare").mkdir()
        opened: dict[str, int] = {}

        async def catch_up(side: str, manifests: Store) -> None:
            cache, rolled, head = ChunkCache(Ledger(store, 0), TOPIC_ID), RolledRecords(manifests, 0, TOPIC_ID), Head()
            head.rise(chunks)
            read = [0] * len(ends)

            async def reading(segment: int, end: int) -> None:
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
                await SegmentReader(grant, cache=cache, rolled=rolled, head=head, deliver=deliver).run()

            await asyncio.gather(*(reading(segment, end) for segment, end in enumerate(ends)))
            await cache.close()
            assert read == ends, "every record must have been read"
            opened[side] = cache.loads + rolled.opened

        sides = {
            "raw": lambda: runner.run(catch_up("raw", bare)),
            "rolled": lambda: runner.run(catch_up("rolled", store)),
        }
        rounds = in_turns(sides, effort.pick(7, 2), effort.progress)
    measured = rounds.compared("raw", "rolled")
    records = sum(ends)
    return Measured(
        measured.value,
        {
            **measured.parts,
            "records": records,
            "rolled_records_a_second": round(records / rounds.median_seconds("rolled")),
            "raw_records_a_second": round(records / rounds.median_seconds("raw")),
            "rolled_objects_opened": opened["rolled"],
            "raw_objects_opened": opened["raw"],
            "raw_objects_for_one_rolled": round(opened["raw"] / opened["rolled"], 1),
            "rolled_objects": objects,
            "roll_up_mb_a_second": round(rolled_mb_a_second, 2),
        },
    )


async def _fill(ledger: Ledger, chunks: int) -> list[int]:
    """Write ``chunks`` chunks and return how many records each segment has."""
    shard = Shard(SEGMENTS)
    await ledger.append(1, shard.encode(shard.first))
    pending = iter(batches((chunks - 1) * BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    for number in range(2, chunks + 1):
        builder = shard.begin()
        for _ in range(BATCHES_A_CHUNK):
            shard.take(builder, next(pending))
        await ledger.append(number, shard.encode(builder))
    return [tail.next_offset for _, tail in sorted(shard.state.topics["bench"].tails.items())]


async def _roll_up(url: str, chunks: int, folder: Path) -> tuple[float, int]:
    """Roll everything up in two ranges; return MB a second of the second, which is warm, and the objects of both."""
    session = await asyncio.to_thread(build_session, wrapper_folder=folder / "java")
    settings = RollUpSettings(chunks=chunks // 2, delay_seconds=0)
    roll_up = RollUp(url, session, settings, now_ms=lambda: AT_MS + 1000)
    try:
        ledger = LedgerChunks(url)
        counting = BacklogJob(ledger, lambda steps: asyncio.to_thread(merge, session, ledger.source, steps))
        outcome = await counting.run([0])
        assert not outcome.failures, outcome.failures
        first = await roll_up.step(0)
        began = time.perf_counter()
        second = await roll_up.step(0)
        seconds = time.perf_counter() - began
    finally:
        roll_up.close()
        await asyncio.to_thread(session.stop)
    assert first is not None, "two ranges are due"
    assert second is not None, "two ranges are due"
    size = sum(item.size_bytes for item in second.objects)
    return size / 1e6 / seconds, len(first.objects) + len(second.objects)


FIGURE = Figure(
    unit="times the records a second",
    goal=1.5,
    better="higher",
    measure=measure,
    part_goals={"raw_objects_for_one_rolled": 10.0},
)
"""The rest is delivering each record to the program, which is the same for both."""
