"""Send replies, pushes and announcements, each once the chunk it depends on is durable.

Delivery is not guaranteed: clients repeat requests. A large message is sent in parts, because a
broker closes the connection of a client that exceeds its limit. One that exceeds the protocol's
limit is not sent: its client gets a refusal instead.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import LeaderContext
from controller.leader.delayed_replies import DelayedReplies
from controller.leader.request_decoding import Address
from headgate.protocol import messages as m
from metrics import events
from shard.state.shard_state import ShardState
from shard.subscriptions.refusal import Refusal

log = structlog.get_logger(__name__)


class Outbox:
    """The messages of one leader to its clients."""

    def __init__(
        self,
        state: ShardState,
        context: LeaderContext,
        commit: GroupCommit,
        *,
        max_reply_bytes: int = m.MAX_REPLY_BYTES,
    ) -> None:
        self._shard = state.shard
        self._leader_epoch = state.leader_epoch
        self._context = context
        self._commit = commit
        self._max_reply_bytes = max_reply_bytes
        self._messages_in_parts = 0
        self.delayed = DelayedReplies(state.shard, self._delay_seconds, context.observer)

    def reply(self, request: m.Request | Address, body: m.AnyReplyBody, chunk: int | None = None) -> None:
        """Send the reply with ``body`` once ``chunk`` is durable; None: once every proposed entry is."""
        chunk = self._commit.newest if chunk is None else chunk
        topic, payload = self._reply_message(request, body)
        self._commit.when_durable(chunk, self._sending(request, topic, payload))

    def answer(self, request: m.Request | Address, body: m.AnyReplyBody | Refusal, chunk: int | None = None) -> None:
        """Send the answer to a query as `reply` does, a large one in a turn after that which encodes it. Or refuse it.

        Other messages may overtake it, which changes nothing for a query.
        """
        if isinstance(body, Refusal):
            self.refuse(request, body)
            return
        chunk = self._commit.newest if chunk is None else chunk
        topic, payload = self._reply_message(request, body)
        send = partial(self._commit.when_durable, chunk, self._sending(request, topic, payload))
        if len(payload) <= m.PART_BYTES:
            send()
        else:
            asyncio.get_running_loop().call_soon(send)

    def refuse(self, request: m.Request | Address, refusal: Refusal) -> None:
        """Send the refusal when its flags allow it. A delayed one is delayed by the caller."""
        body = m.Rejected(
            verdict=refusal.verdict,
            reason=refusal.reason,
            instance=self._context.instance,
            term_age_ms=refusal.term_age_ms,
        )
        if refusal.after_barrier:
            self._commit.after_barrier(self._sending(request, *self._reply_message(request, body)))
        elif refusal.after_proposed:
            self.reply(request, body)
        else:
            self._sending(request, *self._reply_message(request, body))()

    def push(self, client_id: str, message: m.Push) -> None:
        """Send ``message`` once every proposed entry is durable."""
        topic, payload = m.replies_topic(self._context.cluster, client_id), m.encode(message)
        if len(payload) > self._max_reply_bytes:
            self._report_too_large(type(message).__name__, client_id, len(payload))
            return
        self._commit.when_durable(self._commit.newest, partial(self._publish, topic, payload))

    def announce_leader(self, announcement: m.LeaderAnnouncement) -> None:
        """Publish the leader of the shard, retained."""
        self._context.transport.publish(
            m.leader_topic(self._context.cluster, self._shard), m.encode(announcement), retain=True
        )

    def announce_head(self, number: int) -> None:
        # In the next turn of the loop: the replies that wait for this chunk go first.
        asyncio.get_running_loop().call_later(0, self._announce_head, number)

    def _announce_head(self, number: int) -> None:
        head = m.HeadAnnouncement(shard=self._shard, leader_epoch=self._leader_epoch, head=number)
        self._publish(m.head_topic(self._context.cluster, self._shard), m.encode(head))

    def _reply_message(self, request: m.Request | Address, body: m.AnyReplyBody) -> tuple[str, bytes]:
        reply = m.Reply(request_id=request.request_id, leader_epoch=self._leader_epoch, body=body)
        topic, payload = m.replies_topic(self._context.cluster, request.client_id), m.encode(reply)
        if len(payload) <= self._max_reply_bytes:
            return topic, payload
        self._report_too_large(type(body).__name__, request.client_id, len(payload))
        reason = f"the reply has {len(payload)} bytes; the limit is {self._max_reply_bytes}: ask for less at a time"
        return self._reply_message(
            request, m.Rejected(verdict="invalid", reason=reason, instance=self._context.instance)
        )

    def _sending(self, request: m.Request | Address, topic: str, payload: bytes) -> Callable[[], None]:
        """Return what publishes a reply when its user may have it."""
        return partial(self.delayed.send, m.user_of(request.client_id), partial(self._publish, topic, payload))

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
            limit_bytes=self._max_reply_bytes,
        )

    def _publish(self, topic: str, payload: bytes) -> None:
        if len(payload) <= m.PART_BYTES:
            self._context.transport.publish(topic, payload)
            return
        self._messages_in_parts += 1
        for part in m.split_message(
            payload, shard=self._shard, leader_epoch=self._leader_epoch, number=self._messages_in_parts
        ):
            self._context.transport.publish(topic, m.encode(part))
