"""Traffic of a segment: records and bytes stored per ten seconds of ledger time, for ten minutes.

It is part of the shard's state, so a new leader knows the rates from before its term.

1. A rate is the mean over complete slots. The current slot would look like a drop in traffic.
2. A slot without records counts as zero: the state sees every stored record.
3. Memory is bounded: `SLOTS` slots per segment.
"""

from dataclasses import dataclass

import msgspec

SLOT_MS = 10_000
SLOTS = 61
"""Ten minutes of complete slots, and the current one."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Records per second, and bytes of their keys and values per second."""

    records: float = 0.0
    bytes: float = 0.0


class Traffic(msgspec.Struct, gc=False):
    slots: list[tuple[int, int, int]] = []
    """(slot, records, bytes), ascending; slots without records are omitted."""

    def add(self, at_ms: int, records: int, size_bytes: int) -> None:
        """Count records stored at ``at_ms``, which never decreases."""
        slot, slots = at_ms // SLOT_MS, self.slots
        if slots and slots[-1][0] == slot:
            _, before, bytes_before = slots[-1]
            slots[-1] = (slot, before + records, bytes_before + size_bytes)
            return
        slots.append((slot, records, size_bytes))
        if slots[0][0] <= slot - SLOTS:
            self.slots = [each for each in slots if each[0] > slot - SLOTS]

    def rate(self, now_ms: int, window_ms: int) -> Rate:
        """Return the mean over the window that ends with the last complete slot before ``now_ms``."""
        return self._mean(now_ms // SLOT_MS, max(1, window_ms // SLOT_MS))

    def stored_by_ms(self, newest: int) -> int:
        """Return a ledger time by which the first of the ``newest`` records was stored; 0: longer ago than is known."""
        for slot, records, _ in reversed(self.slots):
            newest -= records
            if newest <= 0:
                return (slot + 1) * SLOT_MS
        return 0

    def peak(self, now_ms: int, window_ms: int, span_ms: int) -> Rate:
        """Return the highest mean over any window in the last ``span_ms``, separately for records and for bytes."""
        end, width = now_ms // SLOT_MS, max(1, window_ms // SLOT_MS)
        first = end - max(width, span_ms // SLOT_MS)
        stored = {slot: (records, size_bytes) for slot, records, size_bytes in self.slots if slot >= first}
        records = size_bytes = most_records = most_bytes = 0
        for slot in range(first, end):
            arrived, arrived_bytes = stored.get(slot, (0, 0))
            left, left_bytes = stored.get(slot - width, (0, 0))
            records += arrived - left
            size_bytes += arrived_bytes - left_bytes
            most_records, most_bytes = max(most_records, records), max(most_bytes, size_bytes)
        seconds = width * SLOT_MS / 1000
        return Rate(most_records / seconds, most_bytes / seconds)

    def _mean(self, end: int, width: int) -> Rate:
        records = size_bytes = 0
        for slot, stored, stored_bytes in reversed(self.slots):
            if slot < end - width:
                break
            if slot < end:
                records += stored
                size_bytes += stored_bytes
        seconds = width * SLOT_MS / 1000
        return Rate(records / seconds, size_bytes / seconds)
