"""Time until a reader of a new segment has its first record, against the length of the shard's ledger.

A topic is split, and its children have no record yet. The state that a leader would have grants both to a consumer, a
chunk with a record of each is written, and their readers read until they have it. The value is the time in a ledger of
100 times as many chunks, over that in a short one: what was stored before a segment existed costs its readers nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating_async
from bench.harness.workload import Shard, batches
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.protocol import messages as m
from headgate.reading.chunk_cache import ChunkCache
from headgate.reading.compacted_reader import CompactedRecords
from headgate.reading.head import Head
from headgate.reading.segment_reader import SegmentReader
from headgate.storage.object_store import LocalStore
from shard.reporting.description import build_grant

CHUNKS, QUICK_CHUNKS = 100, 10
"""Chunks of the short ledger."""
LONGER: Final = (1, 10, 100)
RECORDS, VALUE_BYTES = 50, 100
CHILDREN: Final = (1, 2)
TOPIC_ID: Final = 1


def measure(effort: Effort) -> Measurement:
    """Return the time in the longest ledger over that in the shortest one."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        return asyncio.run(_measure(effort, Path(folder)))


async def _measure(effort: Effort, folder: Path) -> Measurement:
    chunks = effort.pick(CHUNKS, QUICK_CHUNKS)
    ledgers = {f"{factor}": _Ledger(folder / str(factor), chunks * factor) for factor in LONGER}
    sides = {name: ledger.read_first_records for name, ledger in ledgers.items()}
    rounds = await run_alternating_async(sides, effort.pick(301, 21), effort.progress)
    longest = rounds.median_ratio("100", "1")
    return Measurement(longest.value, {**longest.parts, "ten_times": round(rounds.median_ratio("10", "1").value, 3)})


class _Ledger:
    """A ledger whose topic was split after ``chunks`` chunks, and the grants of the children."""

    def __init__(self, root: Path, chunks: int) -> None:
        self._store = LocalStore(root)
        shard = Shard(1)
        folder = root / chunk_folder(0)
        folder.mkdir(parents=True)
        rows = iter(batches(chunks + 1, RECORDS, VALUE_BYTES, Shard.PRODUCER_ID))
        builder = shard.first
        while shard.state.chunk <= chunks:
            (folder / chunk_name(shard.state.chunk)).write_bytes(shard.encode(builder))
            builder = shard.begin()
            shard.add_batch(builder, next(rows))
        end = shard.state.topics["bench"].tails[0].next_offset
        entries: list[e.AnyEntry] = [
            e.SegmentSplit(topic_id=TOPIC_ID, segment=0, end_offset=end, token="split"),  # noqa: S106 - no secret
            e.SubscriptionCreated(
                topic_id=TOPIC_ID,
                subscription_id=3,
                subscription="s",
                subscription_type=e.SubscriptionType.CHECKPOINT,
                order="none",
                positions={},
            ),
            e.ConsumerRegistered(topic_id=TOPIC_ID, subscription_id=3, consumer="c", incarnation=1, client_id="c"),
            *(
                e.SegmentGranted(topic_id=TOPIC_ID, subscription_id=3, segment=child, consumer="c", generation=child)
                for child in CHILDREN
            ),
        ]
        for entry in entries:
            shard.add(builder, entry)
        (folder / chunk_name(shard.state.chunk)).write_bytes(shard.encode(builder))
        topic = shard.state.topics["bench"]
        self._grants: list[m.Grant] = [
            build_grant(topic.subscriptions["s"], topic, child, durable=shard.state.chunk) for child in CHILDREN
        ]
        builder = shard.begin()
        shard.add_batch(builder, next(rows))
        self._head = shard.state.chunk
        (folder / chunk_name(self._head)).write_bytes(shard.encode(builder))

    async def read_first_records(self) -> None:
        """Read until both children have delivered a record, as a consumer that has just been granted them."""
        cache = ChunkCache(Ledger(self._store, 0), TOPIC_ID)
        compacted, head = CompactedRecords(self._store, 0, TOPIC_ID), Head()
        head.advance(self._head)
        await asyncio.gather(*(_first_record(each, cache, compacted, head) for each in self._grants))


async def _first_record(grant: m.Grant, cache: ChunkCache, compacted: CompactedRecords, head: Head) -> None:
    found = asyncio.Event()

    async def deliver(*_: object) -> None:
        found.set()

    reader = SegmentReader(grant, cache=cache, compacted=compacted, head=head, deliver=deliver)
    reading = asyncio.create_task(reader.run())
    await found.wait()
    reading.cancel()
    await asyncio.wait([reading])


BENCHMARK = Benchmark(unit="x", goal=1.1, better="lower", measure=measure, part_goals={"ten_times": 1.1})
