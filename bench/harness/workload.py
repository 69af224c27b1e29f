"""Synthetic traffic for the benchmarks: keyed records in batches, applied as a leader applies them.

Keys repeat and values are half random, so that they compress partly. A seed makes all runs the same.
"""

import random
from collections.abc import Iterable, Iterator

from controller.chunk_writer.builder import ChunkBuilder
from headgate.ledger.ledger import Ledger
from headgate.model import entries as e
from headgate.protocol.requests import ProduceBatch, Record
from headgate.storage.object_store import Store
from shard.requests.verdicts import route_batch
from shard.state.shard_state import ShardState

KEYS = 5_000
AT_MS = 1_700_000_000_000


def records(count: int, value_bytes: int, seed: int = 1) -> list[Record]:
    """Return ``count`` records with values of ``value_bytes``, of `KEYS` keys."""
    rng = random.Random(seed)
    half = value_bytes // 2
    return [
        Record(f"sensor-{rng.randrange(KEYS):05d}".encode(), rng.randbytes(half) + b"0" * (value_bytes - half), AT_MS)
        for _ in range(count)
    ]


def batches(count: int, records_each: int, value_bytes: int, producer_id: int) -> list[ProduceBatch]:
    rows = records(count * records_each, value_bytes)
    return [
        ProduceBatch(
            topic="bench",
            records=rows[sequence * records_each : (sequence + 1) * records_each],
            producer_id=producer_id,
            sequence=sequence,
        )
        for sequence in range(count)
    ]


class Shard:
    """One shard with one topic and one producer, which applies batches as a leader does, without I/O."""

    PRODUCER_ID = 2

    def __init__(self, segments: int) -> None:
        self.state = ShardState(0)
        self.first = self.chunk_of(
            e.TermStarted(leader_epoch=1, instance="bench"),
            e.TopicCreated(topic_id=1, topic="bench", segments=segments, token="t1"),  # noqa: S106 - no secret
            e.ProducerOpened(producer_id=self.PRODUCER_ID, producer_epoch=0, token="t2"),  # noqa: S106 - no secret
        )

    def chunk_of(self, *entries: e.AnyEntry) -> ChunkBuilder:
        """Apply ``entries`` and return a chunk of them."""
        builder = self.begin()
        for entry in entries:
            self.add(builder, entry)
        return builder

    def begin(self) -> ChunkBuilder:
        self.state.begin_chunk(self.state.chunk + 1, AT_MS)
        return ChunkBuilder()

    def add(self, builder: ChunkBuilder, entry: e.AnyEntry) -> None:
        """Apply ``entry`` and add it to ``builder``."""
        self.state.apply(entry)
        topic = self.state.topic_of(entry)
        builder.add(entry, None if topic is None else topic.layout)

    def add_batch(self, builder: ChunkBuilder, batch: ProduceBatch) -> e.RecordsStored:
        """Route one batch, apply it and add it to ``builder``."""
        entry, records = route_batch(self.state.topics["bench"], batch)
        self.add(builder, entry)
        builder.extend(records, entry.size_bytes)
        return entry

    def encode(self, builder: ChunkBuilder) -> bytes:
        return builder.encode(shard=0, number=self.state.chunk, leader_epoch=1, at_ms=AT_MS)

    def chunks(self, pending: Iterable[ProduceBatch]) -> Iterator[tuple[int, bytes]]:
        """Yield a chunk of each ``pending`` batch, with its number."""
        for batch in pending:
            builder = self.begin()
            self.add_batch(builder, batch)
            yield self.state.chunk, self.encode(builder)


async def fill(store: Store, pending: Iterable[ProduceBatch]) -> None:
    """Write a ledger: its first chunk has no records, each other one a ``pending`` batch of `Shard.PRODUCER_ID`."""
    ledger, shard = Ledger(store, 0), Shard(1)
    await ledger.append(1, shard.encode(shard.first))
    for number, data in shard.chunks(pending):
        await ledger.append(number, data)
