"""One consumer's membership of its subscription: registration, heartbeats, and the leader's messages to it.

1. The consumer registers again at every leader announcement, which also follows every reconnection.
   It keeps its incarnation, and continues to deliver meanwhile. A heartbeat without a reply is no
   reason to: a registration costs a leader that is late already far more.
   Once its lease has ended (`DeliveryLease`), it delivers nothing, and registers after the next answered heartbeat.
2. Pushes can be lost, so every heartbeat lists what the consumer holds, and the leader pushes what
   is missing again.
3. A newer program of the same name, an eviction by a command, or the deletion of the subscription
   fences this consumer: the iterator raises FencedError.
4. Until its user has lacked the right for `FORBIDDEN_SECONDS`, nothing changes: an access file is soon
   corrected. Then the iterator raises the refusal.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS
from headgate.client.consuming.consumer_tasks import ConsumerContext
from headgate.client.consuming.deliveries import Deliveries
from headgate.client.holdings import Holdings
from headgate.errors import FencedError, HeadgateError, NoLeaderError, OtherHistoryError, RequestRejectedError
from headgate.model.identifiers import SegmentId
from headgate.protocol.replies import AssignmentChanged, ConsumerFenced, HeartbeatReply, Push

FORBIDDEN_SECONDS: Final = 30.0
"""Half the default grace period, during which the leader keeps the segments of a silent consumer."""


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
        self._client = context.client
        self._requests = context.requests
        self._feed = context.feed
        self._holdings = holdings
        self._deliveries = deliveries
        self._tasks = context.tasks
        self._log = context.log
        self._open_feed = open_feed
        self._shard = 0
        self._registration_needed = asyncio.Event()
        self._interval_seconds = 5.0
        self._asked_before = 0
        """How often the program had asked for a record at the last heartbeat that was answered."""
        self._forbidden_since: float | None = None
        """Loop time since which every request was forbidden; None: the newest was not."""
        deliveries.sender.heartbeat = deliveries.parking.heartbeat = self.heartbeat
        self._feed.queue.lease.on_end = self.lease_ended
        self._cleanup_callbacks: list[Callable[[], None]] = []

    async def open(self, shard: int, timeout_seconds: float) -> None:
        client, self._shard = self._client, shard
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await self._requests.open(shard, client.now_ms(), timeout_seconds)
        key = self._requests.push_key
        client.replies.expect_pushes(key, self._on_push)
        self._cleanup_callbacks.append(lambda: client.replies.forget_pushes(key))
        self._cleanup_callbacks.append(await client.watch_head(shard, lambda head: self._feed.head.advance(head.head)))
        await self.register(max(0.0, deadline - asyncio.get_running_loop().time()))
        self._cleanup_callbacks.append(client.on_leader(shard, lambda _: self._registration_needed.set()))
        # The leader says whether the segment was pruned before its end.
        self._holdings.on_dropped = self._registration_needed.set
        self._tasks.spawn(self._maintain_registration(), "membership")
        self._tasks.spawn(self._holdings.confirmations.run(), "confirmations")

    def close(self) -> None:
        for remove in self._cleanup_callbacks:
            remove()
        self._cleanup_callbacks.clear()
        self._feed.queue.lease.close()
        self._deliveries.chunks.close()

    async def leave(self, timeout_seconds: float, *, failed: bool) -> None:
        """Give up the membership. The leader notices the absence of a consumer that cannot reach it."""
        try:
            await self._requests.leave(timeout_seconds, failed=failed)
        except (NoLeaderError, RequestRejectedError) as error:
            self._log.warning("consumer.leave_failed", reason=str(error))

    async def register(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._holdings.decisions.registration_requested()
        asked_at = asyncio.get_running_loop().time()
        registered, leader_epoch = await self._requests.register(self._feed.own_positions, timeout_seconds)
        self._feed.head.advance(registered.head)
        self._deliveries.policy = registered.policy
        self._interval_seconds = registered.heartbeat_interval_seconds
        self._open_feed(self._shard, registered.topic_id)
        self._holdings.registered(leader_epoch, registered)
        self._feed.queue.lease.begin(asked_at, registered.lease_seconds)
        self._feed.queue.wake()
        if self._holdings.handling is not None:
            self._holdings.handling.start()
        self._feed.own = {SegmentId(segment) for segment, _ in self._feed.holdings}

    def lease_ended(self) -> None:
        self._log.warning("consumer.lease_ended", reason=self._client.unanswered(self._shard))
        if self._feed.reads_by_call:
            self._holdings.drop_all()

    @property
    def subscription_id(self) -> int:
        return self._requests.subscription_id

    @property
    def topic_id(self) -> int:
        if (found := self._requests.topic_id) is None:
            raise HeadgateError("the topic of this consumer has no id before it is entered")
        return found

    def positions_text(self) -> str:
        """Return where the next consumer continues, and what these positions belong to."""
        return self._requests.positions_text(self._feed.positions, self._feed.own)

    async def heartbeat(self, *, asks_unread: bool = False) -> HeartbeatReply:
        """Say that this consumer is alive, and what it holds. ``asks_unread``: count what nothing reads."""
        asked, handling = self._feed.totals.asked, self._holdings.handling
        asked_at = asyncio.get_running_loop().time()
        alive = await self._requests.heartbeat(
            self._holdings.generations(),
            self._feed.unhandled,
            asks_unread=asks_unread,
            problem=self._deliveries.sender.problem,
            ready=asked != self._asked_before if handling is None else handling.schedule.is_free,
            follows=self._deliveries.chunks.follows,
        )
        self._asked_before = asked
        self._feed.queue.lease.extend(asked_at)
        self._feed.head.advance(alive.head)
        self._deliveries.heard(alive, asked_at)
        await self._deliveries.chunks.heard(self._shard, alive)
        return alive

    async def _maintain_registration(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if self._holdings.decisions.may_lack_grants else self._interval_seconds):
                    await self._registration_needed.wait()
            registers = self._registration_needed.is_set()
            self._registration_needed.clear()
            try:
                await (self.register() if registers else self.heartbeat())
                self._forbidden_since = None
            except NoLeaderError as error:
                self._log.warning("consumer.no_leader", reason=str(error))
            except (FencedError, OtherHistoryError):
                raise
            except RequestRejectedError as error:
                if error.verdict == "forbidden":
                    await self._tolerate(error)
                elif registers:
                    raise
                else:
                    # Evicted while disconnected. The registration shows whether for good.
                    self._log.warning("consumer.heartbeat_rejected", reason=str(error))
                    self._holdings.drop_all()
                    registers = True
            else:
                registers = not self._feed.may_deliver
            if registers:
                self._registration_needed.set()

    async def _tolerate(self, forbidden: RequestRejectedError) -> None:
        """Rule 4: raise ``forbidden`` if the right has been missing for too long, else pause."""
        now = asyncio.get_running_loop().time()
        self._forbidden_since = now if self._forbidden_since is None else self._forbidden_since
        if now - self._forbidden_since >= FORBIDDEN_SECONDS:
            raise forbidden
        self._log.warning("consumer.forbidden", reason=str(forbidden))
        await asyncio.sleep(self._interval_seconds)

    def _on_push(self, push: Push) -> None:
        if (push.incarnation, push.ledger_id.hex()) != (self._requests.incarnation, self._requests.ledger_id):
            return
        if isinstance(push, AssignmentChanged):
            self._holdings.changed(push)
        elif isinstance(push, ConsumerFenced) and self._requests.subscription_id:
            self._log.warning("consumer.fenced", reason=push.reason)
            known = self._client.leader(self._shard)
            if known is None or push.leader_epoch >= known.leader_epoch:
                self._holdings.drop_all()
                # The reply shows whether another program has this name, or this one was only evicted.
                self._registration_needed.set()
