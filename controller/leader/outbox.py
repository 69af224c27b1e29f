"""Send replies, pushes and announcements, each once the chunk it depends on is durable.

Delivery is not guaranteed: clients repeat requests. A large message is sent in parts, because a
broker closes the connection of a client that exceeds its limit. One that exceeds the protocol's
limit is not sent: its client gets a refusal instead.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from msgspec.structs import replace

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.leader.chunk_announcer import ChunkAnnouncer
from controller.leader.request_decoding import Address
from headgate.protocol import codec
from headgate.protocol.announcements import HeadAnnouncement, LeaderAnnouncement
from headgate.protocol.codec import MAX_REPLY_BYTES, PART_BYTES, split_message
from headgate.protocol.mqtt_topics import head_topic, leader_topic, replies_topic, user_of
from headgate.protocol.replies import AnyReplyBody, Push, Rejected, Reply
from headgate.protocol.requests import Request
from metrics import events
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal

log = structlog.get_logger(__name__)


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
        topic, payload = self._reply_message(request, body)
        self._commit.when_durable(chunk, self._sending(request, topic, payload))

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
        if len(payload) <= PART_BYTES:
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
        elif refusal.after_proposed:
            self.reply(request, body)
        else:
            self._sending(request, *self._reply_message(request, body))()

    def push(self, client_id: str, message: Push) -> None:
        """Send ``message`` once every proposed entry is durable."""
        payload = codec.encode(replace(message, ledger_id=self._context.ledger_id))
        topic = replies_topic(self._context.cluster, client_id)
        if len(payload) > MAX_REPLY_BYTES:
            self._report_too_large(type(message).__name__, client_id, len(payload))
            return
        self._commit.when_durable(self._commit.newest, partial(self._publish, topic, payload))

    def announce_leader(self, announcement: LeaderAnnouncement) -> None:
        """Publish the leader of the shard, retained."""
        self._context.transport.publish(
            leader_topic(self._context.cluster, self._shard), codec.encode(announcement), retain=True
        )

    def announce(self, number: int, data: bytes) -> None:
        """Publish that chunk ``number`` is durable. The replies that waited for it are already written, or go along."""
        self.chunks.announce(number, data)
        head = HeadAnnouncement(shard=self._shard, head=number, **self._term)
        self._publish(head_topic(self._context.cluster, self._shard), codec.encode(head))

    def _reply_message(self, request: Request | Address, body: AnyReplyBody) -> tuple[str, bytes]:
        reply = Reply(request_id=request.request_id, body=body, **self._term)
        topic, payload = replies_topic(self._context.cluster, request.client_id), codec.encode(reply)
        if len(payload) <= MAX_REPLY_BYTES:
            return topic, payload
        self._report_too_large(type(body).__name__, request.client_id, len(payload))
        reason = f"the reply has {len(payload)} bytes; the limit is {MAX_REPLY_BYTES}: ask for less at a time"
        return self._reply_message(request, Rejected(verdict="invalid", reason=reason, instance=self._context.instance))

    def _sending(self, request: Request | Address, topic: str, payload: bytes) -> Callable[[], None]:
        """Return what publishes a reply when its user may have it."""
        return partial(self.delayed.send, user_of(request.client_id), partial(self._publish, topic, payload))

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
            limit_bytes=MAX_REPLY_BYTES,
        )

    def _publish(self, topic: str, payload: bytes) -> None:
        if len(payload) <= PART_BYTES:
            self._context.transport.publish(topic, payload)
            return
        self._messages_in_parts += 1
        for part in split_message(payload, shard=self._shard, number=self._messages_in_parts, **self._term):
            self._context.transport.publish(topic, codec.encode(part))
