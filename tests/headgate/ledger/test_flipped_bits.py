"""Each reader of an object notices every flipped bit, and raises one error that names the object.

The bits of small objects are flipped one by one, those of larger ones in steps that meet each bit
position and each part.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from clients.conformance.compaction import compact
from controller.chunk_writer.builder import ChunkBuilder
from controller.snapshots.format import decode_file, encode_snapshot
from drain.backlog.aggregates import FACTS, SCHEMA
from drain.backlog.compacted_facts import encode_range_facts, read_range_facts
from drain.backlog.merge import StateRow
from drain.backlog.results import Result, decode_result, encode_result, result_path
from drain.spark.object_reader import ObjectError, decode_object
from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger import chunk
from headgate.ledger.checksum import checksum
from headgate.ledger.chunk_ranges import ChunkRange
from headgate.ledger.compacted import (
    Manifest,
    decode_compacted,
    manifest_path,
    read_manifest,
)
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import chunk_path, snapshot_path
from headgate.model import entries as e
from headgate.reading.chunk_cache import ChunkCache
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.histories import History
from tests.support.whole_state import decode_snapshot

HEADERS = (("trace", b"00-17"), ("trace", b""))
FLIPS = 2_000
"""Flipped bits per object, at most."""
WORKER_SCHEMA = to_arrow_schema(from_arrow_schema(FACTS))


@dataclass(frozen=True)
class Stored:
    """An object and everything that reads it."""

    path: str
    data: bytes
    readers: tuple[Callable[[bytes], object], ...]


def chunk_of(records: int, **limits: int) -> bytes:
    builder = ChunkBuilder(**limits)
    builder.add(e.TermStarted(leader_epoch=1, instance="a"))
    rng = random.Random(records)
    for offset in range(records):
        for name, value in zip(
            chunk.RECORD_COLUMNS[1:], (1, 0, offset, 7, b"k%d" % offset, b"v100", HEADERS), strict=True
        ):
            getattr(builder.records, name).append(value if name != "value" else value + rng.randbytes(20))
    return builder.encode(shard=3, number=7, leader_epoch=1, at_ms=5)


def stored_chunk(records: int, **limits: int) -> Stored:
    path = chunk_path(3, 7)
    return Stored(
        path,
        chunk_of(records, **limits),
        (
            lambda data: chunk.decode(data, shard=3, number=7),
            lambda data: chunk.decode_records(data, shard=3, number=7),
            lambda data: chunk.decode_header(data, shard=3, number=7),
            lambda data: decode_object(data, path, None, WORKER_SCHEMA),
        ),
    )


def stored_snapshot() -> Stored:
    history = History(1)
    history.grow(20)
    number = history.state.chunk
    return Stored(
        snapshot_path(0, number),
        encode_snapshot(history.state, written_at_ms=7),
        (
            lambda data: decode_snapshot(data, shard=0, chunk=number),
            lambda data: decode_file(data, shard=0, chunk=number),
        ),
    )


def stored_result() -> Stored:
    rows = tuple(StateRow(1, None, segment, end_offset=2, timestamp_index=((0, 100),)) for segment in range(3))
    decode = lambda data: decode_result(data, shard=3, watermark=7)  # noqa: E731
    return Stored(result_path(3, 7), encode_result(Result(3, 7, rows)), (decode,))


OBJECTS = {
    "a chunk of one record": stored_chunk(1),
    "a small chunk": stored_chunk(50),
    "a snapshot": stored_snapshot(),
    "a result": stored_result(),
}


def flips(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` with one flipped bit, for all bits or for FLIPS of them at even distances."""
    bits = len(data) * 8
    step = max(1, bits // FLIPS) | 1  # An odd step meets all eight positions within a byte.
    for bit in range(0, bits, step):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def complaint(read: Callable[[bytes], object], data: bytes) -> str:
    """Return the error of ``read``; ``pytest.raises`` would take longer than most readers."""
    try:
        read(data)
    except (LedgerError, ObjectError) as error:
        assert not isinstance(error, LedgerFormatError), "damage is not an older version"  # noqa: PT017
        return str(error)
    pytest.fail("no error")


@pytest.mark.parametrize("name", OBJECTS)
def test_every_reader_notices_every_flipped_bit_and_names_the_object(name: str) -> None:
    stored = OBJECTS[name]
    for read in stored.readers:
        read(stored.data)
    for data in flips(stored.data):
        for read in stored.readers:
            assert complaint(read, data).startswith(stored.path)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_reader_notices_a_missing_end_and_a_changed_run(name: str) -> None:
    stored = OBJECTS[name]
    rng = random.Random(1)
    for _ in range(100):
        at = rng.randrange(len(stored.data))
        run = rng.randbytes(rng.randrange(1, 40))
        for data in (stored.data[:at], stored.data[:at] + run + stored.data[at + len(run) :]):
            if data == stored.data:
                continue
            for read in stored.readers:
                assert complaint(read, data).startswith(stored.path)


async def test_a_consumer_stops_at_a_flipped_bit_of_a_chunk() -> None:
    data = chunk_of(2)
    store = FakeStore()
    for damaged in list(flips(data))[::100]:
        store.objects[chunk_path(3, 7)] = damaged
        with pytest.raises(LedgerError, match=chunk_path(3, 7)):
            await ChunkCache(Ledger(store, 3), 1).rows(7, 7)


async def test_a_flipped_bit_of_a_manifest_or_of_what_it_names_is_noticed() -> None:
    store = FakeStore(objects={chunk_path(0, 1): ChunkBuilder().encode(shard=0, number=1, leader_epoch=1, at_ms=1)})
    builder = ChunkBuilder()
    for name, value in zip(chunk.RECORD_COLUMNS[1:], (1, 0, 0, 7, b"key", b"v100", HEADERS), strict=True):
        getattr(builder.records, name).append(value)
    store.objects[chunk_path(0, 2)] = builder.encode(shard=0, number=2, leader_epoch=1, at_ms=1)
    written = await compact(Ledger(store, 0), 1, 2)
    path = manifest_path(0, ChunkRange(1, 2))
    (item,) = written.objects

    for data in flips(store.objects[item.path]):
        assert complaint(lambda damaged: decode_compacted(damaged, item), data).startswith(item.path)
    for data in list(flips(store.objects[path])):
        store.objects[path] = data
        with pytest.raises(LedgerError, match=f"^{path} is "):
            await read_manifest(store, 0, ChunkRange(1, 2))


async def test_a_flipped_bit_of_the_facts_of_a_range_is_noticed() -> None:
    facts = encode_range_facts(pa.Table.from_pylist([], schema=SCHEMA), 0, 1, 2)
    manifest = Manifest(
        shard=0,
        first=1,
        last=2,
        level=0,
        written_at_ms=0,
        last_at_ms=0,
        facts="compacted/facts.parquet",
        facts_checksum=checksum(facts),
        objects=[],
    )
    store = FakeStore(objects={manifest.facts: facts})
    assert 0 == len(await read_range_facts(store, manifest))
    for data in list(flips(facts))[::20]:
        store.objects[manifest.facts] = data
        with pytest.raises(LedgerError, match=f"^{manifest.facts} is damaged"):
            await read_range_facts(store, manifest)
