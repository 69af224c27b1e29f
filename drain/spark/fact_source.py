"""Where Spark gets the facts of chunks: its own file systems, headgate's object reader, or this process.

Spark reads a folder itself, and a bucket through drain.spark.object_reader, without a jar. A few small chunks in a
folder are read here: scanning them in Spark costs more than counting their rows. Spark never infers a schema.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from drain.spark.object_reader import object_frame
from headgate.ledger.chunk import COLUMNS
from headgate.ledger.paths import CHUNKS_FOLDER, chunk_folder, chunk_name

FACT_COLUMNS: Final = (
    "fact",
    "topic_id",
    "segment",
    "offset",
    "end_offset",
    "subscription_id",
    "subscription_type",
    "seek_generation",
    "bucket",
    "timestamp_ms",
    "size_bytes",
)
"""The only columns that are read from chunks: keys, values and bodies are not among them."""

CHUNK_FACTS: Final = pa.schema([(name, pa.type_for_alias(COLUMNS[name])) for name in FACT_COLUMNS])
FACTS: Final = CHUNK_FACTS.append(pa.field("shard", pa.int64()))
"""The shard is not a column of a chunk: it is taken from the chunk's folder."""
_FACTS: Final = from_arrow_schema(FACTS)
_SHARD: Final = re.compile(r"/shard=(\d+)/[^/]+$")
SMALL_READ_MAX_ROWS: Final = 25_000
"""The driver converts each row, and one task counts all of them, while a scan distributes files
over tasks. Measured: with 20 chunks of 500 or 1 000 rows a scan takes 1.6 to 1.9 times as long,
with 2 500 rows each 1.2 times, and with 5 chunks of 20 000 rows the scan is faster. A row takes
some 100 bytes, in Python and in the JVM."""
SMALL_READ_MAX_CHUNKS: Final = 2000
"""Each chunk takes 0.25 ms here, one after the other, while tasks open them concurrently. Measured with two cores and
some rows per chunk: 200 chunks take 94 ms here and 270 with a scan, 1 600 take 425 and 858. The first scan of a process
takes 4 s longer, and the first read here 0.2. More cores would make the scan faster."""


def read_small_chunks(paths: Sequence[str], max_rows: int, max_chunks: int = SMALL_READ_MAX_CHUNKS) -> pa.Table | None:
    """Return the rows of the chunks at ``paths`` as FACTS; None if they are too many or unreadable.

    A missing column is null, and the shard is taken from the folder, as in Spark, which reads such chunks and reports
    errors.
    """
    if len(paths) > max_chunks:
        return None
    tables: list[pa.Table] = []
    rows = 0
    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                rows += file.metadata.num_rows
                if rows > max_rows:
                    return None
                table = file.read(columns=list(FACT_COLUMNS), use_threads=False)
            match = _SHARD.search(path)
            assert match is not None, f"{path} is not the path of a chunk"
            tables.append(table.append_column("shard", pa.repeat(int(match[1]), len(table))))
        return pa.concat_tables([FACTS.empty_table(), *tables], promote_options="permissive").cast(FACTS)
    except (pa.ArrowException, OSError):
        return None


def spark_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return ``table`` as a DataFrame whose rows are sent with the plan.

    The table is combined into one Arrow batch. Of several batches Spark (seen with 4.3) takes the
    first empty one for the last and silently drops the rest.
    """
    return session.createDataFrame(table.combine_chunks())


class SparkFiles:
    """Chunks of a folder. Spark fills missing columns with nulls, and checks neither checksums nor headers."""

    checks_objects = False
    """Whether reading fails for a damaged chunk, or one whose header does not match its name."""

    def __init__(self, ledger_url: str, *, small_read_max_rows: int = SMALL_READ_MAX_ROWS) -> None:
        """Up to ``small_read_max_rows`` rows are read in this process; 0: Spark reads all of them.

        Spark does not decode the path of ``ledger_url``.
        """
        self._small_read_max_rows = small_read_max_rows
        self._root = f"file://{unquote(urlsplit(ledger_url).path).rstrip('/')}"
        self.base = f"{self._root}/{CHUNKS_FOLDER}"
        """The folder of all shards, for error messages."""

    def path(self, shard: int, number: int) -> str:
        return f"{self._root}/{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of these chunks, as FACTS. Spark takes the shard from the folder ``shard=0003``."""
        return session.read.schema(_FACTS).option("basePath", self.base).parquet(*paths)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:
        """Return the same rows, read in this process; None if they are too many or cannot be read here."""
        table = read_small_chunks([path.removeprefix("file://") for path in paths], self._small_read_max_rows)
        return None if table is None else spark_frame(session, table)


class StoreObjects:
    """Chunks that headgate's object reader fetches on Spark's workers (drain.spark.object_reader)."""

    checks_objects = True

    def __init__(self, ledger_url: str) -> None:
        self._ledger_url = ledger_url
        self.base = f"{ledger_url.rstrip('/')}/{CHUNKS_FOLDER}"

    def path(self, shard: int, number: int) -> str:
        return f"{chunk_folder(shard)}/{chunk_name(number)}"

    def frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame:
        return object_frame(session, self._ledger_url, dict.fromkeys(paths), FACTS)

    def small_frame(self, session: SparkSession, paths: Sequence[str]) -> DataFrame | None:  # noqa: ARG002
        """Return None: only workers fetch objects."""
        return None


FactSource = SparkFiles | StoreObjects


def fact_source(ledger_url: str, *, small_read_max_rows: int = SMALL_READ_MAX_ROWS) -> FactSource:
    """Return the source for the ledger at ``ledger_url``."""
    if urlsplit(ledger_url).scheme == "file":
        return SparkFiles(ledger_url, small_read_max_rows=small_read_max_rows)
    return StoreObjects(ledger_url)
