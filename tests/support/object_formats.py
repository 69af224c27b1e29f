"""Rewrite an object of the ledger so that it states another format."""

from __future__ import annotations

import io
import json

import msgspec
import pyarrow.parquet as pq


def with_format(data: bytes, number: int) -> bytes:
    """Return ``data``, a Parquet, JSON or snapshot object, with ``number`` as its format."""
    if data.startswith(b"PAR1"):
        return _parquet_with_format(data, number)
    if data.startswith(b"{"):
        return json.dumps(json.loads(data) | {"format": number}).encode()
    file = msgspec.msgpack.decode(data)
    file["header"]["format"] = number
    return msgspec.msgpack.encode(file)


def _parquet_with_format(data: bytes, number: int) -> bytes:
    table = pq.read_table(io.BytesIO(data), partitioning=None)
    metadata = {
        key: json.dumps(json.loads(value) | {"format": number}).encode() if key.startswith(b"headgate") else value
        for key, value in (table.schema.metadata or {}).items()
    }
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()
