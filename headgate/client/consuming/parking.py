"""The parked keys of one STREAM consumer: parks keys, sends their records out of the stream's way, and resumes keys.

1. A key is parked once the leader has stored that it is, for this and every later holder.
2. A record of a parked key is not delivered. It is acknowledged as parked, with the acknowledgement that covers it, and
   the leader has it sent to the dead-letter topic. So other keys continue.
3. A key that is resumed stays parked while its parked records are read from the dead-letter topic and delivered.
4. Once those that are stored were delivered, the consumer *holds* the key: its next record waits, and its segment with
   it. So a key that gets records all the time catches up. When no record of the key is parked, queued or unacknowledged
   any more, the leader ends the parking, and the record is delivered. While the dead-letter topic takes no records, the
   consumer does not hold the key for what is not there.
5. A resumed record that fails again parks its key again. It, and those behind it, stay where they are.
6. Without an order, the holder of a parent may park a key of a child that is held. The child's holder learns that when
   the key is resumed: the parent's may be gone by then.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Final

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.consumer_context import ConsumerContext
from headgate.client.consuming.dead_letters import Heartbeat
from headgate.client.consuming.record_queue import HeldSegment, ParkedKey
from headgate.client.request_attempts import body_of
from headgate.errors import HeadgateError, LedgerError, NoLeaderError, RequestRejectedError, StoreUnavailableError
from headgate.ledger.ledger import Ledger
from headgate.model.headers import Origin, header_bytes, origin_of
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.protocol.replies import ResumingKey, TopicReply
from headgate.protocol.request_fields import MAX_PARKED_KEY_BYTES, failure_text
from headgate.protocol.requests import DescribeTopic, ParkedRecord, ResumedKey
from headgate.reading.stored_rows import LedgerRecord
from headgate.reading.tail import RECORD_OVERHEAD_BYTES
from headgate.reading.topic_reader import TopicReader
from headgate.views.topics import TopicInfo

KEPT_BYTES: Final = 32 * 1024 * 1024
RETRY_SECONDS: Final = 1.0
"""Before a request without a reply is sent again, and before the state of a resumed key is asked for again."""
HOLD_SECONDS: Final = 10.0
"""How long a key is held for records that the dead-letter topic does not have, after it last had further ones."""
RESUMED_RECORDS: Final = 1000
"""So many records of one key are queued before it is another key's turn."""


class ParkedRecords:
    """The parked records of a subscription, as its dead-letter topic has them.

    A pass over the topic keeps the records of all keys that are parked then, and the next one continues behind it. So
    keys that are resumed after each other read each object once. What is kept is of one history of one topic, and both
    are compared before it is used. If it lacks a record, the topic is read from its beginning.

    Beyond `KEPT_BYTES` only records of the key that is asked for are kept, and of those only what is returned at once.
    """

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


