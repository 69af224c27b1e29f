"""Records of one chunk as columns, before they become Parquet. Only a shape: nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RecordColumns:
    """Records of one chunk, column by column, in the order in which they were taken."""

    topic_id: list[int] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    timestamp_ms: list[int] = field(default_factory=list)
    key: list[bytes] = field(default_factory=list)
    value: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offset)
