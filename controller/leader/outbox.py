"""Send replies, pushes and announcements, each once the chunk it depends on is durable.

Delivery is not guaranteed: clients repeat requests. A large message is sent in parts, because a
broker closes the connection of a client that exceeds its limit. One that exceeds the protocol's
limit is not sent: its client gets a refusal instead.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from msgspec.structs import replace

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.leader.request_decoding import Address
from headgate.backoff import ReportLimit
from headgate.protocol import codec
from headgate.protocol.replies import AnyReplyBody, LeaderReply, Push, Rejected, Reply
from headgate.protocol.requests import DescribeLeader, Request
from metrics import events
from shard.requests.handlers import AfterBarrier, AfterChunk, Outcome
from shard.state.producers import WINDOW
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.registration import MISSED_HEARTBEATS

CORRECTION_INTERVAL_SECONDS: Final = 1.0
"""Between two corrections, so that two programs that replace each other's announcement do so slowly."""
LOG_INTERVAL_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class Announcer:
    """Announce one leader: retained at the broker, and in reply to the question of a client.

    A program that can publish to the leader topic can replace the retained announcement. Clients believe replies
    only, so a foreign announcement costs them a question. The leader publishes its own again after a barrier: without
    that chunk the foreign one may be that of its successor.
    """

    def __init__(
        self,
        state: ShardState,
        context: LeaderContext,
        commit: GroupCommit,
        *,
        publish: Callable[[codec.LeaderAnnouncement], None],
        serving: Callable[[], bool],
    ) -> None:
        self._announcement = codec.LeaderAnnouncement(
            shard=state.shard,
            leader_epoch=state.term.leader_epoch,
            instance=context.instance,
            window=WINDOW,
            ledger_id=context.ledger_id,
        )
        self._publish = publish
        self._serving = serving
        self._commit = commit
        self._observer = context.observer
        self._own: set[bytes] = set()
        """Payloads that this leader has published; the broker returns each."""
        self._correcting = False
        self._corrected_at = -math.inf
        self._logged = ReportLimit(LOG_INTERVAL_SECONDS)

    def announce(self) -> None:
        """Publish the announcement. Without a broker connection the next connection does."""
        if self._serving():
            self._own.add(codec.encode(self._announcement))
            self._publish(self._announcement)

    def describe(self, request: DescribeLeader, _: str) -> Outcome:
        """Reply to a client that asks who leads; after a barrier if it has heard of a later term."""
        leader = self._announcement
        body = LeaderReply(instance=leader.instance, window=leader.window)
        if request.heard_epoch <= leader.leader_epoch:
            return AfterChunk(self._commit.durable, body)
        return AfterBarrier(body)

    def seen(self, payload: bytes) -> None:
        """Consider what was published as the announcement of this shard, unless it is of another ledger's leader."""
        of_other = b"ledger_id" in payload and self._announcement.ledger_id not in payload
        if of_other or payload in self._own or self._correcting or not self._serving():
            return
        self._correcting = True
        loop = asyncio.get_running_loop()
        due_at = max(loop.time(), self._corrected_at + CORRECTION_INTERVAL_SECONDS)
        loop.call_at(due_at, self._commit.after_barrier, self._correct)

    def _correct(self) -> None:
        now = asyncio.get_running_loop().time()
        self._correcting, self._corrected_at = False, now
        if not self._serving():
            return
        self._observer.observe(events.ForeignAnnouncementSeen(shard=self._announcement.shard))
        if self._logged.is_due(now):
            log.warning(
                "leader.announcement_replaced",
                shard=self._announcement.shard,
                remedy="let only daemons publish to the leader topics: headgate access export",
            )
        self.announce()


