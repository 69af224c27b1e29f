"""The records of one batch with their headers, and the bytes that they take on the wire and of the budget."""

from typing import Final

from headgate.model.headers import MAX_HEADERS, Headers, header_bytes
from headgate.protocol import messages as m

RECORD_OVERHEAD_BYTES: Final = 24
"""Most bytes of a record on the wire besides its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 12
"""Most bytes of a header on the wire besides its name and value."""
MAX_PARTS: Final = m.MAX_BATCH_RECORDS - MAX_HEADERS
"""Records and headers of a batch, from which on another record could exceed the leader's limit."""


def wire_bytes(key: bytes, value: bytes, headers: Headers) -> int:
    """Return the most bytes that a record takes on the wire, which are those that it takes of the budget."""
    size = len(key) + len(value) + RECORD_OVERHEAD_BYTES
    return size + header_bytes(headers) + HEADER_OVERHEAD_BYTES * len(headers) if headers else size


class BatchContent:
    """The records of one batch, in order."""

    __slots__ = ("_headers", "_parts", "records", "reserved_headers", "size_bytes")

    def __init__(self, *, reserved_headers: bool) -> None:
        """``reserved_headers``: see `ProducerSettings`."""
        self.records: list[m.Record] = []
        self.reserved_headers = reserved_headers
        self.size_bytes = 0
        self._headers: list[Headers] = []
        self._parts = 0

    def __len__(self) -> int:
        return len(self.records)

    def fits(self, size_bytes: int, limit_bytes: int) -> bool:
        """Return whether one more record fits; the first one always does."""
        return not self.records or (self.size_bytes + size_bytes <= limit_bytes and self._parts < MAX_PARTS)

    def add(self, record: m.Record, headers: Headers, size_bytes: int) -> None:
        """Append a record, which takes ``size_bytes``."""
        self.records.append(record)
        self._headers.append(headers)
        self._parts += 1 + len(headers)
        self.size_bytes += size_bytes

    def remove_first(self, count: int) -> int:
        """Remove the first ``count`` records; return the bytes that they took."""
        removed = zip(self.records[:count], self._headers[:count], strict=True)
        released_bytes = sum(wire_bytes(record.key, record.value, headers) for record, headers in removed)
        del self.records[:count], self._headers[:count]
        self.size_bytes -= released_bytes
        return released_bytes

    def wire_headers(self) -> list[m.RecordHeader]:
        """Return the headers of all records, as a request carries them."""
        if not any(self._headers):
            return []
        return [m.RecordHeader(index, *header) for index, headers in enumerate(self._headers) for header in headers]
