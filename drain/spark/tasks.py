"""Read items in tasks of Spark, with the functions of modules that are sent with the query.

So workers need pyarrow, obstore and the store's credentials in their environment, but not headgate.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

ItemT = TypeVar("ItemT")


def read_in_tasks(
    session: SparkSession,
    items: Sequence[ItemT],
    tasks: int,
    read: Callable[[Sequence[ItemT]], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    sent: Iterable[str],
) -> DataFrame:
    """Return what ``read`` returns for the items of each task, as ``schema``. Adjacent items are in one task.

    ``sent``: names of the modules of whose functions ``read`` consists. A data source of Python would start three
    processes for each query.
    """

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read([items[index] for index in batch.column(0).to_pylist()])

    for module in sent:
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
    return session.range(0, len(items), 1, max(1, tasks)).mapInArrow(task, from_arrow_schema(schema))


def spark_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return ``table`` as a DataFrame whose rows are sent with the plan.

    The table is combined into one Arrow batch. Of several batches Spark (seen with 4.3) takes the
    first empty one for the last and silently drops the rest.
    """
    return session.createDataFrame(table.combine_chunks())
