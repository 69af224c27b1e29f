"""Throughput of a full count of a ledger, against DuckDB and Polars on the same files with the same answer.

Ours: a full count, from the first chunk to merged rows: all headers checked,
everything counted in one Spark job. The other sides: one query over the same files for the same
numbers: records, bytes and end of each segment, and each subscription's position in it. The answers
are compared before anything is measured. Ours counts more (by topic, key bucket and seek
generation, ranges out of order, removals, ages), from eleven columns where the others read six, and
reads every header twice. All sides are warm. The ledger is long enough that a run's fixed price
(0.1 s here) does not matter.

`spark_alone` is the others' query in the same Spark session, over the faster peer: the floor for
Spark. It decodes columns as fast as the peers, then processes them row by row in compiled Java,
with one hash table lookup per row. Ours does the same with all its columns; `ours_of_spark` shows
how close that is. The difference to 1 is the additional work.

The value is our rows per second over those of the faster peer, measured in turns. Spark is used
because it scales beyond one machine: the files are read independently, and one shuffle moves a row
per key and task, less than a megabyte in total. `second_core` is the speed-up by a second core,
with its own goal.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Self

from bench.harness import peer_assignors
from bench.harness.benchmark import Benchmark, Effort, Measurement, Rounds, run_alternating
from bench.harness.facts_ledger import FactsLedger
from drain.backlog.job import BacklogJob, count_on
from drain.backlog.merge import StateRow
from drain.spark.chunks import LedgerChunks
from drain.spark.schemas import FACTS
from drain.spark.session import build_session
from drain.spark.spark_schemas import spark_schema

PEERS = ("duckdb==2.0.0", "polars==2.1.0")
WARM_UP_RUNS = 5
Answer = tuple[frozenset[tuple[int, int, int, int]], frozenset[tuple[int, int, int]]]
"""{(segment, records, bytes, end)}, {(subscription, segment, position)}."""

_SQL = """
SELECT segment, subscription_id,
       count(*) FILTER (WHERE fact = 'record') AS records,
       coalesce(sum(size_bytes), 0) AS size_bytes,
       coalesce(max(CASE WHEN fact = 'record' THEN "offset" + 1 END), 0) AS record_end,
       coalesce(max(CASE WHEN fact = 'acknowledged' AND "offset" = 0 THEN end_offset END), 0) AS position
