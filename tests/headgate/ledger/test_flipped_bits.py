"""Each reader of an object notices every flipped bit, and raises one error that names the object.

The bits of small objects are flipped one by one, those of larger ones in steps that meet each bit
position and each part.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from controller.chunk_writer.builder import ChunkBuilder
from controller.snapshots.format import decode_file
from drain.backlog.aggregates import FACTS
from drain.backlog.counting import read_range_facts
from drain.backlog.results import decode_result
from drain.spark.object_reader import ObjectError, decode_object, rows_of
from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger import chunk
from headgate.ledger.compacted import decode_compacted, manifest_path, manifest_ranges, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from headgate.reading.tail import ChunkCache
from tests.recorded.recording import ARCHIVE, FOLDER, load
from tests.support.fakes.object_store import FakeStore
from tests.support.whole_state import decode_snapshot

HEADERS = (("trace", b"00-17"), ("trace", b""))
RECORDED, _ = load(max(FOLDER.glob(f"*/{ARCHIVE}")))
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
            lambda data: rows_of([decode_object(data, path, None, WORKER_SCHEMA)], WORKER_SCHEMA),
        ),
    )


def recorded(folder: str, *readers: Callable[..., object]) -> Stored:
    """Return the first object of the recorded ledger in ``folder``; its number is an argument of the readers."""
    path = min(path for path in RECORDED if path.startswith(folder))
    return Stored(path, RECORDED[path], tuple(partial(read, number=int(Path(path).stem)) for read in readers))


OBJECTS = {
    "a chunk of one record": stored_chunk(1),
    "a small chunk": stored_chunk(50),
    "a snapshot": recorded(
        "snapshots",
        lambda data, number: decode_snapshot(data, shard=0, chunk=number),
        lambda data, number: decode_file(data, shard=0, chunk=number),
    ),
    "a result": recorded("backlog", lambda data, number: decode_result(data, shard=0, watermark=number)),
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
    store = FakeStore(objects=dict(RECORDED))
    chunks, *_ = await manifest_ranges(store, 0)
    written, path = await read_manifest(store, 0, chunks), manifest_path(0, chunks)
    item = written.objects[0]

    for data in flips(RECORDED[item.path]):
        assert complaint(lambda damaged: decode_compacted(damaged, item), data).startswith(item.path)
    for damaged, read in (
        (written.facts, lambda: read_range_facts(store, written)),
        (path, lambda: read_manifest(store, 0, chunks)),
    ):
        await read()
        for data in list(flips(RECORDED[damaged]))[::4]:
            store.objects[damaged] = data
            with pytest.raises(LedgerError, match=f"^{damaged} is "):
                await read()
