"""The aggregated facts of a compacted range: one small object beside its records.

With it, a full count needs none of the deleted chunks. Aggregates (drain.backlog.aggregates) are sums and maxima,
so aggregating or merging them again equals doing that with the facts. The manifest states the range, the format and a
checksum of the object, which states none of them.
"""

import pyarrow as pa
import pyarrow.parquet as pq

from drain.backlog.aggregates import SCHEMA
from headgate.errors import LedgerError, ObjectMissingError
from headgate.ledger.compacted import Manifest, check_object, manifest_ranges, read_manifest
from headgate.ledger.paths import ranges_to_read
from headgate.storage.object_store import Store


def encode_range_facts(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.select(SCHEMA.names).cast(SCHEMA), sink, compression="zstd")
    return bytes(sink.getvalue())


async def read_range_facts(store: Store, manifest: Manifest) -> pa.Table:
    """Return the facts of one range; raises LedgerError, ObjectMissingError or StoreUnavailableError."""
    data = await store.read(manifest.facts)
    check_object(data, manifest.facts, manifest.facts_checksum)
    return pq.read_table(pa.BufferReader(data), partitioning=None, use_threads=False).replace_schema_metadata()


async def read_compacted_facts(store: Store, shard: int) -> tuple[Manifest, pa.Table] | None:
    """Return the last compacted range, and the aggregates of all; a kind of a key may have a row for each range.

    None if there are none. Raises LedgerError or StoreUnavailableError.

    If a range is replaced meanwhile, the ranges are listed once more.
    """
    for attempt in (0, 1):
        covering = ranges_to_read(await manifest_ranges(store, shard))
        if not covering:
            return None
        try:
            manifests = [await read_manifest(store, shard, each) for each in covering]
            tables = [await read_range_facts(store, manifest) for manifest in manifests]
        except ObjectMissingError as error:
            if attempt:
                raise LedgerError(f"a compacted range of shard {shard} is listed but missing: {error}") from error
            continue
        return manifests[-1], pa.concat_tables(tables)
    raise AssertionError("the second attempt returns or raises")
