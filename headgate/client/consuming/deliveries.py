"""The deliveries of one QUEUE consumer: begins them, ends them, and delivers again what has failed.

1. With a delivery policy, a record is handed to the program once the leader has stored that its delivery has begun.
   So the loss of this consumer counts for what the program has seen, and for nothing else: by then, its earlier
   acknowledgements are stored too.
2. A delivery ends once: acknowledged, acknowledged negatively, or timed out. What comes later has no effect.
3. This consumer times out its own deliveries. No other one may deliver the record before this one is lost, which fails
   the delivery too, so the leader needs no timer.
4. What has failed is read again when it is due, and waits in the queue like other records. Nothing waits for it.
5. Where the leader keeps no more failed records of a segment, no further record of it is read. Those that are kept are
   delivered again, and free capacity.
"""

import asyncio
import contextlib
import math
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Final

from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consuming.consumer_context import ConsumerContext
from headgate.client.consuming.dead_letters import DeadLetterSender
from headgate.client.consuming.parking import Parking
from headgate.client.consuming.record_queue import HeldSegment
from headgate.client.decisions.held_segments import HeldKey
from headgate.errors import FencedError, NoLeaderError, OtherHistoryError, RequestRejectedError, StoreUnavailableError
from headgate.model.entries import DeliveryPolicy
from headgate.model.layout import key_bucket
from headgate.protocol.replies import DeliveriesBegun, HeartbeatReply, Redelivery
from headgate.protocol.request_fields import MAX_BEGUN_RECORDS, failure_text
from headgate.protocol.requests import Acknowledgement, BegunRecord, NegativeAcknowledgement

RETRY_SECONDS: Final = 1.0
"""Before a delivery that could not begin is tried again."""
SWEEPS: Final = 20
"""A time-out is noticed within this part of itself, and within a second."""


