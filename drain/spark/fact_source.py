"""Where Spark gets the facts of chunks from: its own file systems, our reader of objects, or this process.

A folder is read by Spark itself, which is the quickest. A bucket is read through drain.spark.object_data_source, for
which no jar is needed, unless an operator has put Hadoop's jars for that store into Spark and says so (``reader =
"spark"``).

What has come since the last run is mostly a few small chunks, and for these a scan costs more than the rows in them:
Spark looks for each file twice, plans a scan, and opens them in tasks of their own. So the rows of a few chunks in a
folder are read here and travel within the plan (drain.spark.small_chunk_reader).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from drain.spark import object_data_source as objects
from drain.spark.schemas import FACTS
from drain.spark.small_chunk_reader import SMALL_READ_MAX_ROWS, read_small_chunks
from drain.spark.spark_schemas import spark_frame, spark_schema
from headgate.ledger.ledger import chunk_folder, chunk_name

Reader = Literal["auto", "spark"]
READERS: Final[tuple[Reader, ...]] = ("auto", "spark")
_FACTS: Final = spark_schema(FACTS)
_HADOOP_SCHEMES: Final = {"s3": "s3a", "az": "abfss"}
"""What Spark's file systems call the schemes that we write as obstore does."""


class FactSource(Protocol):
    """How one ledger's chunks become a frame of facts."""

    base: str
    """The folder of all shards, as errors name it."""
    checks_headers: bool
    """Whether reading an object refuses one that is not the chunk its name says."""

    def path(self, shard: int, number: int) -> str:
        """Return one chunk's place, as `frame` takes it."""

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of these chunks, as schemas.FACTS."""

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:
        """Return the same rows, read in this process; None if they are not few, or cannot be read here."""


class SparkFiles:
    """Chunks that Spark reads by itself. It fills columns that a file lacks with nulls, and knows no headers."""

    checks_headers = False

    def __init__(self, ledger_url: str, *, small_read_max_rows: int = SMALL_READ_MAX_ROWS) -> None:
        """Folders with at most ``small_read_max_rows`` rows are read in this process; 0 leaves all to Spark."""
        parts = urlsplit(ledger_url)
        self._small_read_max_rows = small_read_max_rows if parts.scheme == "file" else 0
        scheme = _HADOOP_SCHEMES.get(parts.scheme, parts.scheme)
        # Hadoop takes a path as it is, without decoding it.
        self._root = f"{scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}"
        self.base = f"{self._root}/ledger"

    def path(self, shard: int, number: int) -> str:
        """See `FactSource.path`."""
        return f"{self._root}/{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        """See `FactSource.frame`; below the base Spark takes ``shard=0003`` for the value of the column shard."""
        return session.read.schema(_FACTS).option("basePath", self.base).parquet(*paths)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:
        """See `FactSource.small_frame`."""
        table = read_small_chunks([path.removeprefix("file://") for path in paths], self._small_read_max_rows)
        return None if table is None else spark_frame(session, table, _FACTS)


class StoreObjects:
    """Chunks that our own reader fetches on Spark's workers (drain.spark.object_data_source)."""

    checks_headers = True

    def __init__(self, ledger_url: str) -> None:
        self._ledger_url = ledger_url
        self.base = f"{ledger_url.rstrip('/')}/ledger"

    def path(self, shard: int, number: int) -> str:
        """See `FactSource.path`."""
        return f"{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        """See `FactSource.frame`."""
        objects.register(session)
        return objects.object_frame(session, self._ledger_url, paths, _FACTS)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:  # noqa: ARG002
        """See `FactSource.small_frame`; objects are fetched by workers only."""
        return None


def fact_source(
    ledger_url: str, reader: Reader = "auto", *, small_read_max_rows: int = SMALL_READ_MAX_ROWS
) -> FactSource:
    """Return how the ledger at ``ledger_url`` is read; ``spark`` trusts in jars that an operator configured."""
    native = reader == "spark" or urlsplit(ledger_url).scheme == "file"
    return SparkFiles(ledger_url, small_read_max_rows=small_read_max_rows) if native else StoreObjects(ledger_url)