FROM read_parquet(?) WHERE fact IN ('record', 'acknowledged') GROUP BY ALL
"""

# A null in the key would make Spark use the slower of its two hash tables.
_SPARK_SQL = (
    _SQL.replace("segment, subscription_id,", "coalesce(segment, -1L), coalesce(subscription_id, -1L),")
    .replace('"offset"', "offset")
    .replace("read_parquet(?)", "{facts}")
)


def measure(effort: Effort) -> Measurement:
    """Return our rows per second over those of the faster peer."""
    peer_assignors.install(effort.progress, PEERS)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        ledger = FactsLedger(Path(folder) / "ledger")
        for _ in range(effort.pick(40, 8)):
            ledger.grow(500_224)
        effort.progress(f"wrote {ledger.rows:,} rows")
        on_one = _on_one_core(Path(folder), ledger, effort)
        rounds = _beside_peers(Path(folder), ledger, effort)
    return compared(rounds, on_one, ledger.rows)


def compared(rounds: Rounds, on_one_core: Sequence[float], rows: int) -> Measurement:
    """Return the measurement from the seconds of each side, and of ours on one core."""
    best = min(("duckdb", "polars"), key=rounds.median_seconds)
    ratios = rounds.ratios(best, "ours")
    return Measurement(
        median(ratios),
        {
            **{
                f"{side}_rows_per_second": round(rows / rounds.median_seconds(side))
                for side in ("ours", "spark", "duckdb", "polars")
            },
            "spark_alone": round(median(rounds.ratios(best, "spark")), 3),
            "ours_of_spark": round(median(rounds.ratios("spark", "ours")), 3),
            "one_core_rows_per_second": round(rows / median(on_one_core)),
            "second_core": round(median(on_one_core) / rounds.median_seconds("ours"), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "best_peer": best,
            "rows": rows,
            "rounds": len(ratios),
        },
    )


def _on_one_core(folder: Path, ledger: FactsLedger, effort: Effort) -> list[float]:
    effort.progress("starting Spark on one core")
    with _Ours(folder, ledger, "local[1]") as ours:
        took = []
        for _ in range(effort.pick(5, 3)):
            began = time.perf_counter()
            ours.count()
            took.append(time.perf_counter() - began)
        return took


def _beside_peers(folder: Path, ledger: FactsLedger, effort: Effort) -> Rounds:
    effort.progress("starting Spark on two cores")
    with _Ours(folder, ledger, "local[2]") as ours:
        sides: dict[str, Callable[[], Answer]] = {
            "ours": ours.count,
            "spark": lambda: ours.query(ledger.paths()),
            "duckdb": lambda: _duckdb(ledger.paths()),
            "polars": lambda: _polars(ledger.paths()),
        }
        answers = {name: count() for name, count in sides.items()}
        assert len(set(answers.values())) == 1, f"the answers differ: {answers}"
        return run_alternating(sides, effort.pick(7, 3), effort.progress)


class _Ours:
    """Our job in its own session, warm on entry."""

    def __init__(self, folder: Path, ledger: FactsLedger, master: str) -> None:
        self._session = build_session(master=master, wrapper_folder=folder / "java")
        self._chunks = LedgerChunks(ledger.url)

    def __enter__(self) -> Self:
        for _ in range(WARM_UP_RUNS):
            self.count()
        return self

    def query(self, paths: Sequence[str]) -> Answer:
        """Run the other sides' query in Spark, written as it suits Spark best."""
        found = self._session.read.schema(spark_schema(FACTS)).parquet(*(f"file://{path}" for path in paths))
        rows = self._session.sql(_SPARK_SQL, facts=found).toArrow().to_pylist()
        return _from_table([[None if value == -1 else value for value in row.values()] for row in rows])

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def count(self) -> Answer:
        return _answer(asyncio.run(self._count()))

    async def _count(self) -> Sequence[StateRow]:
        outcome = await BacklogJob(self._chunks, count_on(self._session, self._chunks)).run([0], full=True)
        assert not outcome.failures, outcome.failures
        return outcome.results[0].rows


def _answer(rows: Sequence[StateRow]) -> Answer:
    segments = {
        (row.segment, row.records, row.size_bytes, row.end_offset)
        for row in rows
        if row.segment is not None and row.subscription_id is None
    }
    positions = {
        (row.subscription_id, row.segment, row.position)
        for row in rows
        if row.segment is not None and row.subscription_id is not None
    }
    return frozenset(segments), frozenset(positions)


def _from_table(rows: Sequence[Sequence[Any]]) -> Answer:
    """Return the answer from rows of (segment, subscription, records, bytes, end, position)."""
    segments = {
        (segment, records, size, end) for segment, subscription, records, size, end, _ in rows if subscription is None
    }
    positions = {
        (subscription, segment, position) for segment, subscription, *_, position in rows if subscription is not None
    }
    return frozenset(segments), frozenset(positions)


def _duckdb(paths: Sequence[str]) -> Answer:
    duckdb = import_module("duckdb")
    with duckdb.connect(config={"threads": 2}) as connection:
        return _from_table(connection.execute(_SQL, [list(paths)]).fetchall())


def _polars(paths: Sequence[str]) -> Answer:
    pl = import_module("polars")
    fact, offset, end = pl.col("fact"), pl.col("offset"), pl.col("end_offset")
    found = (
        pl.scan_parquet(list(paths))
        .filter(fact.is_in(["record", "acknowledged"]))
        .group_by("segment", "subscription_id")
        .agg(
            (fact == "record").sum().cast(pl.Int64),
            pl.col("size_bytes").sum(),
            pl.when(fact == "record").then(offset + 1).max().fill_null(0).alias("record_end"),
            pl.when((fact == "acknowledged") & (offset == 0)).then(end).max().fill_null(0).alias("position"),
        )
        .collect(engine="streaming")
    )
    return _from_table(found.rows())


BENCHMARK = Benchmark(
    unit="of the faster peer's rows a second",
    goal=0.5,
    better="higher",
    measure=measure,
    part_goals={"second_core": 1.6},
)
