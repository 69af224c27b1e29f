"""A CRC-32 over every byte of a stored object, in a place that other readers of its format ignore.

A seal is eight bytes: `MARK` and the checksum of everything else, little-endian. In a Parquet object
it is directly before the footer, where no page lies and no reader looks. A snapshot begins with it.
JSON has the checksum as its first field, in hexadecimal.

A CRC finds accidents, not forgery: every single flipped bit, every damaged run of up to 32 bits,
and all but one in four billion others (Koopman, "32-bit cyclic redundancy codes for Internet
applications", 2002). docs/decisions/checksums.md compares the alternatives.

Pure, and without other imports than Python's own: drain.spark.object_reader sends it to Spark's workers. Leaders and
consumers pass the CRC-32 of zlib-ng, which takes a quarter of the time.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Final

MARK: Final = b"HGck"
SEAL_BYTES: Final = len(MARK) + 4
_PARQUET_END_BYTES: Final = 8
"""The length of the footer and Parquet's own mark."""
_STRING: Final = b"\x18"
"""Thrift's compact protocol: the next field is a string."""
_MORE_FOLLOWS: Final = 0x80
"""The bit of a byte of a length that is not its last byte."""
_JSON_FIELD: Final = b'{"checksum":"%08x",'
_JSON_FIELD_BYTES: Final = len(_JSON_FIELD % 0)
Crc32 = Callable[..., int]
"""(bytes, checksum of those before them or 0) → checksum of both (ISO-HDLC, as in zlib, gzip and Spark's ``crc32``)."""


class ChecksumError(ValueError):
    """The bytes are not those that were written. The text says why, and names no object."""


def checksum(data: bytes) -> int:
    return zlib.crc32(data)


def check(data: bytes, expected: int, crc32: Crc32 = zlib.crc32) -> None:
    if (found := crc32(data)) != expected:
        raise ChecksumError(f"its {len(data)} bytes have the checksum {found:08x}, expected {expected:08x}")


def seal(data: bytes | memoryview, at: int = 0) -> bytes:
    view = memoryview(data)
    return sealed([view[:at]], view[at:])


def sealed(before: Sequence[bytes | memoryview], after: bytes | memoryview, crc32: Crc32 = zlib.crc32) -> bytes:
    """Return an object with a seal before its last part."""
    crc = 0
    for part in (*before, MARK, after):
        crc = crc32(part, crc)
    return b"".join((*before, MARK, crc.to_bytes(4, "little"), after))


def verify(data: bytes, at: int = 0, crc32: Crc32 = zlib.crc32) -> None:
    view = memoryview(data)
    end = at + SEAL_BYTES
    if at < 0 or len(data) < end or bytes(view[at : at + len(MARK)]) != MARK:
        raise ChecksumError(f"its {len(data)} bytes have no checksum: headgate did not write them, or not all of them")
    expected = int.from_bytes(view[end - 4 : end], "little")
    if (found := crc32(view[end:], crc32(view[: end - 4]))) != expected:
        raise ChecksumError(f"its {len(data)} bytes have the checksum {found:08x}, expected {expected:08x}")


def seal_parquet(data: bytes | memoryview) -> bytes:
    """Return the Parquet object ``data`` with a seal before its footer."""
    return seal(data, parquet_footer_start(data))


def verify_parquet(data: bytes, crc32: Crc32 = zlib.crc32) -> None:
    verify(data, parquet_footer_start(data) - SEAL_BYTES, crc32)


def seal_json(data: bytes) -> bytes:
    """Return the JSON object ``data``, which has a field, with its checksum as the first field."""
    return _JSON_FIELD % zlib.crc32(data[1:]) + data[1:]


def verify_json(data: bytes) -> None:
    stated, expected = data[:_JSON_FIELD_BYTES], _JSON_FIELD % zlib.crc32(data[_JSON_FIELD_BYTES:])
    if stated != expected:
        raise ChecksumError(f"its {len(data)} bytes have another checksum than their first field")


def parquet_footer_start(data: bytes | memoryview) -> int:
    """Return where the footer of a Parquet object begins by its stated length; negative if that cannot be."""
    return len(data) - _PARQUET_END_BYTES - int.from_bytes(data[-_PARQUET_END_BYTES:-4], "little")


def parquet_metadata(data: bytes, key: bytes) -> bytes | None:
    """Return the value of ``key`` in the footer of a Parquet object.

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
