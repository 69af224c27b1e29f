"""The records of a chunk as rows."""

from typing import Any

from headgate.ledger.chunk import RecordColumns

_NAMES = ("topic_id", "segment", "offset", "timestamp_ms", "key", "value", "headers")


def record_rows(records: RecordColumns) -> list[dict[str, Any]]:
    """Return one dictionary for each record, column → value."""
    columns = [getattr(records, name) for name in _NAMES]
    return [dict(zip(_NAMES, row, strict=True)) for row in zip(*columns, strict=True)]
