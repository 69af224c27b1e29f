"""A ledger in a folder that was compacted and trimmed, and the output of `headgate topic files` for a topic of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from headgate.cli.topics.files import listing
from headgate.reading.topic_files import topic_files
from tests.support.samples.positioned_ledger import LedgerWithPositions


class TrimmedLedger(NamedTuple):
    """Where the ledger is, and the records of the topic."""

    url: str
    chunks: Path
    stored: list[tuple[int, int, bytes]]
    """Segment, offset and value of each record that is stored, in order."""


def trimmed_ledger(folder: Path, *, compacted: int = 5) -> TrimmedLedger:
    """Write the ledger and ``orders.json`` into ``folder``; chunks 1 to ``compacted`` of 8 are compacted.

    Chunk 1 begins a term, so it is kept, and chunk 5 is not deleted yet. Segment 1 was pruned.
    """

    async def write() -> list[tuple[int, int, bytes]]:
        known = LedgerWithPositions()
        for at_ms, steps in enumerate([(0, 1), (0, 0), (1,), ("split",), (2, 3, 1), (3, 3), (1, 2)], 1):
            await known.write(10 * at_ms, *steps)
            if at_ms == 3:
                await known.write(35, 0, 1, 0, topic_id=9)
        kept = {
            path: data
            for path, data in known.ledger.store.objects.items()
            if path.endswith(("01.parquet", "05.parquet"))
        }
        if compacted:
            await known.compact(compacted)
        known.ledger.store.objects.update(kept)
        described = known.description()
        segments = [each for each in described.segments if each.segment != 1]
        described = msgspec.structs.replace(described, segments=segments)
        files = await topic_files(known.ledger, described)
        for path in [path for path in known.ledger.store.objects if "/topic_id=1/segment=1/" in path]:
            await known.ledger.store.delete(path)
        for path, data in known.ledger.store.objects.items():
            (folder / "ledger" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ledger" / path).write_bytes(data)
        (folder / "orders.json").write_text(json.dumps(listing(described, files, f"file://{folder}/ledger")))
        return [(s.segment, at, b"%d.%d" % (s.segment, at)) for s in segments for at in range(s.next_offset)]

    stored = asyncio.run(write())
    return TrimmedLedger(f"file://{folder}/ledger", folder / "ledger" / "chunks" / "shard=0000", sorted(stored))
