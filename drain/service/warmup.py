"""Warm up a fresh JVM with a run before the first request.

The first run of a JVM takes as long as twenty later ones. The warm-up aggregates a made-up fact in two tasks: a
worker of Python imports for a second, and the runs of most machines need two workers. More runs would save nothing.

Only for engines that see this machine's files. Executors of a cluster stay warm on their own.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from drain.backlog import aggregates
from drain.backlog.aggregates import SCHEMA, aggregate
from drain.spark import object_reader
from drain.spark.engines import run_errors
from drain.spark.object_reader import decode_object, read_in_tasks


def warm_up(session: SparkSession, report: Callable[[str], None]) -> None:
    """Run for some seconds, and ``report`` that it is done. Raises RunError."""

    def work(task: Sequence[int]) -> Iterator[pa.RecordBatch]:
        assert callable(decode_object), "what reads objects is imported, too"
        yield from aggregate(pa.Table.from_pylist([dict.fromkeys(SCHEMA.names, n) for n in task], SCHEMA)).to_batches()

    with run_errors():
        sent = (object_reader.__name__, aggregates.__name__, "headgate.ledger.checksum")
        read_in_tasks(session, [0, 1], 2, work, SCHEMA, sent).toArrow()
    report("the warm-up run has completed")
