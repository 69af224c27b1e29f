"""The leader announces itself, answers who leads, and replaces foreign announcements."""

import asyncio

import msgspec
import pytest

from headgate.protocol import codec
from headgate.protocol.announcements import LeaderAnnouncement
from headgate.protocol.mqtt_topics import leader_topic
from headgate.protocol.replies import LeaderReply
from headgate.protocol.requests import DescribeLeader
from shard.state.dedup_window import WINDOW
from tests.support.worlds.one_shard import CLUSTER, OneShard
from tests.support.worlds.producing_clients import serving

pytestmark = pytest.mark.looptime


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
