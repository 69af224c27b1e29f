"""Duration of a warm backlog run over a second of new chunks, against a trivial aggregation in the same session.

Ours: list, check, count, merge and publish 20 new chunks, as the Spark process does. They are one
second of a leader that commits every 50 ms: 800 records in 8 segments, with the acknowledgements of
three subscriptions. The other side: the sum over ten rows in the same session, the price of any
Spark job. In turns; the value is the median of the rounds' ratios.

The floor is 1, because a run is a Spark job itself. The rest is passing the task to a worker of Python (a
fixed price that a run over one chunk pays too), and reading and counting the chunks there. Listing hardly counts.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from bench.harness.benchmark import Benchmark, Effort, Measurement
from bench.harness.cluster import percentile
from bench.harness.workload import Shard, batches
from drain.backlog.counting import aggregate_chunks, aggregation_plan
from drain.backlog.job import BacklogJob, count_on
from drain.backlog.results import publish_result
from drain.spark.chunks import LedgerChunks
from drain.spark.session import build_session
from headgate.ledger.paths import chunk_folder, chunk_name
from headgate.model import entries as e

CHUNKS, RECORDS_EACH, VALUE_BYTES, SEGMENTS = 20, 40, 100, 8
SUBSCRIPTIONS = (3, 4, 5)
WARM_UP_RUNS = 12


def measure(effort: Effort) -> Measurement:
    """Return the duration of a warm run over that of the trivial aggregation."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        effort.progress("starting Spark")
        session = build_session(wrapper_folder=Path(folder) / "java")
        try:
            return asyncio.run(_measure(effort, session, _Growing(Path(folder) / "ledger")))
        finally:
            session.stop()


class _Growing:
    """A ledger that grows by a second of traffic at a time."""

    def __init__(self, root: Path) -> None:
        self._folder = root / chunk_folder(0)
        self._folder.mkdir(parents=True)
        self.chunks = LedgerChunks(root.as_uri())
        self._shard = Shard(SEGMENTS)
        for number in SUBSCRIPTIONS:
            self._shard.add(
                self._shard.first,
                e.SubscriptionCreated(
                    topic_id=1,
                    subscription_id=number,
                    subscription=f"s{number}",
                    subscription_type=e.SubscriptionType.STREAM,
                    order="strict",
                    positions={},
                ),
            )
        self._write(self._shard.encode(self._shard.first))
        self._batches = iter(batches(4000, RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID))

    def grow(self, chunks: int) -> None:
        for _ in range(chunks):
            builder = self._shard.begin()
            self._shard.add_batch(builder, next(self._batches))
            tails = self._shard.state.topics["bench"].tails
            for number in SUBSCRIPTIONS:
                ranges = [e.AcknowledgedRange(segment, 0, tail.next_offset) for segment, tail in tails.items()]
                entry = e.RecordsAcknowledged(topic_id=1, subscription_id=number, seek_generation=0, ranges=ranges)
                self._shard.add(builder, entry)
            self._write(self._shard.encode(builder))

    def _write(self, data: bytes) -> None:
        (self._folder / chunk_name(self._shard.state.chunk)).write_bytes(data)


async def _measure(effort: Effort, session: SparkSession, ledger: _Growing) -> Measurement:
    job = BacklogJob(ledger.chunks, count_on(session, ledger.chunks))

    async def run() -> None:
        outcome = await job.run([0])
        assert not outcome.failures, outcome.failures

    async def trivial() -> None:
        await asyncio.to_thread(session.range(10).selectExpr("sum(id)").collect)

    async def grown(chunks: int) -> float:
        ledger.grow(chunks)
        return await _seconds(run)

    for _ in range(WARM_UP_RUNS):
        await grown(CHUNKS)
        await trivial()
    effort.progress("warm")
    took: list[float] = []
    single: list[float] = []
    floor: list[float] = []
    parts: dict[str, list[float]] = {"listing": [], "planning": [], "counting": [], "publishing": []}
    for number in range(effort.pick(30, 8)):
        took.append(await grown(CHUNKS))
        floor.append(await _seconds(trivial))
        single.append(await grown(1))
        await _parts(session, ledger, job, parts)
        effort.progress(f"round {number + 1}")
    ratios = [ours / theirs for ours, theirs in zip(took, floor, strict=True)]
    return Measurement(
        median(ratios),
        {
            "run_ms": _ms(median(took)),
            "run_p95_ms": _ms(percentile(took, 0.95)),
            "trivial_ms": _ms(median(floor)),
            "run_over_one_chunk_ms": _ms(median(single)),
            **{f"{name}_ms": _ms(median(seconds)) for name, seconds in parts.items()},
            "chunks": CHUNKS,
            "rounds": len(took),
        },
    )


async def _parts(session: SparkSession, ledger: _Growing, job: BacklogJob, parts: dict[str, list[float]]) -> None:
    """Time the steps of one more run; ``counting`` contains ``planning``."""
    before = (await job.run([0])).results[0]
    ledger.grow(CHUNKS)
    url, store = ledger.chunks.url, ledger.chunks.store
    began = time.perf_counter()
    numbers = await ledger.chunks.newer_than(0, before.watermark)
    parts["listing"].append(time.perf_counter() - began)
    due = {0: numbers}
    parts["planning"].append(await _seconds(lambda: asyncio.to_thread(aggregation_plan, session, url, due)))
    parts["counting"].append(await _seconds(lambda: asyncio.to_thread(aggregate_chunks, session, url, due)))
    after = (await job.run([0])).results[0]
    elsewhere = replace(after, shard=1)
    parts["publishing"].append(await _seconds(lambda: publish_result(store, elsewhere)))


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


BENCHMARK = Benchmark(unit="times a trivial aggregation", goal=2.5, better="lower", measure=measure)
