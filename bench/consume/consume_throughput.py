"""Cost of reading records as a consumer does, against decoding the same chunks.

Ours: the reading half of a Consumer (headgate.client.record_feed) reads all segments of a topic from
a ledger in a local folder, chunk by chunk, and delivers record after record. The other side decodes
the same chunks, which are in memory, to Python lists. The ratio shows the price of files, grants,
the order of offsets and one queue for all segments. Half of the chunks are small and half large, so
each writer's are read.
"""

from __future__ import annotations

import asyncio
import tempfile
from itertools import islice
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches
from headgate.client.record_feed import RecordFeed
from headgate.ledger.chunk import decode_records
from headgate.ledger.ledger import Ledger
from headgate.model.entries import SubscriptionType
from headgate.protocol.messages import Grant
from headgate.storage.object_store import LocalStore

CHUNKS, QUICK_CHUNKS = 40, 8
BATCHES_OF_LARGE, BATCHES_OF_SMALL, RECORDS_EACH, VALUE_BYTES = 15, 2, 100, 200
SEGMENTS = 8


def measure(effort: Effort) -> Measurement:
    """Return the time of consuming over that of decoding."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder, asyncio.Runner() as runner:
        store = LocalStore(Path(folder))
        chunks = runner.run(_fill(Ledger(store, 0), effort.pick(CHUNKS, QUICK_CHUNKS)))

        def decode() -> int:
            return sum(len(decode_records(data, shard=0, number=number)) for number, data in chunks.items())

        records = decode()
        sides = {"consume": lambda: runner.run(_consume(store, max(chunks), records)), "decode": decode}
        rounds = run_alternating(sides, effort.pick(15, 3), effort.progress)
    measured = rounds.median_ratio("consume", "decode")
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "records": records,
            "consume_records_a_second": round(records / rounds.median_seconds("consume")),
            "decode_records_a_second": round(records / rounds.median_seconds("decode")),
        },
    )


async def _fill(ledger: Ledger, count: int) -> dict[int, bytes]:
    """Write ``count`` chunks; return number → chunk."""
    shard = Shard(SEGMENTS)
    chunks = {shard.state.chunk: shard.encode(shard.first)}
    sizes = [BATCHES_OF_LARGE if number % 2 else BATCHES_OF_SMALL for number in range(count)]
    accepted = iter(batches(sum(sizes), RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    for size in sizes:
        builder = shard.begin()
        for batch in islice(accepted, size):
            shard.add_batch(builder, batch)
        chunks[shard.state.chunk] = shard.encode(builder)
    for number, data in chunks.items():
        await ledger.append(number, data)
    return chunks


async def _consume(store: LocalStore, head: int, records: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        feed = RecordFeed(
            "bench", SubscriptionType.STREAM, {}, lambda reading, name: tasks.create_task(reading, name=name)
        )
        feed.open(store, 0, 1)
        feed.head.advance(head)
        for segment in range(SEGMENTS):
            feed.begin(
                Grant(segment=segment, generation=1, first_hash=0, last_hash=65535, start_offset=0, start_chunk=1)
            )
        for _ in range(records):
            assert await feed.next() is not None, "the feed was stopped"
        await feed.close()


BENCHMARK = Benchmark(unit="times decoding", goal=7.0, better="lower", measure=measure)
