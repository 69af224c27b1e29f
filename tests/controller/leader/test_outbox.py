"""A large reply is sent in parts. One beyond the limit is replaced by a refusal, and the leader continues."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest
from structlog.testing import capture_logs

from controller.leader.leader import ShardLeader
from controller.leader.outbox import MAX_DELAYED_REPLIES, ChunkAnnouncer, DelayedReplies, Outbox
from controller.settings.sections import IngestSettings
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.protocol.codec import PART_BYTES, LeaderAnnouncement, leader_topic
from headgate.protocol.replies import LeaderReply, Reply, TopicReply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DescribeLeader, ListTopics, Request
from headgate.transport.port import Transport
from headgate.views.topics import TopicInfo
from metrics import events
from shard.state.producers import WINDOW
from shard.state.shard_state import ShardState
from shard.subscriptions.registration import MISSED_HEARTBEATS
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.worlds.one_shard import CLUSTER, OneShard
from tests.support.worlds.one_shard_programs import serving

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
    monkeypatch.setattr(codec, "MAX_REPLY_BYTES", 100_000)
    with capture_logs() as logs:
        replies, sizes, too_large = await received(200_000)

    (refusal,) = [reply.body for reply in replies]
    assert (refusal.verdict, refusal.instance) == ("invalid", "a")
    assert "the limit is 100000: ask for less at a time" in refusal.reason
    assert len(sizes) == 1
    assert too_large == 1
    (line,) = [entry for entry in logs if entry["event"] == "message.too_large"]
    assert (line["kind"], line["client_id"], line["limit_bytes"]) == ("TopicReply", "anonymous/client", 100_000)


async def test_a_leader_announces_nothing_after_its_term() -> None:
    """Its successor has announced itself, and the daemon's connection stays open."""
    shard = OneShard()
    async with serving(shard) as (old, task):
        task.cancel()
        await asyncio.wait([task])
        async with shard.leader("b"):
            old.announcer.announce()
            await asyncio.sleep(0.1)
            retained = shard.broker.retained[leader_topic(CLUSTER, 0)]

    assert 2 == msgspec.msgpack.decode(retained, type=LeaderAnnouncement).leader_epoch


async def test_a_client_that_asks_learns_who_leads() -> None:
    shard = OneShard()
    async with shard.leader(), shard.client() as client:
        began = asyncio.get_running_loop().time()
        shard.store.freeze()
        reply = await client.call(DescribeLeader, leader_epoch=None, heard_epoch=1)
        shard.store.thaw()

    assert LeaderReply(instance="a", window=WINDOW) == reply
    assert 0.1 > asyncio.get_running_loop().time() - began, "a term of its own epoch needs no chunk"


async def test_a_leader_denies_a_later_term_only_after_a_chunk() -> None:
    shard = OneShard()
    async with shard.leader() as leader, shard.client() as client:
        head = leader.commit.durable
        shard.store.freeze()
        asked = client.send(DescribeLeader, leader_epoch=None, heard_epoch=2)
        await asyncio.sleep(1)
        assert asked not in client.replies
        shard.store.thaw()
        assert isinstance(await client.reply(asked), LeaderReply)

    assert head < leader.commit.durable


async def test_a_deposed_leader_never_denies_the_term_of_its_successor() -> None:
    shard = OneShard()
    async with serving(shard) as (_, task), shard.client() as client:
        async with shard.leader("b"):
            replies = [client.send(DescribeLeader, leader_epoch=None, heard_epoch=2)]
            await asyncio.sleep(5)
            found = [(reply.leader_epoch, reply.body.instance) for reply in client.replies[replies[0]]]
        task.cancel()

    assert [(2, "b")] == found


FOREIGN = [
    codec.encode(LeaderAnnouncement(shard=0, leader_epoch=epoch, instance="x", window=1)) for epoch in (0, 1, 2**31 - 1)
]


