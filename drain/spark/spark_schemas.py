"""Schemas and tables as Spark types. Apart from drain.spark.schemas, which the daemon imports without Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

_SIMPLE: Final[dict[pa.DataType, t.DataType]] = {
    pa.int64(): t.LongType(),
    pa.string(): t.StringType(),
    pa.bool_(): t.BooleanType(),
}


def spark_schema(schema: pa.Schema) -> t.StructType:
    """Return ``schema`` in Spark's words; every column may be null, as it may in a Parquet file."""
    return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in schema])


def spark_frame(session: SparkSession, table: pa.Table, schema: t.StructType) -> DataFrame:
    """Return ``table``, whose columns are those of ``schema``, as a frame whose rows travel within the plan.

    It goes over in one piece. A table that was put together from several goes over as several Arrow batches, and Spark
    (seen with 4.3) takes the first one without rows for the last: whatever comes after it is lost, silently.
    """
    return session.createDataFrame(table.combine_chunks(), schema)


def _spark_type(arrow: pa.DataType) -> t.DataType:
    if pa.types.is_list(arrow):
        return t.ArrayType(_spark_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in arrow])
    return _SIMPLE[arrow]
