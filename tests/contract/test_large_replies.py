"""The largest reply passes a broker that limits its packets, and every connection stays open."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.protocol import codec
from headgate.protocol.codec import ClusterDescription
from headgate.protocol.replies import Reply, TopicReply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.transport.mqtt import MqttTransport
from headgate.views.topics import TopicInfo
from tests.support.servers.real_brokers import real_broker
from tests.support.waiting import until
from tests.support.worlds.one_shard import CLUSTER, OneShard

pytestmark = pytest.mark.contract

SUBSCRIPTIONS = 45


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
async def test_the_largest_reply_arrives(tmp_path: Path, kind: str) -> None:
    names = ("s" * 100,) * ((codec.MAX_REPLY_BYTES - 1000) // 102)
    topic = TopicInfo(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=(), subscriptions=names)
    payload = codec.encode(Reply(request_id=7, leader_epoch=1, body=TopicReply(topic=topic)))
    states: list[bool] = []
    replies: list[Reply] = []
    async with real_broker(tmp_path, kind) as broker:
        transport = MqttTransport(broker.host, broker.port, "till")
        async with (
            MqttTransport(broker.host, broker.port, "leader") as leader,
            Client(transport=transport, store=None, cluster="one", client_id="till") as client,
        ):
            await until(lambda: leader.connected and transport.connected)
            leader.on_connection(states.append)
            transport.on_connection(states.append)
            client.replies.expect(7, replies.append)
            parts = list(codec.split_message(payload, shard=0, leader_epoch=1, number=1))
            assert all(
                leader.publish(codec.replies_topic("one", "anonymous/till"), codec.encode(part)) for part in parts
            )
            await until(lambda: replies)
            assert states == []

    assert len(parts) == codec.MAX_PARTS
    assert len(replies) == 1
    same = replies[0].body == TopicReply(topic=topic)
    assert same, "pytest would compare 32 MB word by word"


async def test_a_list_of_many_large_subscriptions_leaves_the_leader_connected(tmp_path: Path) -> None:
    """Together they are larger than mosquitto's limit for a packet, and than headgate's for a message."""
    world = OneShard()
    states: list[bool] = []
    async with real_broker(tmp_path) as broker, MqttTransport(broker.host, broker.port, "daemon") as transport:
        await until(lambda: transport.connected)
        description = ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, ledger_url="file:///unused")
        transport.publish(codec.cluster_topic(CLUSTER), codec.encode(description), retain=True)
        leader = await world.begin("a", transport)
        transport.on_connection(leader.connection_changed)
        serving = asyncio.create_task(leader.serve())
        client = Client(
            transport=MqttTransport(broker.host, broker.port, "till"), store=None, cluster=CLUSTER, client_id="till"
        )
        try:
            async with client, Admin(client) as admin:
                await admin.create_topic("orders", segments=1024)
                for number in range(SUBSCRIPTIONS):
                    await admin.create_subscription("orders", f"s-{number}")
                transport.on_connection(states.append)
                listed = await admin.list_subscriptions()
                assert states == []
        finally:
            serving.cancel()
            await asyncio.wait({serving})

    assert [len(each.segments) for each in listed] == [1024] * SUBSCRIPTIONS
    size_bytes = sum(len(msgspec.msgpack.encode(each)) for each in listed)
    assert size_bytes > 5_242_880, "one reply would exceed max_packet_size"
