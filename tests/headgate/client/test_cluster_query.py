"""Which daemon is asked for the cluster, and what is said if none answers; in virtual time."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from headgate.client.admin import Admin
from headgate.client.cluster_query import NEXT_DAEMON_SECONDS
from headgate.client.connection import Client
from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.protocol import codec
from headgate.protocol.codec import (
    ClusterDescription,
    LeaderAnnouncement,
    cluster_topic,
    leader_topic,
    presence_filter,
    replies_topic,
    requests_filter,
    sender_of_request,
)
from headgate.protocol.replies import ClusterReply, LeaderReply, Rejected, Reply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DescribeCluster, DescribeLeader
from headgate.settings.config import ClientConfig
from headgate.views.cluster import SubscriptionSummary
from tests.support.fakes.broker import FakeBroker
from tests.support.samples.cluster_overviews import overview_message
from tests.support.waiting import until

pytestmark = pytest.mark.looptime

CLUSTER = "test"


class DescribingLeader:
    """The leader of one shard, which can describe the cluster, and do nothing else."""

    def __init__(self, broker, shard, instance):
        self.shard, self.instance = shard, instance
        self.silent = False
        """Whether it announces itself and then does not reply, like a frozen process."""
        self.refusal = None
        self.rows = 0
        self.asked = []
        self.transport = broker.transport(f"leader-{shard}")

    async def __aenter__(self):
        await self.transport.__aenter__()
        await self.transport.subscribe(requests_filter(CLUSTER, self.shard), self._on_request)
        await until(lambda: self.transport.connected)
        announced = LeaderAnnouncement(shard=self.shard, leader_epoch=1, instance=self.instance, window=64)
        self.transport.publish(leader_topic(CLUSTER, self.shard), codec.encode(announced), retain=True)
        return self

    async def __aexit__(self, *_):
        await self.transport.__aexit__(None, None, None)

    def _on_request(self, topic, payload):
        request = codec.decode_request(payload)
        if isinstance(request.body, DescribeLeader):
            body = LeaderReply(instance=self.instance, window=64)
        else:
            self.asked.append((asyncio.get_running_loop().time(), request.body))
            if self.silent:
                return
            body = self.refusal or self._page(request.body)
        reply = Reply(request_id=request.request_id, leader_epoch=1, body=body)
        self.transport.publish(replies_topic(CLUSTER, sender_of_request(topic)), codec.encode(reply))

    def _page(self, request):
        number = 0 if request.after is None else int(request.after)
        row = SubscriptionSummary(
            topic="orders",
            subscription=f"s{number}",
            type="QUEUE",
            daemon=self.instance,
            connected_consumers=0,
            disconnected_consumers=0,
            blocked_segments=0,
            draining_segments=0,
            outlook="empty",
        )
        return ClusterReply(
            overview=overview_message(self.instance) if request.after is None else None,
            subscriptions=[row] if self.rows else [],
            next=str(number + 1) if number + 1 < self.rows else None,
        )


def admin_of(broker, shards, timeout_seconds=4.0):
    description = ClusterDescription(protocol=PROTOCOL_VERSION, shards=shards, ledger_url="file:///x")
    broker.retained[cluster_topic(CLUSTER)] = codec.encode(description)
    client = Client(
        transport=broker.transport("admin"),
        store=None,
        cluster=CLUSTER,
        client_id="admin",
        now_ms=lambda: 0,
        rng=random.Random(1),
        config=ClientConfig(CLUSTER, "mq", 1883, "file:///x", file="client.toml"),
    )
    return Admin(client, timeout_seconds=timeout_seconds)


async def leaders_of(stack, broker, *instances):
    return [
        await stack.enter_async_context(DescribingLeader(broker, shard, instance))
        for shard, instance in enumerate(instances)
    ]


async def test_one_daemon_is_asked_and_pages_are_read_to_the_end():
    broker = FakeBroker()
    async with AsyncExitStack() as stack:
        first, second = await leaders_of(stack, broker, "one", "two")
        first.rows = 3
        admin = await stack.enter_async_context(admin_of(broker, 2))
        found = await admin.describe_cluster(blocked=True)

    assert (found.daemon, [each.subscription for each in found.subscriptions]) == ("one", ["s0", "s1", "s2"])
    assert [body for _, body in first.asked] == [
        DescribeCluster(blocked=True, after=after) for after in (None, "1", "2")
    ]
    assert not second.asked


async def test_another_daemon_is_asked_while_the_first_does_not_reply():
    broker = FakeBroker()
    async with AsyncExitStack() as stack:
        first, same_daemon, other = await leaders_of(stack, broker, "one", "one", "two")
        first.silent = same_daemon.silent = True
        admin = await stack.enter_async_context(admin_of(broker, 3))
        began = asyncio.get_running_loop().time()
        found = await admin.describe_cluster()
        took_seconds = asyncio.get_running_loop().time() - began

    assert found.daemon == "two"
    assert NEXT_DAEMON_SECONDS <= took_seconds < 2 * NEXT_DAEMON_SECONDS
    assert (len(first.asked), same_daemon.asked, len(other.asked)) == (1, [], 1)


@pytest.mark.parametrize(
    ("daemon_is_connected", "advice"),
    [
        (
            True,
            "the broker at mq:1883 (from client.toml) answers, so look at the logs of the daemons, and at ZooKeeper",
        ),
        (False, "no daemon is connected to the broker at mq:1883 (from client.toml): start one, or see the log of one"),
    ],
)
async def test_without_a_leader_the_error_names_shards_broker_and_daemons_in_time(daemon_is_connected, advice):
    broker = FakeBroker()
    async with AsyncExitStack() as stack:
        (first,) = await leaders_of(stack, broker, "one")
        if daemon_is_connected:
            await first.transport.subscribe(presence_filter(CLUSTER), lambda *_: None)
        first.silent = True
        admin = await stack.enter_async_context(admin_of(broker, 14))
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoLeaderError) as error:
            await admin.describe_cluster()
        assert asyncio.get_running_loop().time() - began <= 4.1

    assert str(error.value).startswith(
        "no leader describes cluster 'test' (waited 4 s): shard 0: its leader does not reply; "
        f"shards 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … and 3 more: it has no leader; {advice}"
    )


async def test_without_a_broker_the_error_says_that():
    broker = FakeBroker()
    async with admin_of(broker, 2) as admin:
        broker.stop()
        with pytest.raises(NoLeaderError, match=r"cannot reach the broker at mq:1883 \(from client.toml\)"):
            await admin.describe_cluster()


async def test_a_refusal_is_raised_and_ends_the_question():
    broker = FakeBroker()
    async with AsyncExitStack() as stack:
        (first,) = await leaders_of(stack, broker, "one")
        first.refusal = Rejected(verdict="forbidden", reason="user 'eve' may not describe all topics")
        admin = await stack.enter_async_context(admin_of(broker, 1))
        with pytest.raises(RequestRejectedError, match="may not describe all topics"):
            await admin.describe_cluster()
