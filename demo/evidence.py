"""Read the results of a run: the files of demo.producer and demo.consumer, and the ledger.

No daemon is asked, so the checks do not depend on what daemons report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from demo.checks import Delivery, StoredRecord
from headgate.ledger.chunk import Chunk
from headgate.ledger.ledger import Ledger


class _Value(msgspec.Struct):
    counter: int


_VALUE: msgspec.json.Decoder[_Value] = msgspec.json.Decoder(_Value)


def read_committed(path: Path) -> tuple[dict[str, list[int]], str]:
    """Return (key → committed counters, the producer's summary line)."""
    committed: dict[str, list[int]] = defaultdict(list)
    summary = ""
    for line in path.read_text().splitlines():
        key, _, rest = line.partition("\t")
        if key == "#":
            summary = rest
        else:
            committed[key].append(int(rest))
    return dict(committed), summary


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
        found = await ledger.read_records(number)
        records += [
            StoredRecord(segment, offset, key.decode(), _VALUE.decode(value).counter)
            for segment, offset, key, value in zip(found.segment, found.offset, found.key, found.value, strict=True)
        ]
    return chunks, records
