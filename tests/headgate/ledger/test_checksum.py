"""Seals: their places, what they detect, and that other readers do not notice them."""

import io
import json
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger import checksum as c
from headgate.ledger.checksum import SEAL_BYTES, parquet_footer_start
from headgate.ledger.objects import check_sealed
from tests.support.samples.object_formats import of_newer_format, of_older_format, sealed


def parquet(rows: int = 3) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(rows))}), sink)
    return sink.getvalue()


@given(st.binary(), st.integers(0, 50))
def test_sealed_bytes_are_verified_and_the_seal_adds_eight_bytes_at_its_place(data: bytes, at: int) -> None:
    at = min(at, len(data))
    sealed = c.seal(data, at)

    assert data == sealed[:at] + sealed[at + c.SEAL_BYTES :]
    assert c.MARK == sealed[at : at + 4]
    c.verify(sealed, at)


@given(st.binary(), st.integers(0), st.binary(min_size=1, max_size=4))
def test_every_damaged_run_of_up_to_32_bits_is_detected(data: bytes, at: int, flips: bytes) -> None:
    sealed = bytearray(c.seal(data))
    at %= len(sealed) - len(flips) + 1
    for index, flip in enumerate(flips):
        sealed[at + index] ^= flip
    if any(flips):
        with pytest.raises(c.ChecksumError):
            c.verify(bytes(sealed))


def test_a_parquet_object_is_sealed_before_its_footer_and_reads_as_before() -> None:
    data = parquet()
    sealed = c.seal_parquet(memoryview(data))
    c.verify_parquet(sealed)
    footer = len(sealed) - 8 - int.from_bytes(sealed[-8:-4], "little")

    assert c.MARK == sealed[footer - 8 : footer - 4]
    assert pq.read_table(io.BytesIO(data)) == pq.read_table(io.BytesIO(sealed))
    assert pq.read_metadata(io.BytesIO(data)).num_rows == pq.read_metadata(io.BytesIO(sealed)).num_rows


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", parquet(), b"\xff" * 8, b"\xff" * 100, bytes(100), c.MARK, c.MARK + b"abc"],
    ids=["empty", "only the mark", "unsealed", "length beyond", "length far beyond", "zeros", "only a mark", "cut"],
)
def test_an_object_without_a_seal_has_an_error_of_its_own(data: bytes) -> None:
    with pytest.raises(c.ChecksumError, match="have no checksum"):
        c.verify_parquet(data)
    with pytest.raises(c.ChecksumError, match="have no checksum"):
        c.verify(data)


def test_json_has_its_checksum_as_first_field() -> None:
    sealed = c.seal_json(b'{"format":3}')
    c.verify_json(sealed)

    expected = zlib.crc32(b'"format":3}')
    assert list(json.loads(sealed).items()) == [("checksum", f"{expected:08x}"), ("format", 3)]
    for damaged in (b'{"format":3}', sealed.replace(b"3}", b"2}"), sealed.replace(b'm":"', b'm":"A', 1), sealed + b" "):
        with pytest.raises(c.ChecksumError, match="another checksum than their first field"):
            c.verify_json(damaged)


# The order of checks: checksum, then format, then the rest, and each complaint begins with the path.


KEY = b"headgate-test"


def unsealed() -> bytes:
    data = stored()
    return data.replace(data[parquet_footer_start(data) - SEAL_BYTES : parquet_footer_start(data)], b"")


def stored(header: str = '{"format": 3}', key: bytes = KEY) -> bytes:
    return sealed(pa.table({"a": [1, 2]}).replace_schema_metadata({key: header}))


@pytest.mark.parametrize(
    ("data", "kind", "complaint"),
    [
        (of_older_format(stored(), 2), LedgerFormatError, "has format 2, this version of headgate reads format 3"),
        (of_newer_format(stored(), 4), LedgerFormatError, "has format 4, .* run the newer version"),
        (unsealed(), LedgerError, "is damaged: its .* bytes have no checksum: headgate did not write them"),
        (stored().replace(b'"format": 3', b'"format": 2'), LedgerError, r"is damaged: .*sum \w{8}, expected \w{8}"),
        (stored(key=b"other"), LedgerError, "is a Parquet object that headgate did not write"),
        (stored("{"), LedgerError, "has an unreadable header"),
        (stored()[:-9], LedgerError, "is not a readable Parquet object"),
    ],
    ids=["older", "newer", "not sealed", "looks older", "foreign", "bad header", "cut"],
)
def test_each_fault_has_one_complaint(data: bytes, kind: type[LedgerError], complaint: str) -> None:
    with pytest.raises(LedgerError, match=rf"^x/1 {complaint}") as caught:
        check_sealed(data, "x/1", KEY, 3)
    assert type(caught.value) is kind


def test_a_value_that_looks_like_metadata_is_not_taken_for_it() -> None:
    """Statistics of columns are in the footer too."""
    value = b'\x18\x0dheadgate-test\x18\x0d{"format": 4}'
    data = sealed(pa.table({"a": [value]}).replace_schema_metadata({KEY: b'{"format": 3}'}))
    assert 1 < data.count(value)

    assert b'{"format": 3}' == check_sealed(data, "x/1", KEY, 3)


@pytest.mark.parametrize("length", [0, 13, 127, 128, 20_000])
def test_a_header_of_any_length(length: int) -> None:
    header = '{"format": 3}'.ljust(length)

    assert header.encode() == check_sealed(stored(header), "x/1", KEY, 3)
