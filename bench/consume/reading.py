"""Processor time of a consumer for each record that it reads, against only decoding the same chunks.

Ours: the reading half of a Consumer takes records from fresh chunks of 64 KB in a local folder, as `get_many` does. The
other side reads the same objects one after the other, and decodes their records into lists. Parts in microseconds:
`record_us` and `iterated_us` for each record, taken 500 at a time and one by one, and `small_chunk_us` for each chunk
of a history that was stored record by record. Of other processes' load, only what it does to the caches counts.
"""

import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches, fill
from headgate.client.consuming.record_feed import RecordFeed
from headgate.ledger.ledger import Ledger
from headgate.model.entries import SubscriptionType
from headgate.protocol.replies import Grant
from headgate.storage.object_store import LocalStore

CHUNKS, QUICK_CHUNKS = 200, 10
SMALL_CHUNKS, QUICK_SMALL_CHUNKS = 1000, 20
RECORDS_EACH, VALUE_BYTES = 600, 100
TAKEN = 500


def measure(effort: Effort) -> Measurement:
    """Return the time of reading over that of decoding."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        return asyncio.run(_measure(effort, Path(folder)))


async def _measure(effort: Effort, folder: Path) -> Measurement:
    chunks, small = effort.pick(CHUNKS, QUICK_CHUNKS), effort.pick(SMALL_CHUNKS, QUICK_SMALL_CHUNKS)
    large_store, small_store = LocalStore(folder / "large"), LocalStore(folder / "small")
    await fill(large_store, batches(chunks, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    await fill(small_store, batches(small, 1, VALUE_BYTES, Shard.PRODUCER_ID))
    records = chunks * RECORDS_EACH
    sides = {
        "read": partial(_read, large_store, chunks, records, TAKEN),
        "decode": partial(_decode, large_store, chunks),
        "iterated": partial(_read, large_store, chunks, records, 1),
        "small": partial(_read, small_store, small, small, TAKEN),
    }
    rounds = await run_alternating(sides, effort.pick(15, 2), effort.progress)
    measured = rounds.median_ratio("read", "decode")
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "record_us": round(rounds.median_seconds("read") / records * 1e6, 2),
            "iterated_us": round(rounds.median_seconds("iterated") / records * 1e6, 2),
            "small_chunk_us": round(rounds.median_seconds("small") / small * 1e6, 1),
        },
    )


async def _read(store: LocalStore, chunks: int, records: int, at_once: int) -> float:
    began, taken = time.process_time(), 0
    grant = Grant(segment=0, generation=1, first_hash=0, last_hash=65535, start_offset=0, start_chunk=1)
    async with asyncio.TaskGroup() as tasks:
        feed = RecordFeed("bench", SubscriptionType.STREAM, {}, lambda work, name: tasks.create_task(work, name=name))
        feed.open(store, 0, 1)
        feed.head.advance(chunks + 1)
        feed.begin(grant)
        while taken < records:
            if not (found := feed.take(at_once)):
                await feed.queue.changed()
            taken += len(found)
        seconds = time.process_time() - began
        await feed.close()
    return seconds


async def _decode(store: LocalStore, chunks: int) -> float:
    began, ledger = time.process_time(), Ledger(store, 0)
    for number in range(2, chunks + 2):
        _, records = await ledger.read_records(number)
        assert records.offset, "the chunk has records"
    return time.process_time() - began


BENCHMARK = Benchmark(unit="times only decoding", goal=2.0, better="lower", measure=measure)
