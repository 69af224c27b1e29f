"""What a leader sends: replies, pushes and announcements, none before the chunk it rests on is durable.

Nothing is decided here, and nothing sent is certain to arrive: what is lost to a broker out of reach is asked again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from controller.commit import GroupCommit
from coordinator.decisions.refusal import Refusal
from headgate.protocol import messages as m
from headgate.transport.port import Transport


class Outbox:
    """What one reign says to its clients."""

    def __init__(
        self, *, cluster: str, shard: int, leader_epoch: int, instance: str, transport: Transport, commit: GroupCommit
    ) -> None:
        """``instance`` is named in refusals, so that a client knows who said it."""
        self._cluster = cluster
        self._shard = shard
        self._leader_epoch = leader_epoch
        self._instance = instance
        self._transport = transport
        self._commit = commit

    def reply(self, client_id: str, request_id: int, body: m.AnyReplyBody, chunk: int) -> None:
        """Send the reply with ``body`` once ``chunk`` is durable."""
        topic, payload = m.replies_topic(self._cluster, client_id), self._encode(request_id, body)
        self._commit.when_durable(chunk, partial(self._publish, topic, payload))

    def push(self, client_id: str, message: m.Push) -> None:
        """Send ``message`` once everything folded so far is durable."""
        topic, payload = m.replies_topic(self._cluster, client_id), m.encode(message)
        self._commit.when_durable(self._commit.newest, partial(self._publish, topic, payload))

    def refuse(self, client_id: str, request_id: int, refusal: Refusal) -> None:
        """Send the refusal when its flags allow it; a delayed one is the caller's to delay."""
        body = m.Rejected(verdict=refusal.verdict, reason=refusal.reason, instance=self._instance)
        if refusal.after_barrier:
            self._commit.barrier()
        if refusal.after_barrier or refusal.after_proposed:
            self.reply(client_id, request_id, body, self._commit.newest)
        else:
            self._publish(m.replies_topic(self._cluster, client_id), self._encode(request_id, body))

    def announce_leader(self, announcement: m.LeaderAnnouncement) -> None:
        """Say who leads, for whoever asks later too."""
        self._transport.publish(m.leader_topic(self._cluster, self._shard), m.encode(announcement), retain=True)

    def announce_head(self, number: int) -> None:
        """Say that chunk ``number`` is durable."""
        # A turn later: the replies to this chunk go out first, and their clients are the ones who wait.
        asyncio.get_running_loop().call_later(0, self._announce_head, number)

    def _announce_head(self, number: int) -> None:
        head = m.HeadAnnouncement(shard=self._shard, leader_epoch=self._leader_epoch, head=number)
        self._publish(m.head_topic(self._cluster, self._shard), m.encode(head))

    def _encode(self, request_id: int, body: m.AnyReplyBody) -> bytes:
        return m.encode(m.Reply(request_id=request_id, leader_epoch=self._leader_epoch, body=body))

    def _publish(self, topic: str, payload: bytes) -> None:
        self._transport.publish(topic, payload)
