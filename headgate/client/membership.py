"""One consumer's membership of its subscription: registration, heartbeats, and the leader's messages to it.

1. The consumer registers again at every leader announcement, which also follows every reconnection.
   It keeps its incarnation, and continues to deliver meanwhile. A heartbeat without a reply is no
   reason to: a registration costs a leader that is late already far more.
   Once its lease has ended (`DeliveryLease`), it delivers nothing, and registers after the next answered heartbeat.
2. Pushes can be lost, so every heartbeat lists what the consumer holds, and the leader pushes what is missing again.
3. A newer program of the same name, an eviction by a command, or the deletion of the subscription
   fences this consumer: the iterator raises FencedError.
4. Until its user has lacked the right for `FORBIDDEN_SECONDS`, nothing changes: an access file is soon
   corrected. Then the iterator raises the refusal.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from headgate import errors
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS
from headgate.client.consuming.consumer_context import ConsumerContext
from headgate.client.consuming.deliveries import Deliveries
from headgate.client.consuming.record_feed import AnnouncedChunks, Spawn
from headgate.client.decisions.held_segments import Changes, HeldKey, HeldSegments, finish_seconds
from headgate.client.processing.calls import Call, awaitable
from headgate.client.processing.runner import Runner
from headgate.log.event_log import EventLogger
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import SegmentId
from headgate.model.layout import SegmentSlice, slice_of
from headgate.protocol import replies
from headgate.protocol.request_fields import MAX_CONFIRMED_SEGMENTS

Confirm = Callable[[list[tuple[int, int]]], Awaitable[None]]
"""Confirms that (segment, generation) pairs are released; see `headgate.client.consuming.consumer_context`."""
FIRST_HEARTBEAT_SECONDS: Final = 1.0
"""After the start. Its reply lets a consumer that is at the end follow, see `AnnouncedChunks`."""
FORBIDDEN_SECONDS: Final = 30.0
"""Half the default grace period, during which the leader keeps the segments of a silent consumer."""
OnGranted = Callable[[list[SegmentSlice]], object]
"""(segments). A whole segment is its number, a part of one a `BucketRange`."""
OnRevoked = Callable[[list[SegmentSlice], float], object]
"""(segments, seconds left). 0.0: another consumer may read them already."""
SHORTEST_SECONDS: Final = 5.0
"""For `on_revoked`, however little time is left."""


class Confirmations:
    """Sends a consumer's confirmations of revocations, as many as there are in one request.

    1. One request is under way at a time. What is finished meanwhile goes with the next one, so nothing waits on
       purpose.
    2. A request that fails is not sent again: the leader ends a revocation itself after its time limit, and repeats it
       with a heartbeat before.
    """

    def __init__(self, confirm: Confirm, on_sent: Callable[[replies.Revocation], None], log: EventLogger) -> None:
        """``on_sent`` gets each revocation once its request has a reply, or has failed."""
        self._confirm = confirm
        self._on_sent = on_sent
        self._log = log
        self._waiting: list[replies.Revocation] = []
        self._added = asyncio.Event()

    def add(self, revocation: replies.Revocation) -> None:
        """Confirm that the consumer has stopped reading the segment of ``revocation``. Does not wait."""
        self._waiting.append(revocation)
        self._added.set()

    async def run(self) -> None:
        while True:
            await self._added.wait()
            revocations = self._waiting[:MAX_CONFIRMED_SEGMENTS]
            del self._waiting[:MAX_CONFIRMED_SEGMENTS]
            if not self._waiting:
                self._added.clear()
            try:
                await self._confirm([(each.segment, each.generation) for each in revocations])
            except (errors.NoLeaderError, errors.RequestRejectedError) as error:
                segments = [each.segment for each in revocations]
                self._log.warning("segment.confirm_failed", segments=segments, reason=str(error))
            for each in revocations:
                self._on_sent(each)


class SegmentCallbacks:
    """Tells the program which segments it holds: `on_granted` before their first record, `on_revoked` when they go.

    1. Each slice that `on_granted` was called with is one that `on_revoked` is called with, once.
    2. One call runs at a time, in the order of the leader's messages.
    3. A callback that raises ends the consumer. An `on_revoked` that takes too long is cancelled, and logged.
    """

    def __init__(
        self, on_granted: OnGranted | None, on_revoked: OnRevoked | None, spawn: Spawn, log: EventLogger
    ) -> None:
        self._on_granted = None if on_granted is None else awaitable("on_granted", on_granted)
        self._on_revoked = None if on_revoked is None else awaitable("on_revoked", on_revoked)
        self._spawn = spawn
        self._log = log
        self._turn = asyncio.Lock()
        self.caller: asyncio.Task[Any] | None = None
        """The task that calls a callback now."""
        self._announced: dict[HeldKey, SegmentSlice] = {}

    def granted(self, grants: Iterable[replies.Grant]) -> asyncio.Task[None] | None:
        """Call `on_granted`; return the task that ends when reading may begin. None: now."""
        slices = {
            (each.segment, each.generation): slice_of(each.segment, each.first_bucket, each.end_bucket)
            for each in grants
        }
        self._announced |= slices
        if not slices or self._on_granted is None:
            return None
        return self._spawn(self._call(self._on_granted, list(slices.values())), "on-granted")

    def revoked(self, keys: Iterable[HeldKey], seconds_left: float) -> asyncio.Task[None] | None:
        """Call `on_revoked`; return the task of the call. None: there is nothing to tell."""
        slices = [self._announced.pop(key) for key in keys if key in self._announced]
        if not slices or self._on_revoked is None:
            return None
        ends_at = asyncio.get_running_loop().time() + seconds_left
        return self._spawn(self._call(self._on_revoked, slices, ends_at), "on-revoked")

    async def _call(self, callback: Call, slices: list[SegmentSlice], ends_at: float | None = None) -> None:
        """Call it in its turn, with which its time begins: an `on_revoked` that waits for others is not left out."""
        async with self._turn:
            left = () if ends_at is None else (max(0.0, ends_at - asyncio.get_running_loop().time()),)
            self.caller = asyncio.current_task()
            try:
                async with asyncio.timeout(max(*left, SHORTEST_SECONDS) if left else None) as limit:
                    await callback(slices, *left)
            except TimeoutError:
                if not limit.expired():
                    raise
                self._log.warning("segment.callback_late", segments=str(slices))
            except SystemExit as error:  # it would end the event loop before the consumer
                raise errors.HeadgateError(f"{callback!r} raised {error!r}") from error
            finally:
                self.caller = None


class Holdings:
    """What one consumer holds: starts and stops readers as the leader's messages say, and finishes what is revoked.

    1. Undelivered records of a revoked segment are dropped: its next holder delivers them.
    2. A revoked segment is first left by the handlers of `Consumer.run`, which get no further record of it. Then the
       program's `on_revoked` is called. Both have until the limit of rule 3.
    3. The revocation of a segment is confirmed once every record delivered from it is durably acknowledged, or shortly
       before the leader would fence the segment (`finish_seconds`). What the program has acknowledged by then and is
       not stored is given up, which `Acknowledger.flush` reports. If that includes a negative acknowledgement, it is
       kept and nothing is confirmed: the leader fences the segment, and counts each begun delivery as failed.
    """

    def __init__(self, context: ConsumerContext, callbacks: SegmentCallbacks) -> None:
        self.handling: Runner | None = None
        self.finish_seconds = 0.0
        """How long the records delivered from a revoked segment can be acknowledged."""
        self.confirmations = Confirmations(context.requests.confirm, self._on_confirmed, context.log)
        self.on_dropped: Callable[[], None] = lambda: None
        """Called when a segment of a CHECKPOINT consumer is stopped at once."""
        self._context = context
        self.callbacks = callbacks
        self.decisions = HeldSegments()
        self._closed = False

    def generations(self) -> list[tuple[int, int]]:
        """Return (segment, generation) of every holding, for a heartbeat."""
        self.decisions.may_lack_grants = False
        return self._context.feed.generations()

    def registered(self, leader_epoch: int, reply: replies.Registered) -> None:
        self.finish_seconds = finish_seconds(reply.revoke_timeout_seconds)
        self._apply(self.decisions.registered(leader_epoch, reply))

    def changed(self, push: replies.AssignmentChanged) -> None:
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
        try:
            await self._context.feed.close()
        finally:  # also if this is cancelled
            await self._revoked(self._context.feed.generations(), self.finish_seconds)

    async def _revoked(self, keys: list[HeldKey], seconds_left: float) -> None:
        if (call := self.callbacks.revoked(keys, seconds_left)) is not None:
            await asyncio.wait([call], timeout=max(seconds_left, SHORTEST_SECONDS))

    def _apply(self, changes: Changes) -> None:
        if self._closed:
            return
        for key in changes.stop:
            self._drop(key)
            self._context.log.info("segment.dropped", segment=key[0], generation=key[1])
            if self._context.kind == SubscriptionType.CHECKPOINT:
                self.on_dropped()
        self.callbacks.revoked(changes.stop, 0.0)
        for revocation in changes.finish:
            self._context.tasks.spawn(self._finish(revocation), f"finish-{revocation.segment}")
        for revocation in changes.confirm:
            self.confirmations.add(revocation)
        call = self.callbacks.granted(changes.start)
        for grant in changes.start:
            begun = self._context.feed.begin(grant, call)
            self._context.acknowledger.unstored.begin((grant.segment, grant.generation), begun.acknowledged)
            segment_slice = slice_of(grant.segment, grant.first_bucket, grant.end_bucket)
            self._context.log.info("segment.granted", segment=str(segment_slice), generation=grant.generation)

    async def _finish(self, revocation: replies.Revocation) -> None:
        """Rules 2 and 3."""
        key = (revocation.segment, revocation.generation)
        if (holding := self._context.feed.holdings.get(key)) is None:
            return  # The leader has ended it in the turn in which it asked for it.
        self._context.feed.stop(holding)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.finish_seconds
        if self.handling is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.handling.settle(key)
            except TimeoutError:
                self.handling.ended(key)
        await self._revoked([key], deadline - loop.time())
        if self._context.kind != SubscriptionType.CHECKPOINT:
            try:
                async with asyncio.timeout_at(deadline):
                    while not holding.is_acknowledged(self._context.kind) and self._context.feed.holds(holding):
                        holding.progress.clear()
                        await holding.progress.wait()
            except TimeoutError:
                self._context.feed.stop(holding)  # Again: a call may wait for its own handlers.
                self._context.log.warning("segment.released_unacknowledged", segment=revocation.segment)
            try:
                await self._context.acknowledger.flush(max(1.0, deadline - loop.time()), [key])
            except errors.AcknowledgementsNotStoredError:
                if self._context.acknowledger.unstored.has_negative([key]):
                    return
                self._context.acknowledger.give_up(key)
        if self._context.feed.holds(holding):
            self.confirmations.add(revocation)

    def _on_confirmed(self, revocation: replies.Revocation) -> None:
        self.decisions.confirmed(revocation)
        if (key := (revocation.segment, revocation.generation)) in self._context.feed.holdings:
            self._context.feed.own.discard(SegmentId(revocation.segment))
        self._drop(key)

    def _drop(self, key: HeldKey) -> None:
        self._context.feed.drop(*key)
        self._context.acknowledger.end(key)
        if self.handling is not None:
            self.handling.ended(key)


class Membership:
    def __init__(
        self,
        context: ConsumerContext,
        holdings: Holdings,
        deliveries: Deliveries,
        *,
        open_feed: Callable[[int, int], None],
    ) -> None:
        """``open_feed`` gets the shard and the id of the topic, at each registration."""
        self._context = context
        self.requests = context.requests
        self._holdings = holdings
        self._deliveries = deliveries
        self._chunks = AnnouncedChunks(context.client, context.feed, context.log)
        self._open_feed = open_feed
        self._shard = 0
        self._registration_needed = asyncio.Event()
        self._registering = asyncio.Lock()
        self._interval_seconds = 5.0
        self._asked_before = 0
        """How often the program had asked for a record at the last heartbeat that was answered."""
        self._forbidden_since: float | None = None
        """Loop time since which every request was forbidden; None: the newest was not."""
        deliveries.sender.heartbeat = deliveries.parking.heartbeat = self.heartbeat
        self._context.feed.queue.lease.on_end = self.lease_ended
        self._cleanup_callbacks: list[Callable[[], None]] = []

    async def open(self, shard: int, timeout_seconds: float) -> None:
        client, self._shard = self._context.client, shard
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self.requests.open(shard, client.now_ms(), timeout_seconds)
        key = self.requests.push_key
        client.replies.expect_pushes(key, self._on_push)
        self._cleanup_callbacks.append(lambda: client.replies.forget_pushes(key))
        self._cleanup_callbacks.append(await client.watch_head(shard, self._context.feed.head.advance))
        await self.register(max(0.0, deadline - asyncio.get_running_loop().time()))
        self._cleanup_callbacks.append(client.on_leader(shard, lambda _: self._registration_needed.set()))
        # The leader says whether the segment was pruned before its end.
        self._holdings.on_dropped = self._registration_needed.set
        self._context.tasks.spawn(self._maintain_registration(), "membership")
        self._context.tasks.spawn(self._holdings.confirmations.run(), "confirmations")

    def close(self) -> None:
        for remove in self._cleanup_callbacks:
            remove()
        self._cleanup_callbacks.clear()
        self._context.feed.queue.lease.close()
        self._chunks.close()

    async def leave(self, timeout_seconds: float, *, failed: bool) -> None:
        """Give up the membership. The leader notices the absence of a consumer that cannot reach it."""
        try:
            await self.requests.leave(timeout_seconds, failed=failed)
        except (errors.NoLeaderError, errors.RequestRejectedError) as error:
            self._context.log.warning("consumer.leave_failed", reason=str(error))

    async def register(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        async with self._registering:  # Of two lists that overlap, an older one would end what the newer one has.
            await self._register(timeout_seconds)

    async def _register(self, timeout_seconds: float) -> None:
        self._holdings.decisions.registration_requested()
        asked_at = self._context.feed.queue.lease.now()
        registered, leader_epoch = await self.requests.register(self._context.feed.own_positions, timeout_seconds)
        self._context.feed.head.advance(registered.head)
        self._deliveries.policy = registered.policy
        self._interval_seconds = registered.heartbeat_interval_seconds
        self._open_feed(self._shard, registered.topic_id)
        self._holdings.registered(leader_epoch, registered)
        self._context.feed.queue.lease.begin(asked_at, registered.lease_seconds)
        self._context.feed.queue.wake()
        if self._holdings.handling is not None:
            self._holdings.handling.start()
        self._context.feed.own = {SegmentId(segment) for segment, _ in self._context.feed.holdings}

    def lease_ended(self) -> None:
        self._context.log.warning("consumer.lease_ended", reason=self._context.client.unanswered(self._shard))
        if self._context.feed.reads_by_call:
            self._holdings.drop_all()

    @property
    def topic_id(self) -> int:
        if (found := self.requests.topic_id) is None:
            raise errors.HeadgateError("the topic of this consumer has no id before it is entered")
        return found

    async def heartbeat(self, *, asks_unread: bool = False) -> replies.HeartbeatReply:
        """Say that this consumer is alive, and what it holds. ``asks_unread``: count what nothing reads."""
        asked, handling = self._context.feed.totals.asked, self._holdings.handling
        asked_at, sent_at = asyncio.get_running_loop().time(), self._context.feed.queue.lease.now()
        alive = await self.requests.heartbeat(
            self._holdings.generations(),
            self._context.feed.unhandled,
            asks_unread=asks_unread,
            problem=self._deliveries.sender.problem,
            ready=asked != self._asked_before if handling is None else handling.schedule.is_free,
            follows=self._chunks.follows,
        )
        self._asked_before = asked
        self._context.feed.queue.lease.extend(sent_at)
        self._context.feed.head.advance(alive.head)
        self._deliveries.heard(alive, asked_at)
        await self._chunks.heard(self._shard, alive)
        return alive

    async def _maintain_registration(self) -> None:
        pause_seconds = min(FIRST_HEARTBEAT_SECONDS, self._interval_seconds)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._holdings.decisions.may_lack_grants else pause_seconds):
                    await self._registration_needed.wait()
            registers = self._registration_needed.is_set()
            self._registration_needed.clear()
            followed = self._chunks.follows
            try:
                await (self.register() if registers else self.heartbeat())
                self._forbidden_since = None
            except errors.NoLeaderError as error:
                self._context.log.warning("consumer.no_leader", reason=str(error))
            except (errors.FencedError, errors.OtherHistoryError):
                raise
            except errors.RequestRejectedError as error:
                if error.verdict == "forbidden":
                    await self._tolerate(error)
                elif registers:
                    raise
                else:
                    # Evicted while disconnected. The registration shows whether for good.
                    self._context.log.warning("consumer.heartbeat_rejected", reason=str(error))
                    self._holdings.drop_all()
                    registers = True
            else:
                registers = not self._context.feed.may_deliver
            if registers:
                self._registration_needed.set()
            pause_seconds = 0.0 if self._chunks.follows > followed else self._interval_seconds

    async def _tolerate(self, forbidden: errors.RequestRejectedError) -> None:
        """Rule 4: raise ``forbidden`` if the right has been missing for too long, else pause."""
        now = asyncio.get_running_loop().time()
        self._forbidden_since = now if self._forbidden_since is None else self._forbidden_since
        if now - self._forbidden_since >= FORBIDDEN_SECONDS:
            raise forbidden
        self._context.log.warning("consumer.forbidden", reason=str(forbidden))
        await asyncio.sleep(self._interval_seconds)

    def _on_push(self, push: replies.Push) -> None:
        if push.ledger_id.hex() != self.requests.ledger_id:
            return
        if isinstance(push, replies.AssignmentChanged):
            self._holdings.changed(push)
        elif isinstance(push, replies.ConsumerFenced) and self.requests.subscription_id:
            self._context.log.warning("consumer.fenced", reason=push.reason)
            known = self._context.client.leader(self._shard)
            if known is None or push.leader_epoch >= known.leader_epoch:
                self._holdings.drop_all()
                # The reply shows whether another program has this name, or this one was only evicted.
                self._registration_needed.set()
