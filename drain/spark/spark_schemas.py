"""Schemas and tables as Spark types."""

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
    """Return ``schema`` as a Spark schema. Every column is nullable, as in a Parquet file."""
    return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in schema])


def spark_frame(session: SparkSession, table: pa.Table, schema: t.StructType) -> DataFrame:
    """Return ``table``, which has the columns of ``schema``, as a DataFrame whose rows are sent with the plan.

    The table is combined into one Arrow batch. Of several batches Spark (seen with 4.3) takes the
    first empty one for the last and silently drops the rest.
    """
    return session.createDataFrame(table.combine_chunks(), schema)


def _spark_type(arrow: pa.DataType) -> t.DataType:
    if pa.types.is_list(arrow):
        return t.ArrayType(_spark_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in arrow])
    return _SIMPLE[arrow]
