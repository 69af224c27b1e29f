"""The largest reply passes a broker that limits its packets, and every connection stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.client.connection import Client
from headgate.protocol import messages as m
from headgate.transport.mqtt import MqttTransport
from tests.support.real_brokers import real_broker
from tests.support.waiting import until

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
async def test_the_largest_reply_arrives(tmp_path: Path, kind: str) -> None:
    names = ["s" * 100] * ((m.MAX_REPLY_BYTES - 1000) // 102)
    topic = m.TopicDescription(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=[], subscriptions=names)
    payload = m.encode(m.Reply(request_id=7, leader_epoch=1, body=m.TopicReply(topic=topic)))
    states: list[bool] = []
    replies: list[m.Reply] = []
    async with real_broker(tmp_path, kind) as broker:
        transport = MqttTransport(broker.host, broker.port, "till")
        async with (
            MqttTransport(broker.host, broker.port, "leader") as leader,
            Client(transport=transport, store=None, cluster="one", client_id="till") as client,
        ):
            await until(lambda: leader.connected and transport.connected)
            leader.on_connection(states.append)
            transport.on_connection(states.append)
            client.on_reply(7, replies.append)
            parts = m.split_message(payload, shard=0, leader_epoch=1, number=1)
            assert all(leader.publish(m.replies_topic("one", "till"), m.encode(part)) for part in parts)
            await until(lambda: replies)
            assert states == []

    assert len(parts) == m.MAX_PARTS
    assert [reply.body for reply in replies] == [m.TopicReply(topic=topic)]
