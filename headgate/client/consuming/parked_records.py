"""The parked records of a subscription, as its dead-letter topic has them.

A pass over the topic keeps the records of all keys that are parked then, and the next one continues behind it. So keys
that are resumed after each other read each object once. What is kept is of one history of one topic, and both are
compared before it is used. If it lacks a record, the topic is read from its beginning.

Beyond `KEPT_BYTES` only records of the key that is asked for are kept, and of those only what is returned at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.reply_dispatch import body_of
from headgate.ledger.ledger import Ledger
from headgate.model.headers import Origin, header_bytes, origin_of
from headgate.protocol.replies import TopicReply
from headgate.protocol.requests import DescribeTopic
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.tail import RECORD_OVERHEAD_BYTES
from headgate.reading.topic_reader import TopicReader
from headgate.views.topics import TopicInfo

KEPT_BYTES: Final = 32 * 1024 * 1024


class ParkedRecords:
    def __init__(self, client: Client, is_own: Callable[[Origin], bool], kept_bytes: int = KEPT_BYTES) -> None:
        """``is_own``: returns whether a dead letter is of the subscription."""
        self._client = client
        self._is_own = is_own
        self._kept_bytes = kept_bytes
        self._free_bytes = 0
        self._reader: TopicReader | None = None
        self._records: dict[bytes, dict[int, LedgerRecord]] = {}
        """Key → number → what was found and not taken."""
        self._newest: Counter[bytes] = Counter()
        """Key → its highest number, also of what is not kept."""

    async def take(
        self, topic: str, key: bytes, numbers: range, parked: Iterable[bytes]
    ) -> tuple[dict[int, LedgerRecord], int]:
        """Return the records of a key with these ``numbers``, and the newest number of the key that the topic has.

        ``parked``: the keys whose records to keep. Raises like `Client.request` and `TopicReader.stored`.

        Of two with one number the later one counts. If an older ledger of the stream was put back, the first one is of
        the history that was lost.
        """
        described = await self._client.places.at(topic, partial(self._describe, topic), DEFAULT_TIMEOUT_SECONDS)
        reader, self._reader = self._reader, None  # After an error, nothing that is kept is used.
        usable = reader is not None and key in self._records and await reader.continue_to(described)
        if reader is None or not usable or not await self._read(reader, key, numbers):
            self._records, self._newest = {each: {} for each in (key, *parked)}, Counter()
            self._free_bytes = self._kept_bytes
            starts = dict.fromkeys((each.segment for each in described.segments), 0)
            reader = TopicReader(Ledger(self._client.store, described.shard), described, starts=starts)
            await self._read(reader, key, numbers)
        self._reader, of_key = reader, self._records[key]
        return {number: of_key.pop(number) for number in numbers if number in of_key}, self._newest[key]

    async def _describe(self, topic: str, shard: int) -> TopicInfo:
        reply = await self._client.request(shard, DescribeTopic(topic=topic))
        return body_of(reply, TopicReply, f"the leader of shard {shard}").topic

    async def _read(self, reader: TopicReader, key: bytes, numbers: range) -> bool:
        """Keep what the topic has now; return whether the key has all of these ``numbers``."""
        async with aclosing(reader.stored()) as records:
            async for record in records:
                origin = origin_of(record.headers) if record.key in self._records else None
                if origin is not None and self._is_own(origin):
                    self._keep(record, origin.parked_number, key, numbers)
        return all(number in self._records[key] for number in numbers)

    def _keep(self, record: LedgerRecord, number: int, key: bytes, numbers: range) -> None:
        self._newest[record.key] = max(self._newest[record.key], number)
        of_key, had_space = self._records[record.key], self._free_bytes >= 0
        of_key[number] = record
        size = len(record.key) + len(record.value) + header_bytes(record.headers)
        self._free_bytes -= RECORD_OVERHEAD_BYTES + size
        if had_space and self._free_bytes < 0:
            own = self._records[key]
            self._records = {key: {number: own[number] for number in numbers if number in own}}
        elif not had_space and number not in numbers:
            del of_key[number]
