"""Reads what a run leaves about its topics: the files of producers and consumers, and the ledger.

No daemon is asked, so what is judged does not depend on what daemons report.
"""

from collections.abc import Iterator
from pathlib import Path

from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger
from trials.consumer import counter_of
from trials.judge import Delivery, SentRecord, StoredRecord


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
