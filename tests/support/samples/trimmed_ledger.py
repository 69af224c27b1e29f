"""A ledger in a folder that was compacted and trimmed, and what commands and programs get of a topic of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from headgate import topic_dataset
from headgate.client.topic_source import TopicSource
from headgate.ledger.identity import identity_object
from headgate.ledger.ledger import Ledger
from headgate.ledger.paths import IDENTITY_PATH, snapshot_path
from headgate.storage.object_store import open_store
from headgate.views.topics import TopicInfo
from tests.support.samples.positioned_ledger import LedgerWithPositions


class TrimmedLedger(NamedTuple):
    """Where the ledger is, and the records of the topic."""

    url: str
    chunks: Path
    stored: list[tuple[int, int, bytes]]
    """Segment, offset and value of each record that is stored, in order."""
    described: TopicInfo

    def serve(
        self, monkeypatch: pytest.MonkeyPatch, describe: Callable[[], Awaitable[TopicInfo]] | None = None
    ) -> None:
        """Let `headgate.dataset` find the topic under every name, as if a leader had described it."""

        @asynccontextmanager
        async def source(_client: Any, _topic: str, _timeout_seconds: float) -> AsyncIterator[TopicSource]:
            now = self.described if describe is None else await describe()
            yield TopicSource(now, Ledger(open_store(self.url), 0), "1" * 32, 8, _present)

        async def _present() -> TopicInfo:
            return self.described

        monkeypatch.setattr(topic_dataset, "open_topic_source", source)
        config = self.chunks.parents[2] / "client.toml"
        config.write_text(
            f'cluster = "local"\nbroker_host = "localhost"\nbroker_port = 1883\nledger_url = "{self.url}"\n'
        )
        monkeypatch.setenv("HEADGATE_CONFIG", str(config))


def trimmed_ledger(folder: Path, *, compacted: int = 5, start_ms: int = 0) -> TrimmedLedger:
    """Write the ledger into ``folder``; chunks 1 to ``compacted`` of 8 are compacted.

    Chunk 1 begins a term, and 8 is the newest, so they are kept; 5 is not deleted yet. Segment 1 was pruned.
    """

    async def write() -> tuple[list[tuple[int, int, bytes]], TopicInfo]:
        known = LedgerWithPositions()
        known.ledger.store.objects[IDENTITY_PATH] = identity_object("1" * 32)
        for at_ms, steps in enumerate([(0, 1), (0, 0), (1,), ("split",), (2, 3, 1), (3, 3), (1, 2)], 1):
            await known.write(start_ms + 10 * at_ms, *steps)
            if at_ms == 3:
                await known.write(start_ms + 35, 0, 1, 0, topic_id=9)
        kept = {
            path: data
            for path, data in known.ledger.store.objects.items()
            if path.endswith(("01.parquet", "05.parquet", "08.parquet"))
        }
        if compacted:
            await known.compact(compacted)
            await known.ledger.store.create(snapshot_path(0, compacted), b"")
        known.ledger.store.objects.update(kept)
        described = known.description()
        segments = [each for each in described.segments if each.segment != 1]
        described = msgspec.structs.replace(described, segments=segments)
        for path in [path for path in known.ledger.store.objects if "/topic_id=1/segment=1/" in path]:
            await known.ledger.store.delete(path)
        for path, data in known.ledger.store.objects.items():
            (folder / "ledger" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "ledger" / path).write_bytes(data)
        return [(s.segment, at, b"%d.%d" % (s.segment, at)) for s in segments for at in range(s.next_offset)], described

    stored, described = asyncio.run(write())
    return TrimmedLedger(
        f"file://{folder}/ledger", folder / "ledger" / "chunks" / "shard=0000", sorted(stored), described
    )