class Parking:
    """The parked keys of one consumer."""

    def __init__(self, context: ConsumerContext) -> None:
        self.heartbeat: Heartbeat | None = None
        """Asks which keys are being resumed."""
        self.problem = ""
        """Why the last step of a resumption failed; empty: it did not."""
        self._context = context
        self._stored = ParkedRecords(context.client, context.requests.is_own)
        self._asking: set[tuple[HeldSegment, bytes]] = set()
        """Keys that are about to be parked by this consumer."""
        self._unparked_at = 0.0
        """Loop time at which a key was last parked no more."""
        self._reads = asyncio.Semaphore(1)
        """The dead-letter topic is read for one key at a time."""
        self._context.feed.on_parked = self.divert

    async def park(self, record: ConsumedRecord, reason: str) -> None:
        """Park the key of ``record``, and the record with it. Raises RequestRejectedError: it cannot be parked."""
        holding = self._context.feed.holdings.get((record.segment, record.generation))
        state = None if holding is None else holding.parked.get(record.key)
        if holding is None or (not record.parked_number and record.offset < holding.acknowledged):
            self._context.acknowledger.unstored.late += 1
        elif record.parked_number and (state is None or not state.is_delivered(record.parked_number)):
            pass  # Its key was parked again with an earlier record.
        elif state is not None and not record.parked_number:
            self.divert(holding, record)
        else:
            # The leader may park the key although the caller is cancelled: this consumer has to know it nevertheless.
            asking = self._context.tasks.spawn(self._park(holding, record, reason, state), "park-key", is_vital=False)
            try:
                await asyncio.shield(asking)
            except asyncio.CancelledError:
                if asking.cancelled():
                    raise HeadgateError("park: this consumer is closed") from None
                raise

    async def _park(self, holding: HeldSegment, record: ConsumedRecord, reason: str, state: ParkedKey | None) -> None:
        """Ask the leader until it replies. If the segment is still held then, the key is parked here, too."""
        named = MAX_PARKED_KEY_BYTES
        if len(record.key) > named:
            raise RequestRejectedError("invalid", f"a key of {len(record.key)} bytes cannot be parked: at most {named}")
        parking = 0 if state is None else state.parking
        self._asking.add((holding, record.key))
        try:
            while self._context.feed.holds(holding):
                try:
                    await self._context.requests.park(record, failure_text(reason), parking)
                except NoLeaderError as error:
                    if self._context.tasks.failure is not None:
                        raise self._context.tasks.failure from error
                    self._context.log.warning("key.not_parked", reason=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    break
        finally:
            self._asking.discard((holding, record.key))
        if not self._context.feed.holds(holding):
            return
        if state is None:
            holding.parked.setdefault(record.key, ParkedKey(holding.queued_end))
            if record.offset >= holding.acknowledged:
                self.divert(holding, record)
        else:
            state.parked_at = asyncio.get_running_loop().time()
            state.end_resumption()
        holding.progress.set()

    def divert(self, holding: HeldSegment, record: ConsumedRecord) -> None:
        """Rule 2."""
        key = holding.grant.segment, holding.grant.generation
        self._context.acknowledger.unstored.add_parked(ParkedRecord(*key, record.offset, record.key))
        if self._context.acknowledger.unstored.is_full(key):
            holding.deliveries.has_capacity.clear()
        holding.read_offset = max(holding.read_offset, record.offset + 1)
        self._context.feed.acknowledge_skipped(*key)

    def acknowledge(self, record: ConsumedRecord) -> None:
        """Acknowledge a record that was resumed, and those of its key before it."""
        holding = self._context.feed.holdings.get((record.segment, record.generation))
        state = None if holding is None else holding.parked.get(record.key)
        if holding is None or state is None or not state.is_delivered(record.parked_number):
            self._context.acknowledger.unstored.late += 1
        else:
            state.acknowledged = record.parked_number
            resumed = ResumedKey(record.segment, record.generation, record.key, record.parked_number)
            self._context.acknowledger.resume(resumed)
            holding.progress.set()

    def heard(self, resuming: list[ResumingKey], asked_at: float) -> None:
        """Begin to resume the keys that the leader names in reply to a question at loop time ``asked_at``."""
        for named in resuming:
            holding = self._context.feed.holdings.get((named.segment, named.generation))
            if holding is None or holding.stopped:
                continue
            state = holding.parked.get(named.key)
            if state is None and asked_at > self._unparked_at and (holding, named.key) not in self._asking:
                state = holding.parked[named.key] = ParkedKey(holding.queued_end)
            if state is not None and state.parked_at < asked_at:
                if not state.is_resuming:
                    # A state of its own: what the former resumption has read may still wait for space in the queue.
                    state = ParkedKey(
                        state.queued_end, is_resuming=True, parking=named.parking, parked_at=state.parked_at
                    )
                    holding.parked[named.key] = state
                    self._context.tasks.spawn(self._resume(holding, state, named), "resume-key")
                state.pass_over(named.number)

    async def _resume(self, holding: HeldSegment, state: ParkedKey, named: ResumingKey) -> None:
        """Resume until that has ended. If the segment is revoked, what was delivered can still be acknowledged."""
        while state.is_resuming and self._context.feed.holds(holding) and not holding.stopped:
            try:
                await self._continue(holding, state, named)
                self.problem = ""
                if state.is_resuming:
                    named = await self._present(state, named)
            except (NoLeaderError, RequestRejectedError, StoreUnavailableError, LedgerError) as error:
                if self.problem != (text := str(error)):  # once: an operator acts, or it ends
                    self._context.log.error("key.not_resumed", key=repr(named.key), reason=text)  # noqa: TRY400 - no bug
                self.problem = text
                await asyncio.sleep(RETRY_SECONDS)

    async def _present(self, state: ParkedKey, named: ResumingKey) -> ResumingKey:
        """Return the leader's newest word about a key. Without one the resumption ends: it may have another holder."""
        assert self.heartbeat is not None, "the membership has not begun"
        await asyncio.sleep(RETRY_SECONDS)
        for each in (await self.heartbeat()).resuming:
            if (each.key, each.generation) == (named.key, named.generation):
                return each
        state.end_resumption()
        return named

    async def _continue(self, holding: HeldSegment, state: ParkedKey, named: ResumingKey) -> None:
        """Take the next step of a resumption (rules 3 and 4)."""
        rises, now = named.stored > state.queued, asyncio.get_running_loop().time
        while named.stored > state.queued and state.is_resuming and not holding.stopped and holding.resumed is None:
            await self._deliver(holding, state, named)
        if named.stored > state.queued:
            return  # `Consumer.run` is far enough ahead of its handlers, or it has ended.
        if rises or named.last == state.queued:
            state.stored_at = now()
        if (held := now() < state.stored_at + HOLD_SECONDS) != (state.held is not None):
            state.hold(held)
        elif (
            named.last == named.number == state.queued
            and state.held is not None
            and holding.taken_end >= state.queued_end
            and not self._context.acknowledger.unstored.has_parked((named.segment, named.generation), named.key)
        ):
            await self._context.requests.unpark(named)
            self._unparked_at = now()
            if self._context.feed.holds(holding):
                self._context.log.info("key.resumed", key=repr(named.key))
                holding.parked.pop(named.key, None)
            state.end_resumption()

    async def _deliver(self, holding: HeldSegment, state: ParkedKey, named: ResumingKey) -> None:
        end = min(named.stored, state.queued + RESUMED_RECORDS)
        async with self._reads:
            parked = {key for each in self._context.feed.holdings.values() for key in each.parked}
            found, newest = await self._stored.take(named.topic, named.key, range(state.queued + 1, end + 1), parked)
            newest = min(newest, named.stored)
            for number in sorted(found):
                if state.is_resuming and not holding.stopped and number > state.queued:
                    self._pass(named, state, number - 1, newest)
                    state.queued = number
                    state.expected.append(number)
                    record = self._consumed(holding, found[number], number)
                    await self._context.feed.queue.put(holding, iter([record]))
        if state.is_resuming and not holding.stopped:
            self._pass(named, state, end, newest)

    def _pass(self, named: ResumingKey, state: ParkedKey, end: int, newest: int) -> None:
        """Pass over records up to number ``end`` that the topic has lost, if others are behind them, up to ``newest``.

        Raises LedgerError: none are. A leader that was deposed may have described the topic without its newest records.
        """
        if (missing := end - state.queued) > 0:
            if newest <= end:
                raise LedgerError(
                    f"{missing} records are not in topic {named.topic!r}: if it has lost them, drop the key"
                )
            self._context.log.error("key.records_missing", key=repr(named.key), records=missing)
            state.queued = end

    def _consumed(self, holding: HeldSegment, record: LedgerRecord, number: int) -> ConsumedRecord:
        place = self._context.requests.push_key[0], SegmentId(holding.grant.segment), Offset(record.offset)
        at_ms, generation = record.timestamp_ms, Generation(holding.grant.generation)
        return ConsumedRecord(*place, record.key, record.value, at_ms, generation, record.headers, parked_number=number)
