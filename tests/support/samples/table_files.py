"""Tables of external topics as files, in the formats that Spark reads without further jars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_table(folder: Path, rows: list[dict[str, Any]], form: str = "parquet") -> None:
    """Write ``rows`` as one file in the new ``folder``; ``form``: parquet, json or csv."""
    folder.mkdir(parents=True)
    path = folder / f"part-0.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [rows[0], *(["" if value is None else str(value) for value in row.values()] for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
