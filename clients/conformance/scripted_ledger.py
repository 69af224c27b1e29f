"""The ledger of a scripted leader: chunks of one topic in a folder, with whatever offsets a case wants."""

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.paths import chunk_path
from headgate.model.entries import Placement
from headgate.model.hashing import segment_hash
from headgate.model.headers import Headers
from headgate.protocol import messages as m
from headgate.storage.object_store import open_store

_NAMES = "topic_id", "segment", "offset", "timestamp_ms", "key", "value"


class ScriptedLedger:
    def __init__(self, folder: Path, topic_id: int) -> None:
        self.folder = folder
        self.store = open_store(folder.as_uri())
        self.head = 0
        self.next_offset: dict[int, int] = defaultdict(int)
        """By segment."""
        self.stored: list[str] = []
        """The values of all records, in order."""
        self._topic_id = topic_id

    def write(
        self,
        records: list[m.Record],
        headers: Mapping[int, Headers],
        *,
        segments: list[int],
        segment: int | None,
        epoch: int,
        term_id: int,
    ) -> list[Placement]:
        """Write a chunk. Records go into the segment of their key, of ``segments``, or all into ``segment``."""
        builder, width = ChunkBuilder(), 0x10000 // len(segments)
        first, rows = dict(self.next_offset), builder.records
        for index, record in enumerate(records):
            own = segments[segment_hash(record.key) // width] if segment is None else segment
            values = self._topic_id, own, self.next_offset[own], record.timestamp_ms, record.key, record.value
            for name, value in zip(_NAMES, values, strict=True):
                getattr(rows, name).append(value)
            rows.headers.append(headers.get(index, ()))
            self.next_offset[own] += 1
            self.stored.append(record.value.decode(errors="replace"))
        self.head += 1
        at_ms = time.time_ns() // 1_000_000
        path = self.folder / chunk_path(0, self.head)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(builder.encode(shard=0, number=self.head, leader_epoch=epoch, at_ms=at_ms, term_id=term_id))
        new.rename(path)
        bounds = {own: (at * width, (at + 1) * width - 1) for at, own in enumerate(segments)}
        return [
            Placement(own, *bounds.get(own, (0, 0xFFFF)), first.get(own, 0), end - first.get(own, 0))
            for own, end in self.next_offset.items()
            if end > first.get(own, 0)
        ]
