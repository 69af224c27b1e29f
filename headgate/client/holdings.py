"""What one consumer holds: it starts and stops readers as the leader's messages say, and finishes what is revoked.

1. Undelivered records of a revoked segment are dropped: its next holder delivers them.
2. A revoked segment is first left by the handlers of `Consumer.run`, which get no further record of it. Then the
   program's `on_revoked` is called. Both have until the limit of rule 3.
3. The revocation of a segment is confirmed once every record delivered from it is durably acknowledged, or
   shortly before the leader would fence the segment (`finish_seconds`). What the program has acknowledged by
   then and is not stored is given up, which `Acknowledger.flush` reports. If that includes a negative acknowledgement,
   it is kept and nothing is confirmed: the leader fences the segment, and counts each begun delivery as failed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice

from headgate.client.consuming.consumer_tasks import ConsumerContext
from headgate.client.decisions.held_segments import Changes, HeldKey, HeldSegments, finish_seconds
from headgate.client.processing.runner import Runner
from headgate.client.processing.segment_callbacks import SegmentCallbacks
from headgate.errors import AcknowledgementsNotStoredError, NoLeaderError, RequestRejectedError
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.model.hashing import slice_of
from headgate.model.identifiers import SegmentId
from headgate.protocol.replies import AssignmentChanged, Registered, Revocation
from headgate.protocol.request_fields import MAX_CONFIRMED_SEGMENTS

Confirm = Callable[[list[tuple[int, int]]], Awaitable[None]]
"""Confirms that (segment, generation) pairs are released; see `headgate.client.consuming.consumer_requests`."""


class Confirmations:
    """Sends a consumer's confirmations of revocations, as many as there are in one request.

    1. One request is under way at a time. What is finished meanwhile goes with the next one, so nothing waits on
       purpose.
    2. A request that fails is not sent again: the leader ends a revocation itself after its time limit, and repeats it
       with a heartbeat before.
    """

    def __init__(self, confirm: Confirm, on_sent: Callable[[Revocation], None], log: EventLogger) -> None:
        """``on_sent`` gets each revocation once its request has a reply, or has failed."""
        self._confirm = confirm
        self._on_sent = on_sent
        self._log = log
        self._waiting: deque[Revocation] = deque()
        self._added = asyncio.Event()

    def add(self, revocation: Revocation) -> None:
        """Confirm that the consumer has stopped reading the segment of ``revocation``. Does not wait."""
        self._waiting.append(revocation)
        self._added.set()

    async def run(self) -> None:
        while True:
            await self._added.wait()
            revocations = list(islice(self._waiting, MAX_CONFIRMED_SEGMENTS))
            for _ in revocations:
                self._waiting.popleft()
            if not self._waiting:
                self._added.clear()
            try:
                await self._confirm([(each.segment, each.generation) for each in revocations])
            except (NoLeaderError, RequestRejectedError) as error:
                segments = [each.segment for each in revocations]
                self._log.warning("segment.confirm_failed", segments=segments, reason=str(error))
            for each in revocations:
                self._on_sent(each)


class Holdings:
    def __init__(self, context: ConsumerContext, callbacks: SegmentCallbacks) -> None:
        self.handling: Runner | None = None
        self.finish_seconds = 0.0
        """How long the records delivered from a revoked segment can be acknowledged."""
        self.confirmations = Confirmations(context.requests.confirm, self._on_confirmed, context.log)
        self.on_dropped: Callable[[], None] = lambda: None
        """Called when a segment of a CHECKPOINT consumer is stopped at once."""
        self._kind = context.kind
        self._feed = context.feed
        self._acknowledger = context.acknowledger
        self._tasks = context.tasks
        self._log = context.log
        self.callbacks = callbacks
        self.decisions = HeldSegments()
        self._closed = False

    def generations(self) -> list[tuple[int, int]]:
        """Return (segment, generation) of every holding, for a heartbeat."""
        self.decisions.may_lack_grants = False
        return self._feed.generations()

    def registered(self, leader_epoch: int, reply: Registered) -> None:
        self.finish_seconds = finish_seconds(reply.revoke_timeout_seconds)
        self._apply(self.decisions.registered(leader_epoch, reply))

    def changed(self, push: AssignmentChanged) -> None:
        self._apply(self.decisions.changed(push))

    def drop_all(self) -> None:
        """Stop reading: the leader has removed this consumer."""
        self._apply(self.decisions.drop_all())

    async def close(self) -> None:
        """Deliver no more records, tell the program that its segments go, and ignore further messages of the leader."""
        if self._closed:
            return
        if self.handling is not None:
            await self.handling.close()
        self._closed = True
        await self._feed.close()
        await self._revoked(self._feed.generations(), self.finish_seconds)

    async def _revoked(self, keys: list[HeldKey], seconds_left: float) -> None:
        if (call := self.callbacks.revoked(keys, seconds_left)) is not None:
            await asyncio.wait([call])

    def _apply(self, changes: Changes) -> None:
        if self._closed:
            return
        for key in changes.stop:
            self._drop(key)
            self._log.info("segment.dropped", segment=key[0], generation=key[1])
            if self._kind == SubscriptionType.CHECKPOINT:
                self.on_dropped()
        self.callbacks.revoked(changes.stop, 0.0)
        for revocation in changes.finish:
            self._tasks.spawn(self._finish(revocation), f"finish-{revocation.segment}")
        for revocation in changes.confirm:
            self.confirmations.add(revocation)
        call = self.callbacks.granted(changes.start)
        for grant in changes.start:
            begun = self._feed.begin(grant, call)
            self._acknowledger.unstored.begin((grant.segment, grant.generation), begun.acknowledged)
            segment_slice = slice_of(grant.segment, grant.first_bucket, grant.end_bucket)
            self._log.info("segment.granted", segment=str(segment_slice), generation=grant.generation)

    async def _finish(self, revocation: Revocation) -> None:
        """Rules 2 and 3."""
        key = (revocation.segment, revocation.generation)
        if (holding := self._feed.holdings.get(key)) is None:
            return  # The leader has ended it in the turn in which it asked for it.
        self._feed.stop(holding)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.finish_seconds
        if self.handling is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.handling.settle(key)
            except TimeoutError:
                self.handling.ended(key)
        await self._revoked([key], deadline - loop.time())
        if self._kind != SubscriptionType.CHECKPOINT:
            try:
                async with asyncio.timeout_at(deadline):
                    while not holding.is_acknowledged(self._kind) and self._feed.holds(holding):
                        holding.progress.clear()
                        await holding.progress.wait()
            except TimeoutError:
                self._log.warning("segment.released_unacknowledged", segment=revocation.segment)
            try:
                await self._acknowledger.flush(max(1.0, deadline - loop.time()), [key])
            except AcknowledgementsNotStoredError:
                if self._acknowledger.unstored.has_negative([key]):
                    return
                self._acknowledger.give_up(key)
        if self._feed.holds(holding):
            self.confirmations.add(revocation)

    def _on_confirmed(self, revocation: Revocation) -> None:
        self.decisions.confirmed(revocation)
        self._drop((revocation.segment, revocation.generation))
        self._feed.own.discard(SegmentId(revocation.segment))

    def _drop(self, key: HeldKey) -> None:
        self._feed.drop(*key)
        self._acknowledger.end(key)
        if self.handling is not None:
            self.handling.ended(key)
