"""Check Parquet objects that headgate wrote: the checksum first, then the format.

Nothing is parsed before the checksum of the whole object is right.
"""

from typing import Final

import msgspec

from headgate.errors import LedgerError
from headgate.ledger.checksum import ChecksumError, parquet_footer_start, verify_parquet
from headgate.ledger.format_version import check_json_format

_MARK: Final = b"PAR1"
_STRING: Final = b"\x18"
"""Thrift's compact protocol: the next field is a string."""
_MORE_FOLLOWS: Final = 0x80
"""The bit of a byte of a length that is not its last byte."""


def check_sealed(data: bytes, path: str, metadata_key: bytes, supported_format: int) -> bytes:
    """Return the JSON under ``metadata_key`` in the metadata of an intact object of the ``supported_format``.

    Raises LedgerFormatError or LedgerError.
    """
    check_is_parquet(data, path)
    try:
        verify_parquet(data)
    except ChecksumError as error:
        raise LedgerError(f"{path} is damaged: {error}") from None
    raw = _metadata_value(data, metadata_key)
    if raw is None:
        raise LedgerError(f"{path} is a Parquet object that headgate did not write")
    try:
        check_json_format(path, raw, supported_format)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from error
    return raw


def check_is_parquet(data: bytes, path: str) -> None:
    """Raise LedgerError unless ``data`` begins and ends like a Parquet object."""
    if not (data.startswith(_MARK) and data.endswith(_MARK) and parquet_footer_start(data) >= len(_MARK)):
        raise LedgerError(f"{path} is not a readable Parquet object ({len(data)} bytes)")


def _metadata_value(data: bytes, key: bytes) -> bytes | None:
    """Return the value of ``key`` in the footer.

    A pair consists of two strings, each with its length. Pairs follow the statistics of the
    columns, which contain bytes of records, so the last match counts.
    """
    pair = _STRING + bytes([len(key)]) + key + _STRING
    at = data.rfind(pair, parquet_footer_start(data))
    if at < 0:
        return None
    at += len(pair)
    length = shift = 0
    for byte in data[at : at + 5]:
        length |= (byte & ~_MORE_FOLLOWS) << shift
        shift += 7
        at += 1
        if not byte & _MORE_FOLLOWS:
            break
    return data[at : at + length]