@pytest.mark.parametrize("payload", [*FOREIGN, b"", b"not msgpack"], ids=repr)
async def test_a_leader_replaces_a_foreign_announcement_by_its_own(payload: bytes) -> None:
    shard = OneShard()
    topic = leader_topic(CLUSTER, 0)
    async with shard.leader() as leader, shard.client() as client:
        own = shard.broker.retained[topic]
        client.transport.publish(topic, payload, retain=True)
        await asyncio.sleep(0.1)
        assert own != shard.broker.retained.get(topic)
        leader.announcer.seen(payload)
        await asyncio.sleep(0.1)
        leader.announcer.seen(own)
        await asyncio.sleep(5)
        assert own == shard.broker.retained[topic]
        assert 1 == shard.registry.get_sample_value("headgate_foreign_announcements_total", {"shard": "0"})


async def test_a_leader_leaves_announcements_of_another_ledger_alone() -> None:
    shard = OneShard()
    shard.ledger_id = b"a" * 16
    async with shard.leader() as leader:
        head = leader.commit.durable
        foreign = LeaderAnnouncement(shard=0, leader_epoch=9, instance="x", window=1, ledger_id=b"b" * 16)
        leader.announcer.seen(codec.encode(foreign))
        await asyncio.sleep(5)
        assert head == leader.commit.durable, "a correction costs a chunk"


async def test_a_leader_replaces_foreign_announcements_once_a_second() -> None:
    shard = OneShard()
    published: list[str] = []
    async with shard.leader() as leader:
        shard.broker.spies.append(lambda message: published.append(message.topic))
        for _ in range(100):
            leader.announcer.seen(FOREIGN[2])
            await asyncio.sleep(0.1)

    assert 10 <= published.count(leader_topic(CLUSTER, 0)) <= 12


class Replies:
    """Delayed replies, with the delay of each user, and what was sent when."""

    def __init__(self) -> None:
        self.delays: dict[str, float] = {}
        self.observer = RecordingObserver()
        self.delayed = DelayedReplies(3, lambda user: self.delays.get(user, 0.0), self.observer)
        self.sent: list[tuple[str, float]] = []

    def send(self, name: str, user: str = "shop") -> None:
        self.delayed.send(user, lambda: self.sent.append((name, asyncio.get_running_loop().time())))

    @property
    def waiting(self) -> int:
        return self.observer.of(events.DelayedRepliesChanged)[-1].replies


async def test_replies_of_one_user_keep_their_order_and_times_and_those_to_others_leave_at_once() -> None:
    replies = Replies()
    for number in range(5):
        replies.delays["shop"] = 0.1 * (number // 2 + 1)
        replies.send(str(number))
    replies.delays["shop"] = 0.0
    replies.send("last")
    replies.send("other", "billing")
    assert 6 == replies.waiting
    await asyncio.sleep(1)

    names = [name for name, _ in replies.sent]
    assert ["other", "0", "1", "2", "3", "4", "last"] == names
    assert [at for _, at in replies.sent] == pytest.approx([0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert 0 == replies.waiting
    assert 6 == len(replies.observer.of(events.ReplyDelayed))


async def test_a_closed_term_sends_nothing_more() -> None:
    replies = Replies()
    replies.delays["shop"] = 0.5
    replies.send("a")
    replies.delayed.close()
    await asyncio.sleep(1)

    assert [] == replies.sent
    assert 0 == replies.waiting


async def test_the_replies_that_wait_are_limited_per_user() -> None:
    replies = Replies()
    replies.delays["shop"] = 1.0
    for number in range(MAX_DELAYED_REPLIES):
        assert not replies.delayed.full("shop")
        replies.send(str(number))

    assert replies.delayed.full("shop")
    assert not replies.delayed.full("billing")
    replies.delayed.close()


async def test_a_client_that_follows_on_does_not_keep_those_that_have_left() -> None:
    context = Mock(cluster=CLUSTER, new_producer_id=lambda: 1, ingest=IngestSettings(announce_bytes=15))
    context.subscriptions.heartbeat_interval_seconds = 1
    chunks = ChunkAnnouncer(ShardState(0), context)
    for client, seconds in (("a", 0), ("b", 2), ("a", MISSED_HEARTBEATS - 1)):
        chunks.follow(client)
        await asyncio.sleep(seconds)
    chunks.announce(7, bytes(10))
    context.transport.publish.assert_called_once()
