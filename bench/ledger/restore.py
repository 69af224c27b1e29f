"""Time until a daemon without any state could lead a large shard, against only reading and decoding its snapshot.

Ours: the newest snapshot is found, read and decoded into a ShardState, and the chunks after it are applied and listed,
as in every start of a term. The other side: the same snapshot is read, its checksum compared, and its
parts decompressed and decoded into plain lists and dicts. Beside it:

* ``warm``: a follower that had the state before the last chunks, and reads only those;
* ``aged``, ``aged_warm``: both again, of a ledger with many times as many chunks before the snapshot.

The state has producers with the last two batches each, and topics of the most segments. Starting the term adds one
commit.
"""

import asyncio
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import AT_MS, Shard, batches
from controller.context.step_driver import StepDriver
from controller.snapshots.format import decode_steps, encode_snapshot
from controller.snapshots.restore import catch_up
from headgate.ledger import checksum
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_folder, chunk_name, snapshot_path
from headgate.model import entries as e
from headgate.protocol.requests import ProduceBatch
from headgate.storage.object_store import LocalStore
from shard.requests.topic_commands import MAX_SEGMENTS
from shard.state.producers import FinishedBatch
from shard.state.shard_state import ShardState
from shard.steps import complete

PRODUCERS, QUICK_PRODUCERS = 1_000_000, 4_000
SEGMENTS, QUICK_SEGMENTS = 100_000, 500
BATCHES_A_PRODUCER: Final = 2
TAIL, QUICK_TAIL = 50, 5
"""Chunks after the snapshot."""
YOUNG, QUICK_YOUNG = 200, 20
"""Chunks before the snapshot."""
AGED, QUICK_AGED = 100_000, 200
"""Chunks before the snapshot of the aged ledger."""
FIRST_PRODUCER: Final = 1 << 40
RECORDS_EACH, VALUE_BYTES = 20, 50


def measure(effort: Effort) -> Measurement:
    """Return the time of a cold start over that of reading and decoding the snapshot."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        return asyncio.run(_measure(effort, Path(folder)))


@dataclass(frozen=True, slots=True)
class Stored:
    """One shard's ledger: chunks, of which those before the snapshot are listed and never read."""

    ledger: Ledger
    snapshot_chunk: int
    snapshot_bytes: int
    last_chunk: int


async def _measure(effort: Effort, folder: Path) -> Measurement:
    producers, segments = effort.pick(PRODUCERS, QUICK_PRODUCERS), effort.pick(SEGMENTS, QUICK_SEGMENTS)
    tail = effort.pick(TAIL, QUICK_TAIL)
    effort.progress(f"making a state of {producers} producers and {segments} segments")
    shard = _large_shard(producers, segments)
    pending = iter(batches(2 * tail, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))
    young = await _store(shard, folder / "young", effort.pick(YOUNG, QUICK_YOUNG), tail, pending)
    aged = await _store(shard, folder / "aged", effort.pick(AGED, QUICK_AGED), tail, pending)
    del shard

    async def warm(stored: Stored) -> float:
        followed = await _state_at_snapshot(stored)
        began = time.perf_counter()
        _, read = await catch_up(stored.ledger, followed, _refuse, StepDriver().complete, urgent=True)
        assert read == tail, "only the last chunks are read"
        return time.perf_counter() - began

    sides = {
        "cold": lambda: _start_cold(young, producers),
        "read": lambda: _read_and_decode(young),
        "warm": lambda: warm(young),
        "aged": lambda: _start_cold(aged, producers),
        "aged_warm": lambda: warm(aged),
    }
    rounds = await run_alternating(sides, effort.pick(3, 2), effort.progress)
    measured = rounds.median_ratio("cold", "read")
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "producers": producers,
            "segments": segments,
            "snapshot_megabytes": round(young.snapshot_bytes / 1e6, 1),
            "warm_ms": round(rounds.median_seconds("warm") * 1000, 1),
            "cold_over_warm": round(median(rounds.ratios("cold", "warm")), 1),
            "aged_over_young": round(median(rounds.ratios("aged", "cold")), 3),
            "aged_warm_ms": round(rounds.median_seconds("aged_warm") * 1000, 1),
            "aged_warm_over_warm": round(median(rounds.ratios("aged_warm", "warm")), 3),
        },
    )