class ChunkAnnouncer:
    """Publish small chunks of one shard to the consumers at its end, so that these need not read them from the store.

    1. A chunk is published once it is durable, and before the head that includes it.
    2. A client follows from a heartbeat that says so until `MISSED_HEARTBEATS` heartbeats later.
    3. The broker sends a chunk to each client that follows. It is published if that is at most
       ``ingest.announce_bytes``.
    4. Only replies to consumers that follow state the key that authenticates what is published.
    """

    def __init__(self, state: ShardState, context: LeaderContext) -> None:
        self._shard = state.shard
        self._term_id = state.terms.newest_id
        self._context = context
        self._key = context.new_producer_id()
        self._followers: dict[str, float] = {}
        """Client id → loop time until which it follows, rising."""

    def follow(self, client_id: str) -> int:
        """Announce chunks to the consumers of a client from now on. Returns their key."""
        seconds = MISSED_HEARTBEATS * self._context.subscriptions.heartbeat_interval_seconds
        self._followers.pop(client_id, None)
        self._followers[client_id] = asyncio.get_running_loop().time() + seconds
        return self._key

    def announce(self, number: int, data: bytes) -> None:
        """Publish durable chunk ``number`` if rule 3 allows it."""
        while self._followers and next(iter(self._followers.values())) <= asyncio.get_running_loop().time():
            del self._followers[next(iter(self._followers))]
        if not 0 < len(self._followers) * len(data) <= self._context.ingest.announce_bytes:
            return
        message = codec.ChunkAnnouncement.of(
            data, shard=self._shard, number=number, term_id=self._term_id, key=self._key
        )
        self._context.transport.publish(codec.chunk_topic(self._context.cluster, self._shard), codec.encode(message))
        self._context.observer.observe(events.ChunkAnnounced(shard=self._shard))


MAX_DELAYED_REPLIES: Final = 10_000
"""Per user and shard. Beyond it, requests of the user are not read until some have left."""


