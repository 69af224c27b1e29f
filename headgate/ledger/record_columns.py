"""The records of one chunk as columns: what a leader encodes, and what readers decode. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.model.headers import Headers


@dataclass(slots=True)
class RecordColumns:
    """Records of one chunk, column by column, in the order in which the leader accepted them."""

    topic_id: list[int] = field(default_factory=list)
    segment: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    timestamp_ms: list[int] = field(default_factory=list)
    key: list[bytes] = field(default_factory=list)
    value: list[bytes] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def extend(self, other: RecordColumns) -> None:
        """Append the records of ``other``."""
        self.topic_id += other.topic_id
        self.segment += other.segment
        self.offset += other.offset
        self.timestamp_ms += other.timestamp_ms
        self.key += other.key
        self.value += other.value
        self.headers += other.headers

    def __len__(self) -> int:
        return len(self.offset)
