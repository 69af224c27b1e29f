"""A few small chunks are read in this process, with the rows that workers return; others are left to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drain.spark.chunks import ChunkBatch, LedgerChunks, SmallReads
from drain.spark.fact_source import FACTS
from drain.spark.object_reader import DEFAULT_LIMITS, read_objects
from headgate.errors import LedgerError, ObjectMissingError
from tests.support.samples.damaged_files import corrupt, truncate
from tests.support.samples.ledgers import RandomLedger
from tests.support.samples.object_formats import sealed


@pytest.fixture
def ledger(tmp_path: Path) -> RandomLedger:
    """A shard in a folder with a space in its name."""
    written = RandomLedger(tmp_path / "one folder", seed=7, shard=12)
    written.grow(40)
    return written


def batch(ledger: RandomLedger, shards: int = 1, **limits: int) -> ChunkBatch:
    numbers = range(1, ledger.state.chunk + 1)
    return asyncio.run(LedgerChunks(ledger.url, SmallReads(**limits)).read(12, numbers, shards=shards))


def rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def test_the_rows_of_all_chunks_are_those_that_workers_read(ledger: RandomLedger) -> None:
    path = ledger.path(1)
    path.write_bytes(sealed(pq.read_table(path, partitioning=None).drop_columns(["bucket"])))
    found = batch(ledger)
    of_workers = read_objects(ledger.url, [(path, None) for path in found.paths], FACTS, DEFAULT_LIMITS)

    assert found.facts is not None
    assert found.facts.schema == FACTS
    assert (found.shard, found.at_ms, len(found.paths)) == (12, 41_000, 41)
    assert rows(found.facts) == rows(pa.Table.from_batches(of_workers))


def test_more_rows_are_left_to_workers(ledger: RandomLedger) -> None:
    found = batch(ledger).facts
    assert found is not None
    for limit, shards, small in (
        (len(found), 1, True),
        (len(found) - 1, 1, False),
        (len(found), 2, False),
        (0, 1, False),
    ):
        assert small == (batch(ledger, shards, max_rows=limit).facts is not None)


@pytest.mark.parametrize("limit", ["max_chunks", "max_bytes"])
def test_of_many_or_large_chunks_only_the_last_one_is_read(ledger: RandomLedger, limit: str) -> None:
    ledger.path(1).unlink()

    assert batch(ledger, **{limit: 40}).facts is None


@pytest.mark.parametrize(
    ("damage", "error"), [(Path.unlink, ObjectMissingError), (truncate, LedgerError), (corrupt, LedgerError)]
)
def test_a_damaged_chunk_is_named(ledger: RandomLedger, damage, error: type[Exception]) -> None:
    damage(ledger.path(3))

    with pytest.raises(error, match="chunks/shard=0012/000000000003"):
        batch(ledger)