async def _start_cold(stored: Stored, producers: int) -> None:
    state, _ = await catch_up(stored.ledger, ShardState(0), _refuse, StepDriver().complete, urgent=True)
    assert (state.chunk, len(state.producers)) == (stored.last_chunk, producers + 1), "all must be restored"


async def _read_and_decode(stored: Stored) -> None:
    data = await stored.ledger.store.read(snapshot_path(0, stored.snapshot_chunk))
    checksum.verify(data)
    file = msgspec.msgpack.decode(memoryview(data)[checksum.SEAL_BYTES :])
    parts = [file["core"], *file["topics"], *file["producers"]]
    # As in our side, what is decoded stays until the end.
    decoded = [msgspec.msgpack.decode(zlib.decompress(part)) for part in parts]
    assert len(decoded) == len(parts), "every part must be decoded"


async def _state_at_snapshot(stored: Stored) -> ShardState:
    data = await stored.ledger.store.read(snapshot_path(0, stored.snapshot_chunk))
    return complete(decode_steps(data, shard=0, chunk=stored.snapshot_chunk))


def _large_shard(producers: int, segments: int) -> Shard:
    """Return a shard whose producers and topics no client has made: only their number matters."""
    shard = Shard(8)
    state = shard.state
    for number in range(0, segments, MAX_SEGMENTS):
        state.begin_chunk(state.chunk + 1, AT_MS)
        name, width = f"wide-{number}", min(MAX_SEGMENTS, segments - number)
        state.apply(e.TopicCreated(topic_id=state.ids.next_id, topic=name, segments=width, token=name))
    placements = [e.Placement(0, 0, 65535, 0, 1)]
    for number in range(producers):
        producer_id = FIRST_PRODUCER + number
        state.apply(e.ProducerOpened(producer_id=producer_id, producer_epoch=0, token=f"token-{number}"))
        producer = state.producers[producer_id]
        producer.next_sequence = BATCHES_A_PRODUCER
        for sequence in range(BATCHES_A_PRODUCER):
            producer.finished.append(FinishedBatch(sequence, 2, 1, number.to_bytes(16), placements))
    return shard


async def _store(shard: Shard, folder: Path, age: int, tail: int, pending: Iterator[ProduceBatch]) -> Stored:
    """Write the shard's snapshot at chunk ``age``, and ``tail`` chunks after it."""
    while shard.state.chunk < age:
        shard.state.begin_chunk(shard.state.chunk + 1, AT_MS)
    snapshot = encode_snapshot(shard.state, written_at_ms=AT_MS)
    listed = dict.fromkeys(range(1, age + 1), b"")
    store = _folder_store(folder, {**listed, **dict(shard.chunks(islice(pending, tail)))})
    await store.create(snapshot_path(0, age), snapshot)
    return Stored(Ledger(store, 0), age, len(snapshot), shard.state.chunk)


def _folder_store(folder: Path, chunks: Mapping[int, bytes]) -> LocalStore:
    """Return a store of ``chunks``. They are written without fsync: they are not needed after the benchmark."""
    where = folder / chunk_folder(0)
    where.mkdir(parents=True)
    for number, data in chunks.items():
        (where / chunk_name(number)).write_bytes(data)
    return LocalStore(folder)


def _refuse(shard: int) -> None:
    raise AssertionError(f"the snapshot of shard {shard} is unusable")


BENCHMARK = Benchmark(
    unit="times reading and decoding the snapshot",
    goal=1.5,
    better="lower",
    measure=measure,
    part_goals={"aged_over_young": 1.2},
)
