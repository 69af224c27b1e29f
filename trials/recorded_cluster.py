"""A cluster whose producers and consumers are programs that record what they saw, each in a file of its own.

The demo and chaos runs start and stop these programs; trials.judge compares the files with the ledger.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger
from headgate.model.entries import SubscriptionType
from headgate.model.layout import shard_of
from trials.cluster import LocalCluster
from trials.consumer import counter_of
from trials.judge import Delivery, SentRecord, StoredRecord, SubscriptionEvidence, TopicEvidence


def read_sent(path: Path) -> list[SentRecord]:
    return [
        SentRecord(key, int(counter), int(sent_ns), int(done_ns), outcome)
        for sent_ns, done_ns, outcome, key, counter in _rows(path)
    ]


def read_deliveries(path: Path, consumer: str) -> Iterator[Delivery]:
    for at_ns, segment, offset, key, counter, generation in _rows(path):
        yield Delivery(int(at_ns), consumer, int(segment), int(offset), key, int(counter), int(generation))


def _rows(path: Path) -> Iterator[list[str]]:
    """Return the fields of each line; a last line that a kill cut short is left out."""
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        yield line.split("\t")


async def read_ledger(ledger: Ledger) -> tuple[list[Chunk], list[StoredRecord]]:
    """Return all chunks of a shard and all records in them, in ledger order. Raises LedgerError."""
    chunks, records = [], []
    for number in range(1, await ledger.newest() + 1):
        chunks.append(await ledger.read(number))
        _, found = await ledger.read_records(number)
        records += [
            StoredRecord(segment, offset, key.decode(), counter_of(value))
            for segment, offset, key, value in zip(found.segment, found.offset, found.key, found.value, strict=True)
        ]
    return chunks, records


@dataclass(frozen=True, slots=True)
class Reader:
    name: str
    topic: str
    subscription: str
    kind: SubscriptionType


class RecordedCluster(LocalCluster):
    """Entering starts no program."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.runs: Counter[Reader] = Counter()
        """Consumer → how often it was started."""

    async def start_producer(self, topic: str, rate: int) -> None:
        name = f"producer-{topic}"
        words = ("--topic", topic, "--rate", str(rate), "--out", str(self.output_path(name)))
        await self.start_program(name, "-m", "trials.producer", *await self.client_options(name), *words)

    async def start_consumer(self, reader: Reader) -> None:
        """Start a consumer, or start it again; each run has a file of its own."""
        self.runs[reader] += 1
        where = ("--topic", reader.topic, "--subscription", reader.subscription, "--type", reader.kind.value)
        words = (*where, "--name", reader.name, "--out", str(self.outputs(reader)[-1]))
        config = await self.client_options(reader.name)
        await self.start_program(reader.name, "-m", "trials.consumer", *config, *words)

    async def client_options(self, name: str) -> tuple[str, ...]:  # noqa: ARG002 - for overriding
        """Return the options with which client ``name`` finds the cluster."""
        return "--config", str(self.client_config_path)

    def output_path(self, name: str) -> Path:
        """Return the file in which a producer, or one run of a consumer, records what it saw."""
        return self.folder / f"{name}.records"

    def outputs(self, reader: Reader) -> list[Path]:
        return [self.output_path(f"{reader.name}#{run}") for run in range(1, self.runs[reader] + 1)]

    async def evidence(self, topic: str) -> TopicEvidence:
        """Return everything about one topic. Raises LedgerError if its ledger cannot be read."""
        shard = shard_of(topic, self.shards)
        chunks, stored = await read_ledger(self.ledger(shard))
        readers = [reader for reader in self.runs if reader.topic == topic]
        kinds = {reader.subscription: reader.kind for reader in readers}
        deliveries = {
            name: [
                delivery
                for reader in readers
                if reader.subscription == name
                for path in self.outputs(reader)
                for delivery in read_deliveries(path, path.stem)
            ]
            for name in kinds
        }
        return TopicEvidence(
            topic=topic,
            shard=shard,
            sent=read_sent(self.output_path(f"producer-{topic}")),
            stored=stored,
            chunks=chunks,
            subscriptions=[SubscriptionEvidence(name, kind, deliveries[name]) for name, kind in kinds.items()],
        )
