"""Cost of history: an incremental count of the same new chunks, on ledgers of 1, 10 and 100 times the length.

Ours on the longest ledger over ours on the shortest, in turns. A run finds the chunks behind the last watermark,
counts only those, and adds the previous result; so the ratio stays at 1. The parts have the alternative: a full count,
which grows with the ledger. The longest ledger has a hundred million rows (seven in eight are acknowledgements, by
four subscriptions in sixteen segments); the new part has twenty chunks.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.facts_ledger import FactsLedger
from drain.backlog.job import BacklogJob, count_on
from drain.spark.chunks import LedgerChunks
from drain.spark.session import build_session

LENGTHS = (1, 10, 100)
NEW_CHUNKS, NEW_ROWS = 20, 1_024
WARM_UP_RUNS = 6


class _Side:
    def __init__(self, ledger: FactsLedger, session: SparkSession) -> None:
        self.ledger = ledger
        chunks = LedgerChunks(ledger.url)
        self._job = BacklogJob(chunks, count_on(session, chunks))

    async def run(self, *, full: bool = False) -> None:
        outcome = await self._job.run([0], full=full)
        assert not outcome.failures, outcome.failures
        assert outcome.results[0].watermark == self.ledger.chunks

    def grow(self) -> None:
        for _ in range(NEW_CHUNKS):
            self.ledger.grow(NEW_ROWS)


def measure(effort: Effort) -> Measurement:
    """Return the time of an incremental run on the longest ledger by that on the shortest."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        rows_each = effort.pick(1_000_448, 50_176)
        ledgers = _histories(Path(folder), rows_each, effort)
        effort.progress("starting Spark")
        session = build_session(wrapper_folder=Path(folder) / "java")
        try:
            return asyncio.run(_measure(effort, {n: _Side(each, session) for n, each in ledgers.items()}, rows_each))
        finally:
            session.stop()


def _histories(folder: Path, rows_each: int, effort: Effort) -> dict[int, FactsLedger]:
    longest = FactsLedger(folder / f"{LENGTHS[-1]}")
    ledgers = {LENGTHS[-1]: longest}
    for length in range(1, LENGTHS[-1] + 1):
        longest.grow(rows_each)
        if length in LENGTHS[:-1]:
            ledgers[length] = FactsLedger(folder / f"{length}")
            ledgers[length].copy_chunks(longest, longest.chunks, longest.rows)
        if length % 25 == 0:
            effort.progress(f"wrote {longest.rows:,} rows")
    return {length: ledgers[length] for length in LENGTHS}


async def _measure(effort: Effort, sides: Mapping[int, _Side], rows_each: int) -> Measurement:
    for side in sides.values():
        # The first run counts everything. It and a few more warm the JVM up.
        for _ in range(WARM_UP_RUNS):
            await side.run()
            side.grow()
    full_seconds: dict[int, float] = {}
    for length, side in sides.items():
        began = time.perf_counter()
        await side.run(full=True)
        full_seconds[length] = time.perf_counter() - began
        effort.progress(f"counted all of {rows_each * length:,} rows in {full_seconds[length]:.1f} s")

    rounds = effort.pick(15, 5)
    seconds: dict[int, list[float]] = {length: [] for length in sides}

    async def timed(length: int) -> None:
        sides[length].grow()
        began = time.perf_counter()
        await sides[length].run()
        seconds[length].append(time.perf_counter() - began)

    # Only the run is timed, not the writing of new chunks.
    await run_alternating({str(n): lambda n=n: timed(n) for n in sides}, rounds, effort.progress)  # type: ignore[misc]
    counted = {length: took[1:] for length, took in seconds.items()}
    return compared(counted, full_seconds)


def compared(seconds: Mapping[int, Sequence[float]], full_seconds: Mapping[int, float]) -> Measurement:
    shortest, longest = min(seconds), max(seconds)
    ratios = [long / short for short, long in zip(seconds[shortest], seconds[longest], strict=True)]
    return Measurement(
        median(ratios),
        {
            **{f"incremental_{length}x_ms": round(median(took) * 1000, 1) for length, took in seconds.items()},
            **{f"full_{length}x_ms": round(took * 1000, 1) for length, took in full_seconds.items()},
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "rounds": len(ratios),
        },
    )


BENCHMARK = Benchmark(unit="times as long", goal=1.25, better="lower", measure=measure)
