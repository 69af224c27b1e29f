"""The parked records of a subscription, as its dead-letter topic has them.

A pass over the topic keeps the records of all keys that are parked then, and the next one continues behind it. So keys
that are resumed after each other read each object once. What is kept is of one history of one topic, and both are
compared before it is used. If it lacks a record, the topic is read from its beginning.

Beyond `KEPT_BYTES` only records of the key that is asked for are kept, and of those only what is returned at once.
"""

from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from headgate.client.connection import Client
from headgate.client.reply_dispatch import body_of
from headgate.ledger.ledger import Ledger
from headgate.model.dead_letter import Origin, origin_of
from headgate.model.hashing import shard_of
from headgate.model.headers import header_bytes
from headgate.protocol import messages as m
from headgate.reading.chunk_cache import RECORD_OVERHEAD_BYTES
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.topic_reader import TopicReader

KEPT_BYTES: Final = 32 * 1024 * 1024


class ParkedRecords:
    def __init__(self, client: Client, is_own: Callable[[Origin], bool], kept_bytes: int = KEPT_BYTES) -> None:
        """``is_own``: returns whether a dead letter is of the subscription."""
        self._client = client
        self._is_own = is_own
        self._kept_bytes = kept_bytes
        self._kept: _Kept | None = None

    async def take(
        self, topic: str, key: bytes, numbers: range, parked: Iterable[bytes]
    ) -> tuple[dict[int, LedgerRecord], int]:
        """Return the records of a key with these ``numbers``, and the newest number of the key that the topic has.

        ``parked``: the keys whose records to keep. Raises like `Client.request` and `TopicReader.stored`.

        Of two with one number the later one counts. If an older ledger of the stream was put back, the first one is of
        the history that was lost.
        """
        shard = shard_of(topic, await self._client.shards())
        reply = await self._client.request(shard, m.DescribeTopic(topic=topic))
        described = body_of(reply, m.TopicReply, f"the leader of shard {shard}").topic
        kept, self._kept = self._kept, None
        usable = kept is not None and key in kept.records and await kept.reader.continue_to(described)
        if kept is None or not usable or not await self._read(kept, key, numbers):
            starts = dict.fromkeys((each.segment for each in described.segments), 0)
            reader = TopicReader(Ledger(self._client.store, shard), described, starts=starts)
            kept = _Kept(reader, {key, *parked})
            await self._read(kept, key, numbers)
        self._kept = kept
        return kept.take(key, numbers), kept.newest.get(key, 0)

    async def _read(self, kept: "_Kept", key: bytes, numbers: range) -> bool:
        """Add what the reader finds to ``kept``; return whether the key has all of these ``numbers`` there."""
        async with aclosing(kept.reader.stored()) as records:
            async for record in records:
                origin = origin_of(record.headers) if record.key in kept.records else None
                if origin is not None and self._is_own(origin):
                    kept.add(record, origin.parked_number)
                    if kept.only is None and kept.bytes > self._kept_bytes:
                        kept.keep_only(key, numbers)
        return all(number in kept.records[key] for number in numbers)


class _Kept:
    def __init__(self, reader: TopicReader, keys: Iterable[bytes]) -> None:
        self.reader = reader
        self.records: dict[bytes, dict[int, LedgerRecord]] = {key: {} for key in keys}
        """Key → number → record."""
        self.newest: dict[bytes, int] = {}
        """Key → its highest number, also of what is not kept."""
        self.bytes = 0
        self.only: range | None = None
        """Once the limit was exceeded: the numbers that are kept."""

    def add(self, record: LedgerRecord, number: int) -> None:
        self.newest[record.key] = max(self.newest.get(record.key, 0), number)
        self.take(record.key, (number,))
        if self.only is None or number in self.only:
            self.records[record.key][number] = record
            self.bytes += _size(record)

    def take(self, key: bytes, numbers: Iterable[int]) -> dict[int, LedgerRecord]:
        of_key = self.records[key]
        taken = {number: of_key.pop(number) for number in numbers if number in of_key}
        self.bytes -= sum(map(_size, taken.values()))
        return taken

    def keep_only(self, key: bytes, numbers: range) -> None:
        self.records, self.only = {key: self.take(key, numbers)}, numbers


def _size(record: LedgerRecord) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.key) + len(record.value) + header_bytes(record.headers)
