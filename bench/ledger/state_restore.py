"""Cost of restoring a shard's state, against only reading and decoding its ledger.

Ours: every chunk of a shard is read through headgate.ledger.ledger and applied to a ShardState, as
a new leader does. The other side: the same objects are read from the same folder and decoded. The
ratio shows the share of the fold, so a fold that gets slower with the length of the ledger is
noticed. The chunks hold batches of one producer, and acknowledgements of a consumer that follows
it.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches
from controller.state.shard_state import ShardState
from headgate.ledger import chunk
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.model import entries as e
from headgate.storage.object_store import LocalStore

CHUNKS, QUICK_CHUNKS = 400, 60
BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES = 20, 20, 50
SEGMENTS = 8
SUBSCRIPTION_ID = 3


def measure(effort: Effort) -> Measurement:
    """Return the time of restoring over that of reading and decoding."""
    chunks = effort.pick(CHUNKS, QUICK_CHUNKS)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        store = LocalStore(Path(folder))
        with asyncio.Runner() as runner:
            effort.progress(f"writing {chunks} chunks")
            entries = runner.run(_fill(Ledger(store, 0), chunks))

            async def restore() -> ShardState:
                ledger, state = Ledger(store, 0), ShardState(0)
                while (found := await ledger.read_or_none(state.chunk + 1)) is not None:
                    state.apply_all(found.entries, chunk=found.header.number, at_ms=found.header.at_ms)
                return state

            async def read() -> int:
                read = 0
                for number in range(1, chunks + 1):
                    data = await store.read(f"{chunk_folder(0)}/{chunk_name(number)}")
                    read += len(chunk.decode(data, shard=0, number=number).entries)
                return read

            assert runner.run(restore()).chunk == chunks, "every chunk must have been applied"
            assert runner.run(read()) == entries, "both sides must see the same entries"
            sides = {"restore": lambda: runner.run(restore()), "read": lambda: runner.run(read())}
            rounds = run_alternating(sides, effort.pick(11, 3), effort.progress)
    measured = rounds.median_ratio("restore", "read")
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "chunks": chunks,
            "entries": entries,
            "restore_ms_a_chunk": round(rounds.median_seconds("restore") / chunks * 1000, 4),
            "restore_entries_a_second": round(entries / rounds.median_seconds("restore")),
        },
    )


async def _fill(ledger: Ledger, chunks: int) -> int:
    """Write ``chunks`` chunks and return how many entries they hold."""
    shard = Shard(SEGMENTS)
    topic = shard.state.topics["bench"]
    shard.add(
        shard.first,
        e.SubscriptionCreated(
            topic_id=topic.topic_id,
            subscription_id=SUBSCRIPTION_ID,
            subscription="bench",
            subscription_type=e.SubscriptionType.STREAM,
            order="strict",
            positions={},
        ),
    )
    await ledger.append(1, shard.encode(shard.first))
    entries = len(shard.first)
    pending = iter(batches((chunks - 1) * BATCHES_A_CHUNK, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    for number in range(2, chunks + 1):
        builder = shard.begin()
        for _ in range(BATCHES_A_CHUNK):
            shard.add_batch(builder, next(pending))
            shard.add(builder, _acknowledged(topic.topic_id, {s: tail.next_offset for s, tail in topic.tails.items()}))
        await ledger.append(number, shard.encode(builder))
        entries += len(builder)
    return entries


def _acknowledged(topic_id: int, ends: dict[int, int]) -> e.RecordsAcknowledged:
    return e.RecordsAcknowledged(
        topic_id=topic_id,
        subscription_id=SUBSCRIPTION_ID,
        seek_generation=0,
        ranges=[e.AcknowledgedRange(segment, 0, end) for segment, end in ends.items()],
    )


BENCHMARK = Benchmark(unit="times reading and decoding", goal=1.6, better="lower", measure=measure)