class DelayedReplies:
    """The replies of one leader term that wait, because their users have spent their rates (KIP-124).

    A user's replies leave in the order in which they became due, so that a producer sees its batches
    committed in order. Replies to other users are not delayed.
    """

    def __init__(self, shard: int, delay_seconds: Callable[[str], float], observer: events.Observer) -> None:
        """``delay_seconds``: user → how long a reply has to wait that is sent now. It falls only with time."""
        self._shard = shard
        self._delay_seconds = delay_seconds
        self._observer = observer
        self._waiting: dict[str, deque[tuple[float, Callable[[], None]]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._count = 0

    def full(self, user: str) -> bool:
        """Return whether no more replies to ``user`` may wait."""
        waiting = self._waiting.get(user)
        return waiting is not None and len(waiting) >= MAX_DELAYED_REPLIES

    def send(self, user: str, send: Callable[[], None]) -> None:
        """Call ``send`` when a reply to ``user`` may leave, after those that wait already."""
        seconds = self._delay_seconds(user)
        if seconds <= 0 and user not in self._waiting:
            send()
            return
        now = asyncio.get_running_loop().time()
        self._waiting.setdefault(user, deque()).append((now + seconds, send))
        if user not in self._timers:
            self._set_timer(user)
        self._observer.observe(events.ReplyDelayed(shard=self._shard))
        self._set_count(self._count + 1)

    def close(self) -> None:
        """Drop what waits: the next leader answers when clients repeat their requests."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        self._set_count(0)

    def _set_timer(self, user: str) -> None:
        self._timers[user] = asyncio.get_running_loop().call_at(self._waiting[user][0][0], self._send_due, user)

    def _send_due(self, user: str) -> None:
        waiting, now = self._waiting[user], self._timers.pop(user).when()
        before = len(waiting)
        while waiting and waiting[0][0] <= now:
            waiting.popleft()[1]()
        self._set_count(self._count - before + len(waiting))
        if waiting:
            self._set_timer(user)
        else:
            del self._waiting[user]

    def _set_count(self, count: int) -> None:
        self._count = count
        self._observer.observe(events.DelayedRepliesChanged(shard=self._shard, replies=count))


class Outbox:
    """The messages of one leader to its clients."""

    def __init__(self, state: ShardState, context: LeaderContext, commit: GroupCommit) -> None:
        self._state = state
        self._shard = state.shard
        self._term: dict[str, Any] = {"leader_epoch": state.term.leader_epoch, "ledger_id": context.ledger_id}
        self._context = context
        self._commit = commit
        self._messages_in_parts = 0
        self.chunks = ChunkAnnouncer(state, context)
        self.delayed = DelayedReplies(state.shard, self._delay_seconds, context.observer)

    def reply(self, request: Request | Address, body: AnyReplyBody, chunk: int | None = None) -> None:
        """Send the reply with ``body`` once ``chunk`` is durable; None: once every proposed entry is."""
        chunk = self._commit.newest if chunk is None else chunk
        self._commit.when_durable(chunk, self._sending(request, *self._reply_message(request, body)))

    def answer(self, request: Request | Address, body: AnyReplyBody | Refusal, chunk: int | None = None) -> None:
        """Send the answer to a query as `reply` does, a large one in a turn after that which encodes it. Or refuse it.

        Other messages may overtake it, which changes nothing for a query.
        """
        if isinstance(body, Refusal):
            self.refuse(request, body)
            return
        chunk = self._commit.newest if chunk is None else chunk
        topic, payload = self._reply_message(request, body)
        send = partial(self._commit.when_durable, chunk, self._sending(request, topic, payload))
        if len(payload) <= codec.PART_BYTES:
            send()
        else:
            asyncio.get_running_loop().call_soon(send)

    def refuse(self, request: Request | Address, refusal: Refusal) -> None:
        """Send the refusal when its flags allow it. A delayed one is delayed by the caller."""
        body = Rejected(
            verdict=refusal.verdict,
            reason=refusal.reason,
            instance=self._context.instance,
            term_age_ms=refusal.term_age_ms,
            shards=list(self._state.ids.shard_counts) if refusal.verdict == "invalid" else [],
        )
        if refusal.after_barrier:
            self._commit.after_barrier(self._sending(request, *self._reply_message(request, body)))
        else:
            self.reply(request, body, None if refusal.after_proposed else self._commit.durable)

    def push(self, client_id: str, message: Push) -> None:
        """Send ``message`` once every proposed entry is durable."""
        payload = codec.encode(replace(message, ledger_id=self._context.ledger_id))
        topic = codec.replies_topic(self._context.cluster, client_id)
        if len(payload) > codec.MAX_REPLY_BYTES:
            self._report_too_large(type(message).__name__, client_id, len(payload))
            return
        self._commit.when_durable(self._commit.newest, partial(self._publish, topic, payload))

    def announce_leader(self, announcement: codec.LeaderAnnouncement) -> None:
        self._context.transport.publish(
            codec.leader_topic(self._context.cluster, self._shard), codec.encode(announcement), retain=True
        )

    def announce(self, number: int, data: bytes) -> None:
        """Publish that chunk ``number`` is durable. The replies that waited for it are already written, or go along."""
        self.chunks.announce(number, data)
        head = codec.HeadAnnouncement(shard=self._shard, head=number, **self._term)
        self._publish(codec.head_topic(self._context.cluster, self._shard), codec.encode(head))

    def _reply_message(self, request: Request | Address, body: AnyReplyBody) -> tuple[str, bytes]:
        reply = Reply(request_id=request.request_id, body=body, **self._term)
        topic, payload = codec.replies_topic(self._context.cluster, request.client_id), codec.encode(reply)
        if len(payload) <= codec.MAX_REPLY_BYTES:
            return topic, payload
        self._report_too_large(type(body).__name__, request.client_id, len(payload))
        reason = f"the reply has {len(payload)} bytes; the limit is {codec.MAX_REPLY_BYTES}: ask for less at a time"
        return self._reply_message(request, Rejected(verdict="invalid", reason=reason, instance=self._context.instance))

    def _sending(self, request: Request | Address, topic: str, payload: bytes) -> Callable[[], None]:
        """Return what publishes a reply when its user may have it."""
        return partial(self.delayed.send, codec.user_of(request.client_id), partial(self._publish, topic, payload))

    def _delay_seconds(self, user: str) -> float:
        return self._context.access.delay_seconds(user, asyncio.get_running_loop().time())

    def _report_too_large(self, kind: str, client_id: str, size_bytes: int) -> None:
        self._context.observer.observe(events.OversizedMessageWithheld())
        log.warning(
            "message.too_large",
            shard=self._shard,
            kind=kind,
            client_id=client_id,
            size_bytes=size_bytes,
            limit_bytes=codec.MAX_REPLY_BYTES,
        )

    def _publish(self, topic: str, payload: bytes) -> None:
        if len(payload) <= codec.PART_BYTES:
            self._context.transport.publish(topic, payload)
            return
        self._messages_in_parts += 1
        for part in codec.split_message(payload, shard=self._shard, number=self._messages_in_parts, **self._term):
            self._context.transport.publish(topic, codec.encode(part))
