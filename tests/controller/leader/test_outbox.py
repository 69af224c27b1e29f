"""A large reply is sent in parts. One beyond the limit is replaced by a refusal, and the leader continues."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from controller.leader import outbox
from controller.leader.leader import ShardLeader
from controller.leader.outbox import Outbox
from headgate.client.connection import Client
from headgate.protocol.codec import PART_BYTES
from headgate.protocol.replies import Reply, TopicReply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import ListTopics, Request
from headgate.transport.port import Transport
from headgate.views.topics import TopicInfo
from tests.support.worlds.one_shard import CLUSTER, OneShard

pytestmark = pytest.mark.looptime

ADDRESS = Request(request_id=7, protocol=PROTOCOL_VERSION, client_id="anonymous/client", body=ListTopics())


def described(size_bytes: int) -> TopicReply:
    subscriptions = ("s" * 100,) * (size_bytes // 102)
    topic = TopicInfo(topic="orders", topic_id=1, shard=0, layout_epoch=1, segments=(), subscriptions=subscriptions)
    return TopicReply(topic=topic)


def outbox_of(leader: ShardLeader, transport: Transport) -> Outbox:
    context = replace(leader.context, transport=transport)
    return Outbox(leader.state, context, leader.commit)


async def received(size_bytes: int) -> tuple[list[Reply], list[int], float]:
    """Return the replies that reach a client, the sizes of the messages on the broker, and the metric."""
    shard = OneShard()
    async with shard.leader() as leader, shard.broker.transport("sender") as sender:
        client = Client(transport=shard.broker.transport("client"), store=None, cluster=CLUSTER, client_id="client")
        async with client:
            replies: list[Reply] = []
            sizes: list[int] = []
            client.replies.expect(7, replies.append)
            await asyncio.sleep(5)
            shard.broker.spies.append(
                lambda message: sizes.append(len(message.payload)) if message.topic.endswith("replies") else None
            )
            outbox_of(leader, sender).reply(ADDRESS, described(size_bytes))
            await asyncio.sleep(5)
    return replies, sizes, shard.registry.get_sample_value("headgate_messages_too_large_total") or 0.0


@pytest.mark.parametrize(("size_bytes", "turns"), [(1000, 0), (2 * PART_BYTES, 1)], ids=["small", "large"])
async def test_a_large_answer_is_sent_in_a_turn_after_that_which_encodes_it(size_bytes: int, turns: int) -> None:
    shard = OneShard()
    async with shard.leader() as leader, shard.broker.transport("sender") as sender:
        sent: list[bytes] = []
        sender.publish = lambda _, payload, **__: sent.append(payload) is None
        await leader.commit.flush()
        outbox_of(leader, sender).answer(ADDRESS, described(size_bytes))
        assert [bool(sent)] == [turns == 0]
        await asyncio.sleep(0)

        assert sent


async def test_a_large_reply_arrives_in_parts_that_every_broker_accepts():
    replies, sizes, too_large = await received(5_000_000)

    assert [reply.body for reply in replies] == [described(5_000_000)]
    assert len(sizes) == 10
    assert max(sizes) < 1_000_000
    assert too_large == 0


async def test_a_reply_beyond_the_limit_is_refused_logged_and_counted(monkeypatch):
    monkeypatch.setattr(outbox, "MAX_REPLY_BYTES", 100_000)
    with capture_logs() as logs:
        replies, sizes, too_large = await received(200_000)

    (refusal,) = [reply.body for reply in replies]
    assert (refusal.verdict, refusal.instance) == ("invalid", "a")
    assert "the limit is 100000: ask for less at a time" in refusal.reason
    assert len(sizes) == 1
    assert too_large == 1
    (line,) = [entry for entry in logs if entry["event"] == "message.too_large"]
    assert (line["kind"], line["client_id"], line["limit_bytes"]) == ("TopicReply", "anonymous/client", 100_000)
