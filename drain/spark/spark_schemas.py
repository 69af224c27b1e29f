"""Schemas and tables as Spark types."""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

_SIMPLE: Final[dict[pa.DataType, t.DataType]] = {
    pa.int64(): t.LongType(),
    pa.string(): t.StringType(),
}


def spark_schema(schema: pa.Schema) -> t.StructType:
    """Return ``schema`` as a Spark schema. Every column is nullable, as in a Parquet file."""
    return t.StructType([t.StructField(field.name, _SIMPLE[field.type]) for field in schema])


def spark_frame(session: SparkSession, table: pa.Table, schema: t.StructType) -> DataFrame:
    """Return ``table``, which has the columns of ``schema``, as a DataFrame whose rows are sent with the plan.

    The table is combined into one Arrow batch. Of several batches Spark (seen with 4.3) takes the
    first empty one for the last and silently drops the rest.
    """
    return session.createDataFrame(table.combine_chunks(), schema)
