"""How long the store's answers delay a run over many shards. Without Spark: nothing is aggregated."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from controller.chunk_writer.builder import ChunkBuilder
from drain.backlog.counting import Counted
from drain.backlog.job import BacklogJob
from drain.spark.chunks import LedgerChunks
from headgate.ledger.objects import chunk_path
from headgate.model import entries as e
from tests.support.fakes.object_store import FakeStore

SHARDS = 32


def chunk(shard: int, number: int = 1, *, term_id: int = 1) -> bytes:
    builder = ChunkBuilder()
    builder.add(e.TermStarted(leader_epoch=number, instance="a"))
    return builder.encode(shard=shard, number=number, leader_epoch=number, at_ms=1, term_id=term_id)


async def count_nothing(due: Mapping[int, range]) -> Mapping[int, Counted]:
    return dict.fromkeys(due, Counted((), 1))


async def test_many_shards_are_listed_at_the_same_time(tmp_path: Path) -> None:
    chunks = LedgerChunks(tmp_path.as_uri())
    store = chunks.store = FakeStore(objects={chunk_path(shard, 1): chunk(shard) for shard in range(SHARDS)})
    loop = asyncio.get_running_loop()
    job = BacklogJob(chunks, count_nothing)
    seconds: list[float] = []
    for shards in (1, SHARDS):
        store.latency_seconds = (1.0, 1.0)
        began = loop.time()
        outcome = await job.run(range(shards))
        seconds.append(loop.time() - began)
        assert dict.fromkeys(range(shards), 1) == {s: r.watermark for s, r in outcome.results.items()}
        assert not outcome.failures
        store.objects = {path: data for path, data in store.objects.items() if path.startswith("chunks")}
        job = BacklogJob(chunks, count_nothing)

    assert seconds == [1 + 6.0, 1 + 2 * 6.0], "once for the id, and as often as a shard needs for each group of shards"