class Deliveries:
    def __init__(self, context: ConsumerContext) -> None:
        self.sender = DeadLetterSender(context)
        self.parking = Parking(context)
        self.policy = DeliveryPolicy()
        """As the newest reply of the leader states it."""
        self.returned: deque[ConsumedRecord] = deque()
        """Records that were taken from the feed and are handed over next."""
        self.feed = context.feed
        self._context = context
        self._due: list[tuple[float, int, HeldSegment, Redelivery | ConsumedRecord]] = []
        """A heap: (loop time, rising number, holding, what is delivered again)."""
        self._numbers = count()
        self._changed = asyncio.Event()
        self.feed.on_granted = self._schedule_granted
        self._context.acknowledger.on_negative = self._on_stored

    def heard(self, alive: HeartbeatReply, asked_at: float) -> None:
        """Follow the leader's reply to a heartbeat of loop time ``asked_at``."""
        self.policy = alive.policy
        if alive.dead_letters:
            self.sender.start()
        if alive.resuming:
            self.parking.heard(alive.resuming, asked_at)

    def start(self) -> None:
        """Deliver again, and time out, until the tasks of the consumer end."""
        self._context.tasks.spawn(self._deliver_again(), "redeliveries")
        self._context.tasks.spawn(self._time_out(), "time-outs")

    async def hand_over(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """Return what `begin` returns. If this is cancelled, the records are handed over next."""
        try:
            return await self.begin(records)
        except BaseException:
            self.returned.extendleft(reversed(records))
            raise

    @property
    def begins(self) -> bool:
        """Whether the leader stores that a delivery has begun (rule 1)."""
        return bool(self.policy.max_deliveries or self.policy.ack_timeout_ms)

    async def begin(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        if not self.begins:
            return records
        begun, _ = await asyncio.gather(self._begin_parts(records), self._context.acknowledger.send())
        return begun

    def acknowledge(self, record: ConsumedRecord) -> None:
        holding = self._present(record)
        if holding is None:
            return
        delivery = holding.end_delivery(record.offset)
        segment, generation, offset = record.segment, record.generation, record.offset
        if delivery == 1:
            self._context.acknowledger.acknowledge((segment, generation), offset, offset + 1)
        else:
            single = Acknowledgement(segment, generation, offset, offset + 1, delivery)
            self._context.acknowledger.acknowledge_single(offset, single)

    def fail(self, record: ConsumedRecord, delay_seconds: float, reason: str) -> None:
        text = failure_text(reason)
        if (holding := self._present(record)) is not None:
            self._fail(holding, record.offset, self._bucket(record), delay_seconds, text)

    def extend(self, record: ConsumedRecord, seconds: float) -> None:
        """Let the present delivery of ``record`` time out after so many seconds from now."""
        holding = self._present(record)
        if holding is not None and record.offset in holding.deliveries.deadlines:
            _, bucket = holding.deliveries.deadlines[record.offset]
            holding.deliveries.deadlines[record.offset] = asyncio.get_running_loop().time() + seconds, bucket

    def _present(self, record: ConsumedRecord) -> HeldSegment | None:
        """Return the holding of ``record`` if this delivery has not ended (rule 2), and count what is late."""
        holding = self.feed.holdings.get((record.segment, record.generation))
        present = None if holding is None else holding.deliveries.unacknowledged_offsets.get(record.offset)
        if holding is not None and present == record.delivery_count:
            return holding
        if holding is None or present is not None or record.offset in holding.deliveries.retrying:
            self._context.acknowledger.unstored.late += 1
        return None

    def _fail(self, holding: HeldSegment, offset: int, bucket: int, delay_seconds: float, reason: str) -> None:
        delivery = holding.end_delivery(offset)
        holding.deliveries.retrying[offset] = asyncio.get_running_loop().time() + delay_seconds
        key = holding.grant.segment, holding.grant.generation
        failed = NegativeAcknowledgement(*key, offset, bucket, delivery, round(delay_seconds * 1000), reason)
        self._context.acknowledger.acknowledge_single(offset, failed)

    async def _begin_parts(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        parts = [records[at : at + MAX_BEGUN_RECORDS] for at in range(0, len(records), MAX_BEGUN_RECORDS)]
        return [record for part in parts for record in await self._begin(part)]

    async def _begin(self, records: list[ConsumedRecord]) -> list[ConsumedRecord]:
        """Begin the deliveries of those ``records`` that this consumer still has; return what the program may have."""
        while records := list(filter(self.feed.is_present, records)):
            named = [(each.segment, each.generation, each.offset, self._bucket(each)) for each in records]
            begun = [BegunRecord(*name, each.delivery_count) for name, each in zip(named, records, strict=True)]
            try:
                reply = await self._context.requests.begin(begun)
                if self.feed.may_deliver:  # Else another consumer may have them: the next registration tells.
                    return self._begun(records, reply)
            except (FencedError, OtherHistoryError):
                raise
            except (NoLeaderError, RequestRejectedError) as error:
                self._context.log.warning("deliveries.not_begun", reason=str(error))
            if self._context.tasks.failure is not None:
                raise self._context.tasks.failure
            await asyncio.sleep(RETRY_SECONDS)
        return []

    def _begun(self, records: list[ConsumedRecord], reply: DeliveriesBegun) -> list[ConsumedRecord]:
        rejected, now = dict(reply.rejected), asyncio.get_running_loop().time()
        handed: list[ConsumedRecord] = []
        for index, record in enumerate(records):
            if not self.feed.is_present(record):
                continue  # It is another consumer's now.
            holding = self.feed.holdings[record.segment, record.generation]
            if index in rejected:
                self._context.log.info("delivery.rejected", segment=record.segment, reason=rejected[index])
                holding.end_delivery(record.offset)
            elif index in reply.delayed:
                holding.end_delivery(record.offset)
                holding.deliveries.has_capacity.clear()
                self._push(holding, record, now + RETRY_SECONDS)
            else:
                holding.deliveries.has_capacity.set()
                if self.policy.ack_timeout_ms:
                    deadline = now + self.policy.ack_timeout_ms / 1000
                    holding.deliveries.deadlines[record.offset] = deadline, self._bucket(record)
                handed.append(record)
        return handed

    def _bucket(self, record: ConsumedRecord) -> int:
        return key_bucket(record.key, self.feed.holdings[record.segment, record.generation].grant.buckets)

    def _on_stored(self, key: HeldKey, redeliveries: list[Redelivery], full: bool) -> None:
        holding = self.feed.holdings.get(key)
        if holding is not None:
            (holding.deliveries.has_capacity.clear if full else holding.deliveries.has_capacity.set)()
            self._schedule(holding, redeliveries)

    def _schedule_granted(self, holding: HeldSegment) -> None:
        """Schedule what a grant names. What was scheduled of a holding that has ended goes: its next grant names it."""
        self._due = sorted(each for each in self._due if self.feed.holds(each[2]))
        self._schedule(holding, holding.grant.failed)

    def _schedule(self, holding: HeldSegment, redeliveries: list[Redelivery]) -> None:
        now = asyncio.get_running_loop().time()
        for each in redeliveries:
            if each.delivery:
                self._push(holding, each, now + each.delay_ms / 1000)
            else:
                holding.deliveries.retrying[each.offset] = math.inf
                self.sender.start()

    def _push(self, holding: HeldSegment, again: Redelivery | ConsumedRecord, due: float) -> None:
        holding.deliveries.retrying[again.offset] = due
        heappush(self._due, (due, next(self._numbers), holding, again))
        self._changed.set()

    async def _deliver_again(self) -> None:
        """Rule 4."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if not self._due or self._due[0][0] > loop.time():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                        await self._changed.wait()
                continue
            _, _, holding, again = heappop(self._due)
            if not self.feed.holds(holding) or holding.stopped:
                continue
            if holding.resumed is not None:  # `Consumer.run` is far enough ahead of its handlers.
                heappush(self._due, (loop.time() + RETRY_SECONDS, next(self._numbers), holding, again))
            elif isinstance(again, Redelivery):
                try:
                    await self.feed.deliver_again(holding, again)
                except StoreUnavailableError as error:
                    self._context.log.warning("redelivery.delayed", reason=str(error))
                    self._push(holding, again, loop.time() + RETRY_SECONDS)
            else:
                del holding.deliveries.retrying[again.offset]
                await self.feed.enqueue(holding, iter([again]))

    async def _time_out(self) -> None:
        """Rule 3."""
        while True:
            seconds = self.policy.ack_timeout_ms / 1000
            late = f"not acknowledged within {seconds:g} s, the ack timeout of the subscription"
            await asyncio.sleep(min(1.0, seconds / SWEEPS) if seconds else 1.0)
            now = asyncio.get_running_loop().time()
            for holding in self.feed.holdings.values():
                for offset, (deadline, bucket) in list(holding.deliveries.deadlines.items()):
                    if deadline <= now:
                        self._fail(holding, offset, bucket, 0.0, late)
