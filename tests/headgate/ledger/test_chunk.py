"""Chunks: encoding and decoding, and rejection of objects that are not chunks."""

import io
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.chunk_writer.builder import ChunkBuilder
from headgate.errors import LedgerError
from headgate.ledger import chunk
from headgate.model import entries as e
from headgate.model.headers import Headers, header_bytes
from tests.support.samples.chunks import add_record, small_chunk
from tests.support.samples.object_formats import sealed


@pytest.mark.parametrize("packed_max_bytes", [0, 4096])
def test_entries_and_records_are_decoded_as_they_were_added(packed_max_bytes: int) -> None:
    builder, data = small_chunk(packed_max_bytes=packed_max_bytes)

    decoded = chunk.decode(data, shard=3, number=7)
    _, records = chunk.decode_records(data, shard=3, number=7)

    assert tuple(builder.entries) == decoded.entries
    assert (2, 99) == (decoded.header.leader_epoch, decoded.header.at_ms)
    assert (decoded.header.packed_bodies_bytes > 0) == (packed_max_bytes > 0)
    assert [b"v0", b"v1"] == records.value
    assert [0, 1] == records.offset


def test_a_small_chunk_has_its_records_packed_as_in_its_columns() -> None:
    """A reader that knows only columns reads the same; a large chunk would take twice the space."""
    headers, limit = (("a", b"1"), ("a", b"")), len(b"kv0kv1a1a")
    small, large = (small_chunk(headers=headers, packed_max_bytes=each)[1] for each in (limit, limit - 1))
    packed, columns = (chunk.decode_records(data, shard=3, number=7) for data in (small, large))

    assert packed[1] == columns[1]
    assert packed[0].packed_bytes > 0 == columns[0].packed_bytes
    assert pq.read_table(io.BytesIO(small)) == pq.read_table(io.BytesIO(large))
    with pytest.raises(LedgerError, match="has unreadable packed records"):
        chunk.decode_records(sealed(pq.read_table(io.BytesIO(small))), shard=3, number=7)


@pytest.mark.parametrize("counts", [(1,) * 7, (3,) * 7, (2, 2, 2, 2, 2, 1, 2)], ids=["fewer", "more", "a column"])
def test_packed_records_that_are_not_as_many_as_the_header_states_are_rejected(counts: tuple[int, ...]) -> None:
    columns = [[value] * count for value, count in zip((1, 0, 0, 0, b"k", b"v", ()), counts, strict=True)]
    with patch("controller.chunk_writer.builder.pack_records", return_value=msgspec.msgpack.encode(columns)):
        data = small_chunk(packed_max_bytes=4096)[1]
    with pytest.raises(LedgerError, match="has unreadable packed records, or not 2"):
        chunk.decode_records(data, shard=3, number=7)


@pytest.mark.parametrize(
    ("packed", "reason"),
    [(b"\7", "an entry that this version cannot"), (b"\x90", "0 entries"), (b"\x99" + b"\xc4\0" * 9, "9 entries")],
)
def test_packed_entries_that_are_not_those_of_the_header_are_rejected(packed: bytes, reason: str) -> None:
    with patch("msgspec.msgpack.encode", return_value=packed):
        data = small_chunk(packed_max_bytes=4096)[1]
    with pytest.raises(LedgerError, match=f"has {reason}"):
        chunk.decode(data, shard=3, number=7)


HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3).map(tuple)


@given(headers=st.lists(HEADERS, min_size=1, max_size=5), packed=st.booleans())
def test_headers_are_decoded_as_they_were_added(headers: list[Headers], packed: bool) -> None:
    """In their order, with repeated names; also those of a part of the rows."""
    builder = ChunkBuilder() if packed else ChunkBuilder(packed_max_bytes=0)
    builder.add(e.TermStarted(leader_epoch=1, instance="a"))
    for offset, each in enumerate(headers):
        add_record(builder, offset, 5, b"v", each)
    data = builder.encode(shard=3, number=7, leader_epoch=1, at_ms=0)

    _, rows = chunk.open_records(data, shard=3, number=7)

    assert headers == chunk.decode_records(data, shard=3, number=7)[1].headers
    assert headers[1:4] == rows.slice(1, 3).headers()
    assert [2 + header_bytes(each) for each in headers] == rows.integers("size_bytes").tolist()


def test_a_chunk_with_other_headers_is_rejected() -> None:
    table = pq.read_table(io.BytesIO(small_chunk(headers=(("a", b"1"),))[1])).drop_columns(["headers"])
    others = [None] * (table.num_rows - 1)
    for kind, value in (
        (pa.string(), "text"),
        (pa.list_(pa.struct([("name", pa.int64()), ("value", pa.binary())])), [(1, b"")]),
    ):
        data = sealed(table.append_column("headers", pa.array([*others, value], kind)))
        with pytest.raises(LedgerError, match="has a column headers with nulls, or of another type"):
            chunk.decode_records(data, shard=3, number=7)


def test_a_split_states_the_sealed_and_created_segments_as_facts() -> None:
    """The Spark job never reads a body."""
    _, data = small_chunk()
    rows = [row for row in pq.read_table(io.BytesIO(data)).to_pylist() if row["fact"] not in (None, "record")]

    assert [("created", 0, None), ("sealed", 0, 2), ("created", 1, None), ("created", 2, None)] == [
        (row["fact"], row["segment"], row["end_offset"]) for row in rows
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (small_chunk()[1][:-100], "is not a readable Parquet object"),
        (b"", "is not a readable Parquet object"),
        (b"PAR1 and nothing else", "is not a readable Parquet object"),
        # A copied object must not count as another commit.
        (ChunkBuilder().encode(shard=3, number=8, leader_epoch=1, at_ms=0), "states that it is chunk 8 of shard 3"),
        (sealed(pa.table({"a": [1]})), "is a Parquet object that headgate did not write"),
    ],
    ids=["truncated", "empty", "foreign", "another number", "another Parquet object"],
)
def test_an_object_that_is_no_such_chunk_is_rejected_with_its_name(data: bytes, reason: str) -> None:
    with pytest.raises(LedgerError, match=f"^chunks/shard=0003/000000000007.parquet {reason}"):
        chunk.decode(data, shard=3, number=7)


def test_an_unknown_entry_is_rejected() -> None:
    """Skipping an entry would lose what it states."""
    builder = ChunkBuilder(packed_max_bytes=0)
    builder.add(e.TermStarted(leader_epoch=1, instance="a"))
    original = e.encode_entry(builder.entries[0])
    data = builder.encode(shard=0, number=1, leader_epoch=1, at_ms=0)
    table = pq.read_table(io.BytesIO(data))
    table = table.set_column(
        table.schema.get_field_index("body"), "body", pa.array([original.replace(b"term_started", b"term_stopped")])
    )

    with pytest.raises(LedgerError, match="an entry that this version cannot read"):
        chunk.decode(sealed(table), shard=0, number=1)
