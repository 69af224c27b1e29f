"""The data source `headgate` of Spark: `spark.dataSource.register(HeadgateDataSource)`."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headgate.spark.options import BatchOptions, SinkOptions, StreamOptions, checked
from headgate.spark.sink import TopicBatchWriter, TopicStreamWriter
from headgate.spark.source import SCHEMA, TopicBatchReader, TopicStreamReader


class HeadgateDataSource(DataSource):
    """Read a topic with ``spark.read`` or ``spark.readStream``, and write to it.

    A schema that is given selects columns. Every error of an option is raised before anything runs.
    """

    @classmethod
    def name(cls) -> str:
        return "headgate"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> TopicBatchReader:
        return TopicBatchReader(checked(BatchOptions, self.options), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(checked(StreamOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        return TopicBatchWriter(checked(SinkOptions, self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802 - Spark's name
        return TopicStreamWriter(checked(SinkOptions, self.options), schema, overwrite=overwrite)
