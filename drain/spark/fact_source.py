"""Where Spark gets the facts of chunks: its own file systems, headgate's object reader, or this process.

Spark reads a folder itself, which is fastest. A bucket needs no jar
(drain.spark.object_data_source), unless an operator has installed Hadoop's jars and sets ``reader =
"spark"``. A few small chunks in a folder are read here: scanning them in Spark costs more than
counting their rows.
"""

from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from drain.spark import object_data_source as objects
from drain.spark.schemas import FACTS
from drain.spark.small_chunk_reader import SMALL_READ_MAX_ROWS, read_small_chunks
from drain.spark.spark_schemas import spark_frame, spark_schema
from headgate.ledger.paths import CHUNKS_FOLDER, chunk_folder, chunk_name

Reader = Literal["auto", "spark"]
READERS: Final[tuple[Reader, ...]] = ("auto", "spark")
_FACTS: Final = spark_schema(FACTS)
_HADOOP_SCHEMES: Final = {"s3": "s3a", "az": "abfss"}
"""Scheme of a ledger URL (as in obstore) → scheme of Spark's file system."""


def hadoop_url(ledger_url: str) -> str:
    """Return the URL of the ledger for Spark's file systems, which do not decode paths."""
    parts = urlsplit(ledger_url)
    scheme = _HADOOP_SCHEMES.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}"


class SparkFiles:
    """Chunks that Spark reads. It fills missing columns with nulls, and checks neither checksums nor headers."""

    checks_objects = False
    """Whether reading fails for a damaged chunk, or one whose header does not match its name."""

    def __init__(self, ledger_url: str, *, small_read_max_rows: int = SMALL_READ_MAX_ROWS) -> None:
        """Up to ``small_read_max_rows`` rows of a folder are read in this process; 0: Spark reads all of them."""
        parts = urlsplit(ledger_url)
        self._small_read_max_rows = small_read_max_rows if parts.scheme == "file" else 0
        self._root = hadoop_url(ledger_url)
        self.base = f"{self._root}/{CHUNKS_FOLDER}"
        """The folder of all shards, for error messages."""

    def path(self, shard: int, number: int) -> str:
        return f"{self._root}/{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of these chunks, as schemas.FACTS. Spark takes the shard from the folder ``shard=0003``."""
        return session.read.schema(_FACTS).option("basePath", self.base).parquet(*paths)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:
        """Return the same rows, read in this process; None if they are too many or cannot be read here."""
        table = read_small_chunks([path.removeprefix("file://") for path in paths], self._small_read_max_rows)
        return None if table is None else spark_frame(session, table, _FACTS)


class StoreObjects:
    """Chunks that headgate's object reader fetches on Spark's workers (drain.spark.object_data_source)."""

    checks_objects = True

    def __init__(self, ledger_url: str) -> None:
        self._ledger_url = ledger_url
        self.base = f"{ledger_url.rstrip('/')}/{CHUNKS_FOLDER}"

    def path(self, shard: int, number: int) -> str:
        return f"{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        objects.register(session)
        return objects.object_frame(session, self._ledger_url, paths, _FACTS)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:  # noqa: ARG002
        """Return None: only workers fetch objects."""
        return None


FactSource = SparkFiles | StoreObjects


def fact_source(
    ledger_url: str, reader: Reader = "auto", *, small_read_max_rows: int = SMALL_READ_MAX_ROWS
) -> FactSource:
    """Return the source for the ledger at ``ledger_url``; ``spark`` relies on jars that an operator installed."""
    native = reader == "spark" or urlsplit(ledger_url).scheme == "file"
    return SparkFiles(ledger_url, small_read_max_rows=small_read_max_rows) if native else StoreObjects(ledger_url)
