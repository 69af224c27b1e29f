"""Check an object of the ledger before anything else in it is used: the checksum of a Parquet object, then the format.

headgate reads one format of each kind and converts none. Nothing is parsed before the checksum of the whole object is
right.
"""

from typing import Final

import msgspec

from headgate.errors import LedgerError, LedgerFormatError
from headgate.ledger.checksum import ChecksumError, parquet_footer_start, verify_parquet


class _FormatField(msgspec.Struct):
    format: int


_DECODER = msgspec.json.Decoder(_FormatField)


def check_format(name: str, found: int, supported: int) -> None:
    """Raise LedgerFormatError unless the object ``name`` has the ``supported`` format."""
    if found == supported:
        return
    if found < supported:
        advice = (
            "headgate does not convert ledgers: start a new cluster on an empty ledger URL, or run the older version"
        )
    else:
        advice = "run the newer version of headgate that wrote it"
    raise LedgerFormatError(f"{name} has format {found}, this version of headgate reads format {supported}; {advice}")


def check_json_format(name: str, raw: bytes, supported: int) -> None:
    """Check the ``format`` field of a JSON object before any other field; raises msgspec.DecodeError if it has none."""
    check_format(name, _DECODER.decode(raw).format, supported)


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
