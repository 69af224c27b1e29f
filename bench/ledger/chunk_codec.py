"""Cost of the chunk format, against plain Parquet of the same records.

Ours: a chunk with its entries, facts and header is encoded, then opened twice, as in production:
once for the entries (by the state) and once for the records (by consumers). The other side: pyarrow
builds a table of the same six columns from the same Python lists, writes it with the same
compression and reads it back into lists. The ratio is the price of entries, facts, checks and the second
opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from bench.harness.workload import Shard, batches
from controller.chunk_writer.builder import SCHEMA
from headgate.ledger import chunk
from headgate.ledger.record_columns import RecordColumns

BATCHES, RECORDS_EACH, VALUE_BYTES = 100, 100, 200
QUICK_BATCHES = 10
PLAIN_COLUMNS = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value")
PLAIN_SCHEMA = pa.schema([SCHEMA.field(name) for name in PLAIN_COLUMNS])


def measure(effort: Effort) -> Measurement:
    """Return our round trip over the plain one; encoding and decoding are parts."""
    shard = Shard(segments=8)
    builder = shard.begin()
    for batch in batches(effort.pick(BATCHES, QUICK_BATCHES), RECORDS_EACH, VALUE_BYTES, Shard.PRODUCER_ID):
        shard.add_batch(builder, batch)
    number, count = shard.state.chunk, len(builder.records)
    ours, plain = shard.encode(builder), _write_plain(builder.records)
    assert _decode(ours, number) == _read_plain(plain), "both sides must read the same number of records"

    sides = {
        "encode": lambda: shard.encode(builder),
        "plain_write": lambda: _write_plain(builder.records),
        "decode": lambda: _decode(ours, number),
        "plain_read": lambda: _read_plain(plain),
    }
    rounds = run_alternating(sides, effort.pick(31, 5), effort.progress)
    both = _combine(rounds.seconds["encode"], rounds.seconds["decode"])
    plain_both = _combine(rounds.seconds["plain_write"], rounds.seconds["plain_read"])
    ratios = [a / b for a, b in zip(both, plain_both, strict=True)]
    rates = {f"{side}_records_a_second": round(count / rounds.median_seconds(side)) for side in sides}
    return Measurement(
        median(ratios),
        {
            **rates,
            "encode_ratio": round(rounds.median_ratio("encode", "plain_write").value, 4),
            "decode_ratio": round(rounds.median_ratio("decode", "plain_read").value, 4),
            "lowest": round(min(ratios), 4),
            "highest": round(max(ratios), 4),
            "rounds": len(ratios),
            "records": count,
            "chunk_bytes": len(ours),
            "plain_bytes": len(plain),
        },
    )


def _combine(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(first, second, strict=True)]


def _decode(data: bytes, number: int) -> int:
    chunk.decode(data, shard=0, number=number)
    return len(chunk.decode_records(data, shard=0, number=number))


def _write_plain(records: RecordColumns) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pydict({name: getattr(records, name) for name in PLAIN_COLUMNS}, schema=PLAIN_SCHEMA)
    pq.write_table(table, sink, compression="snappy", use_dictionary=False)
    return bytes(sink.getvalue())


def _read_plain(data: bytes) -> int:
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    columns = [column.to_pylist() for column in table.columns]
    return len(columns[0])


BENCHMARK = Benchmark(unit="times plain Parquet", goal=1.75, better="lower", measure=measure)
