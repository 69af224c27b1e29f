"""Rewrite objects of the ledger: with another format, with other rows and a right checksum, or damaged."""

import io
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.ledger.checksum import MARK, SEAL_BYTES, seal, seal_json, seal_parquet


def of_older_format(data: bytes, number: int = 1) -> bytes:
    """Return ``data``, a Parquet, JSON or snapshot object, as an older version wrote it."""
    if data.startswith(b"PAR1"):
        return seal_parquet(_parquet_with_format(data, number))
    if data.startswith(b"{"):
        document = json.loads(data) | {"format": number}
        document.pop("checksum", None)
        return seal_json(json.dumps(document).encode())
    assert data.startswith(MARK), "not an object of the ledger"
    file = msgspec.msgpack.decode(data[SEAL_BYTES:])
    file["header"]["format"] = number
    return seal(msgspec.msgpack.encode(file))


def of_newer_format(data: bytes, number: int = 9) -> bytes:
    """Return ``data`` as a newer version may write it, with the same kind of checksum."""
    return of_older_format(data, number)


def sealed(table: pa.Table) -> bytes:
    """Return ``table`` as a Parquet object with a right checksum."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return seal_parquet(sink.getvalue())


def _parquet_with_format(data: bytes, number: int) -> bytes:
    table = pq.read_table(io.BytesIO(data), partitioning=None)
    metadata = {
        key: json.dumps(json.loads(value) | {"format": number}).encode() if key.startswith(b"headgate") else value
        for key, value in (table.schema.metadata or {}).items()
    }
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()


def truncate(path: Path) -> None:
    """Remove the end of the footer."""
    path.write_bytes(path.read_bytes()[:-20])


def corrupt(path: Path) -> None:
    """Overwrite data pages. The footer stays valid, so only reading the pages detects it."""
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
