"""The order of checks: checksum, then format, then the rest, and each complaint begins with the path."""

import pyarrow as pa
import pytest

from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger.checksum import SEAL_BYTES, parquet_footer_start
from headgate.ledger.objects import check_sealed
from tests.support.samples.object_formats import of_newer_format, of_older_format, sealed

KEY = b"headgate-test"


def unsealed() -> bytes:
    data = stored()
    return data.replace(data[parquet_footer_start(data) - SEAL_BYTES : parquet_footer_start(data)], b"")


def stored(header: str = '{"format": 3}', key: bytes = KEY) -> bytes:
    return sealed(pa.table({"a": [1, 2]}).replace_schema_metadata({key: header}))


def test_an_intact_object_is_opened_with_its_header() -> None:
    assert b'{"format": 3}' == check_sealed(stored(), "x/1", KEY, 3)


@pytest.mark.parametrize(
    ("data", "kind", "complaint"),
    [
        (of_older_format(stored(), 2), LedgerFormatError, "has format 2, this version of headgate reads format 3"),
        (of_newer_format(stored(), 4), LedgerFormatError, "has format 4, .* run the newer version"),
        (unsealed(), LedgerError, "is damaged: its .* bytes have no checksum: headgate did not write them"),
        (stored().replace(b'"format": 3', b'"format": 2'), LedgerError, "is damaged: .* have the checksum"),
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
