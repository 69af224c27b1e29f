"""Tables of external topics: a folder of files, a Delta table, an Iceberg table; and a Spark session to count them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyspark import cloudpickle


def write_table(folder: Path, rows: list[dict[str, Any]], form: str = "parquet", name: str = "part-0") -> None:
    """Write ``rows`` as one file, or one commit, of the table in ``folder``; for iceberg, lake.shop.FOLDER."""
    table = pa.Table.from_pylist(rows)
    if form == "delta":
        write_deltalake(folder, table, mode="append", schema_mode="merge")
        return
    if form == "iceberg":
        catalog = load_catalog("lake")
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists(f"shop.{folder.name}", table.schema).append(table)
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "json":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    else:
        lines = [rows[0], *(["" if value is None else str(value) for value in row.values()] for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))


class InProcessSpark:
    """Runs `mapInArrow` in this process, task after task, with a copy of the function as a worker gets it."""

    def range(self, first: int, end: int, step: int, tasks: int) -> InProcessSpark:
        numbers = list(range(first, end, step))
        self._tasks = [numbers[at * len(numbers) // tasks : (at + 1) * len(numbers) // tasks] for at in range(tasks)]
        return self

    def mapInArrow(self, function: Any, _: Any) -> InProcessSpark:  # noqa: N802 - Spark's name
        batches = [pa.record_batch({"id": pa.array(task, pa.int64())}) for task in self._tasks]
        sent = cloudpickle.loads(cloudpickle.dumps(function))
        self._found = [batch for task in batches for batch in sent(iter([task]))]
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.Table.from_batches(self._found)
