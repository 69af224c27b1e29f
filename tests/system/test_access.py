"""Users of a real broker, with the access control list that `headgate access export` makes, and a real daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from headgate import Admin, Consumer, Producer, RequestRejectedError, SubscriptionType
from headgate.client.connection import Client
from headgate.protocol import messages as m
from headgate.transport.mqtt import MqttTransport
from tests.support.cluster import SecuredTestCluster
from tests.support.programs import TEST_SECONDS, metric, wait_until
from tests.support.raw_clients import raw_transport
from tests.support.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.timeout(TEST_SECONDS)]

ACCESS = """
[[users.operator]]
role = "administrator"
[[users.shop]]
role = "producer"
topics = ["orders"]
[[users.rival]]
role = "producer"
topics = ["other"]
[[users.billing]]
role = "consumer"
topics = ["orders"]
subscriptions = ["billing"]
[[users.gateway]]
role = "device"
topics = ["orders"]
[[users.grafana]]
role = "observer"
"""


def transport_of(cluster: SecuredTestCluster, user: str, client_id: str) -> MqttTransport:
    """Return a bare connection of ``user``, for what no client library would send."""
    return raw_transport(cluster.config_of(user), client_id)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SecuredTestCluster]:
    async with SecuredTestCluster(tmp_path, shards=1, access=ACCESS) as cluster:
        await cluster.start_servers()
        await (await cluster.start_daemon("only")).until_leading()
        async with Admin(cluster.config_of("operator")) as admin:
            await admin.create_topic("orders", 1)
        yield cluster


async def test_every_role_does_its_work(cluster: SecuredTestCluster) -> None:
    async with Producer(cluster.config_of("shop")) as producer:
        await producer.send_and_wait("orders", b"key", b"1")
    async with transport_of(cluster, "gateway", "sensor") as sensor:
        await until(lambda: sensor.connected)
        sensor.publish(f"headgate/{cluster.name}/publish/orders/key", b"2")
        options = {"topic": "orders", "subscription": "billing", "type": SubscriptionType.STREAM, "start": "earliest"}
        async with Consumer(cluster.config_of("billing"), **options) as consumer, asyncio.timeout(60):
            values = [(await anext(consumer)).value, (await anext(consumer)).value]
    async with Admin(cluster.config_of("grafana")) as admin:
        topics = await admin.list_topics()
        with pytest.raises(RequestRejectedError, match="user grafana may not administer topic orders"):
            await admin.delete_topic("orders", force=True)

    assert [b"1", b"2"] == sorted(values)
    assert ["orders"] == [topic.topic for topic in topics]
    log = cluster.daemons["only"].process.log_path.read_text()
    assert not [user for user in cluster.users.users if cluster.password_of(user) in log]


async def test_the_broker_and_the_daemon_refuse_what_a_role_may_not_do(cluster: SecuredTestCluster) -> None:
    """The user `rival` sends each message past the client library, and subscribes to everything."""
    name, address = cluster.name, cluster.daemons["only"].http_address
    epoch = 1
    forged = m.Request(
        request_id=1,
        client_id="admin",
        leader_epoch=epoch,
        body=m.DeleteTopic(topic="orders", token="x", force=True),
    )
    overheard: list[str] = []
    async with transport_of(cluster, "rival", "rival-1") as rival:
        await until(lambda: rival.connected)
        for topic_filter in (f"headgate/{name}/clients/+/+/replies", f"headgate/{name}/shards/+/requests/+/+"):
            await rival.subscribe(topic_filter, lambda topic, _: overheard.append(topic))
        takeover = m.LeaderAnnouncement(shard=0, leader_epoch=999, instance="rival", pipelining=True, window=128)
        gone = m.Presence(client_id="consumer-1", online=False)
        attacks = {
            m.requests_topic(name, 0, "operator/admin"): m.encode(forged),
            m.leader_topic(name, 0): m.encode(takeover),
            m.presence_topic(name, "billing/consumer-1"): m.encode(gone),
            m.replies_topic(name, "shop/any"): b"",
            f"headgate/{name}/publish/orders/key": b"forged",
            f"headgate/{name}/shards/0/device-sentinels": b"x",
        }
        for topic, payload in attacks.items():
            rival.publish(topic, payload, retain=topic.endswith("leader"))
        # In its own name, but beyond its rights; and in another's name below its own topic.
        own = m.requests_topic(name, 0, "rival/rival-1")
        rival.publish(own, m.encode(msgspec.structs.replace(forged, client_id="rival-1")))
        rival.publish(own, m.encode(forged))

        async def refused() -> bool:
            denied = await metric(address, "headgate_access_denied_total")
            return (denied, await metric(address, "headgate_messages_malformed_total", reason="sender")) == (1, 1)

        await wait_until(refused, lambda: "both requests are refused and counted", 30)

    async with Client.from_config(cluster.config_of("operator"), "check") as client, Admin(client) as admin:
        described = await admin.describe_topic("orders")
        leader = client.leader(0)

    assert [0] == [segment.next_offset for segment in described.segments], "no forged record"
    assert leader is not None
    assert (epoch, "only") == (leader.leader_epoch, leader.instance)
    assert {m.replies_topic(name, "rival/rival-1")} == set(overheard), "nothing of other users"


async def test_an_unknown_user_or_a_wrong_password_is_refused(cluster: SecuredTestCluster) -> None:
    cluster.users.password_file("shop").write_text("guess\n")
    with pytest.raises(Exception, match="cannot reach the broker"):
        async with Admin(cluster.config_of("shop"), timeout_seconds=3) as admin:
            await admin.list_topics()
