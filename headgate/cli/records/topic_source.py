"""A topic as `headgate read` sees it: its description, its ledger, and news of new chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from headgate.cli.terminal.suggestions import explain_rejection
from headgate.client.admin import Admin
from headgate.client.connection import DEFAULT_TIMEOUT_SECONDS, Client
from headgate.errors import HeadgateError, ProtocolError, RequestRejectedError
from headgate.ledger.ledger import Ledger
from headgate.model.hashing import shard_of
from headgate.protocol import messages as m
from headgate.reading.segment_reader import Head


@dataclass(frozen=True, slots=True)
class TopicSource:
    """What a reader of one topic needs."""

    description: m.TopicDescription
    ledger: Ledger
    newest_chunk: int
    """The newest chunk before the description was asked for. Records that it does not count are not older."""
    head: Head = field(default_factory=Head)


@asynccontextmanager
async def open_topic_source(
    client: Client, topic: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> AsyncIterator[TopicSource]:
    """Connect ``client``, which has the ledger's store, and describe ``topic``.

    Raises:
        HeadgateError: the topic does not exist, or its records are stored elsewhere.
        NoLeaderError: the cluster, or the leader of the topic's shard, cannot be reached.
        StoreUnavailableError: the store is unreachable.

    """
    m.require_name("topic", topic)
    head = Head()
    async with client:
        shard = shard_of(topic, await client.shards(timeout_seconds))
        ledger = Ledger(client.store, shard)
        newest_chunk = await ledger.newest()
        try:
            reply = (await client.request(shard, partial(m.DescribeTopic, topic=topic), timeout_seconds)).body
        except RequestRejectedError as error:
            async with Admin(client, timeout_seconds=timeout_seconds) as admin:
                raise await explain_rejection(admin, topic, error) from None
        if not isinstance(reply, m.TopicReply):
            raise ProtocolError(f"the leader of shard {shard} answered {type(reply).__name__} instead of TopicReply")
        if reply.topic.external is not None:
            raise HeadgateError(
                f"topic {topic!r} is external: its records are at {reply.topic.external.source}, not in the ledger"
            )
        remove = await client.watch_head(shard, lambda announced: head.advance(announced.head))
        try:
            yield TopicSource(reply.topic, ledger, max(1, newest_chunk), head)
        finally:
            remove()
