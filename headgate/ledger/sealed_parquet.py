"""Open Parquet objects that headgate wrote: the checksum first, then the format, then the rows.

Nothing is parsed before the checksum of the whole object is right. The only exception are objects
without one, whose format number tells an older version from damage.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import LedgerError
from headgate.ledger.checksum import ChecksumError, NoChecksumError, verify_parquet
from headgate.ledger.format_version import check_json_format


def open_sealed(data: bytes, path: str, metadata_key: bytes, supported_format: int) -> tuple[bytes, pq.ParquetFile]:
    """Return the JSON under ``metadata_key`` in the file's metadata, and the file, whose rows are not read yet.

    Raises:
        LedgerFormatError: the object has another format.
        LedgerError: it is damaged, or headgate did not write it. The text begins with ``path``.

    """
    try:
        verify_parquet(data)
    except NoChecksumError as error:
        _metadata(data, path, metadata_key, supported_format)
        raise LedgerError(f"{path} is damaged: {error}") from None
    except ChecksumError as error:
        raise LedgerError(f"{path} is damaged: {error}") from None
    return _metadata(data, path, metadata_key, supported_format)


def _metadata(data: bytes, path: str, metadata_key: bytes, supported_format: int) -> tuple[bytes, pq.ParquetFile]:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        raw = (file.metadata.metadata or {}).get(metadata_key)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{path} is not a readable Parquet object ({len(data)} bytes): {error}") from error
    if raw is None:
        raise LedgerError(f"{path} is a Parquet object that headgate did not write")
    try:
        check_json_format(path, raw, supported_format)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{path} has an unreadable header: {error}") from error
    return raw, file
