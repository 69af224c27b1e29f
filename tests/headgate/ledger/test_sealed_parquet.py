"""The order of checks: checksum, then format, then the rest, and each complaint begins with the path."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger.sealed_parquet import open_sealed
from tests.support.object_formats import of_newer_format, of_older_format, sealed

KEY = b"headgate-test"


def stored(header: str = '{"format": 3}', key: bytes = KEY) -> bytes:
    return sealed(pa.table({"a": [1, 2]}).replace_schema_metadata({key: header}))


def test_an_intact_object_is_opened_with_its_header() -> None:
    raw, file = open_sealed(stored(), "x/1", KEY, 3)

    assert b'{"format": 3}' == raw
    assert [1, 2] == file.read().column("a").to_pylist()


@pytest.mark.parametrize(
    ("data", "kind", "complaint"),
    [
        (of_older_format(stored(), 2), LedgerFormatError, "has format 2, this version of headgate reads format 3"),
        (of_newer_format(stored(), 4), LedgerFormatError, "has format 4, .* run the newer version"),
        (of_older_format(stored(), 3), LedgerError, "is damaged: its .* bytes have no checksum"),
        (stored().replace(b'"format": 3', b'"format": 2'), LedgerError, "is damaged: .* have the checksum"),
        (stored(key=b"other"), LedgerError, "is a Parquet object that headgate did not write"),
        (stored("{"), LedgerError, "has an unreadable header"),
        (stored()[:-9], LedgerError, "is not a readable Parquet object"),
    ],
    ids=["older", "newer", "not sealed", "looks older", "foreign", "bad header", "cut"],
)
def test_each_fault_has_one_complaint(data: bytes, kind: type[LedgerError], complaint: str) -> None:
    with pytest.raises(LedgerError, match=rf"^x/1 {complaint}") as caught:
        open_sealed(data, "x/1", KEY, 3)
    assert type(caught.value) is kind
