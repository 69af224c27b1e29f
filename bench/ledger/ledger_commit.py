"""Cost of a durable commit, against the bare system calls on the same disk.

Ours: one chunk is encoded and created through headgate.storage.object_store.LocalStore, as a leader
does it. The other side: the same bytes, encoded beforehand, with the fewest system calls that are
durable and put-if-absent. The difference is encoding, a change of thread and housekeeping. On a
slower disk the ratio approaches 1.

A chunk holds 10 batches of 50 records of 200 bytes: what accumulates during one commit of 3 ms at
170 000 records per second. TMPDIR selects the disk; a folder in memory makes the other side nearly
free and the ratio meaningless.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.storage.object_store import LocalStore

BATCHES, RECORDS_EACH, VALUE_BYTES = 10, 50, 200
COMMITS_A_ROUND = 20


def measure(effort: Effort) -> Measurement:
    """Return our commit over the bare one; encoding is a part."""
    shard = Shard(segments=8)
    builder = shard.begin()
    for batch in batches(BATCHES, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID):
        shard.add_batch(builder, batch)
    data = shard.encode(builder)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        root = Path(folder)
        bare_folder = root / "bare"
        bare_folder.mkdir()
        store = LocalStore(root)
        numbers = {"ours": 0, "bare": 0}

        async def commit() -> None:
            for _ in range(COMMITS_A_ROUND):
                numbers["ours"] += 1
                await store.create(f"{chunk_folder(0)}/{chunk_name(numbers['ours'])}", shard.encode(builder))

        def bare() -> None:
            for _ in range(COMMITS_A_ROUND):
                numbers["bare"] += 1
                bare_commit(bare_folder, chunk_name(numbers["bare"]), data)

        def encode() -> None:
            for _ in range(COMMITS_A_ROUND):
                shard.encode(builder)

        with asyncio.Runner() as runner:
            sides = {"ours": lambda: runner.run(commit()), "bare": bare, "encode": encode}
            rounds = run_alternating(sides, effort.pick(15, 3), effort.progress)
    measured = rounds.median_ratio("ours", "bare")
    each = {side: round(rounds.median_seconds(side) / COMMITS_A_ROUND * 1000, 4) for side in rounds.seconds}
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "ours_ms_a_commit": each["ours"],
            "bare_ms_a_commit": each["bare"],
            "encode_ms_a_commit": each["encode"],
            "commits_a_round": COMMITS_A_ROUND,
            "chunk_bytes": len(data),
            "records": BATCHES * RECORDS_EACH,
        },
    )


def bare_commit(folder: Path, name: str, data: bytes) -> None:
    """Write, fsync, link, fsync the folder: the minimum that is durable, atomic and put-if-absent."""
    draft = folder / f".{name}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.link(draft, folder / name)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


BENCHMARK = Benchmark(unit="times the bare commit", goal=3.2, better="lower", measure=measure)
