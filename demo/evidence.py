"""Read the results of a run: the files of producers and consumers, and the ledger.

No daemon is asked, so the checks do not depend on what daemons report.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from demo.checks import Delivery, SentRecord, StoredRecord
from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger


class _Value(msgspec.Struct):
    counter: int


_VALUE: msgspec.json.Decoder[_Value] = msgspec.json.Decoder(_Value)


def read_sent(path: Path) -> list[SentRecord]:
    """Return the records of a producer; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    data = path.read_bytes()
    found = []
    for line in data[: data.rfind(b"\n") + 1].decode().splitlines():
        sent_ns, done_ns, outcome, key, counter = line.split("\t")
        found.append(SentRecord(key, int(counter), int(sent_ns), int(done_ns), outcome))
    return found


def read_deliveries(path: Path, consumer: str) -> Iterator[Delivery]:
    """Return the deliveries of one consumer; a last line that a kill cut short is left out."""
    if not path.exists():
        return
    data = path.read_bytes()
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        at_ns, segment, offset, key, counter = line.split(b"\t")
        yield Delivery(int(at_ns), consumer, int(segment), int(offset), key.decode(), int(counter))


async def read_ledger(ledger: Ledger) -> tuple[list[Chunk], list[StoredRecord]]:
    """Return all chunks of a shard and all records in them, in ledger order."""
    chunks, records = [], []
    for number in range(1, await ledger.newest() + 1):
        chunks.append(await ledger.read(number))
        _, found = await ledger.read_records(number)
        records += [
            StoredRecord(segment, offset, key.decode(), _VALUE.decode(value).counter)
            for segment, offset, key, value in zip(found.segment, found.offset, found.key, found.value, strict=True)
        ]
    return chunks, records
