"""One connection to a cluster: presence, leaders, requests that are asked again. And the admin commands on top."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate.client.admin import Admin
from headgate.errors import FencedError, HeadgateError, NoLeaderError, ProtocolError
from headgate.protocol import messages as m
from tests.support.scripted_leader import CLUSTER, Stage

pytestmark = pytest.mark.looptime


def here(stage: Stage, client_id: str = "client") -> bool:
    return m.decode_presence(stage.broker.retained[m.presence_topic(CLUSTER, client_id)]).here


def describe(client):
    def make(request_id: int, leader_epoch: int | None) -> m.Request:
        return m.DescribeTopic(
            request_id=request_id, client_id=client.client_id, leader_epoch=leader_epoch, topic="orders"
        )

    return make


async def test_presence_follows_the_connection():
    stage = Stage()
    async with stage.client():
        await asyncio.sleep(2)
        assert here(stage)
        stage.broker.cut("client")
        await asyncio.sleep(0.1)
        assert not here(stage), "the last will"
        stage.broker.heal("client")
        await asyncio.sleep(3)
        assert here(stage)
    assert not here(stage)


async def test_a_request_is_pinned_to_the_leader_of_the_day():
    stage = Stage()
    async with stage.leader(7) as leader, stage.client() as client:
        await client.request(0, describe(client))
        assert [7] == [request.leader_epoch for request in leader.requests]


async def test_a_lost_reply_is_asked_for_again():
    stage = Stage()
    async with stage.leader() as leader, stage.client() as client:
        leader.answers = False
        asking = asyncio.create_task(client.request(0, describe(client)))
        await asyncio.sleep(4)
        leader.answers = True
        assert isinstance(await asking, m.TopicAnswer)
        assert 2 <= len({request.request_id for request in leader.requests})


async def test_a_new_leader_is_asked_at_once():
    stage = Stage()
    async with stage.leader() as old, stage.client() as client:
        await client.request(0, describe(client))
        old.answers = False
        asking = asyncio.create_task(client.request(0, describe(client)))
        await asyncio.sleep(0.5)
        async with stage.leader(2):
            began = asyncio.get_running_loop().time()
            await asking
            assert 0.2 > asyncio.get_running_loop().time() - began


async def test_a_stale_announcement_changes_nothing():
    stage = Stage()
    async with stage.leader(5) as leader, stage.client() as client:
        await client.request(0, describe(client))
        stale = m.LeaderAnnouncement(shard=0, leader_epoch=4, instance="old", pipelining=True, window=1)
        leader.transport.publish(m.leader_topic(CLUSTER, 0), m.encode(stale), retain=True)
        await asyncio.sleep(0.1)
        assert 5 == client.leader(0).leader_epoch


async def test_a_refusal_by_a_deposed_leader_is_not_an_answer():
    stage = Stage()
    async with stage.leader(2) as leader, stage.client() as client:
        leader.answers = False
        asking = asyncio.create_task(client.request(0, describe(client)))
        await asyncio.sleep(1.5)
        stale = m.Refused(
            request_id=leader.requests[0].request_id, leader_epoch=1, verdict="invalid", reason="no such topic"
        )
        leader.transport.publish(m.replies_topic(CLUSTER, "client"), m.encode(stale))
        leader.answers = True
        assert isinstance(await asking, m.TopicAnswer)


async def test_after_word_of_a_newer_epoch_the_old_leader_is_not_asked():
    stage = Stage()
    async with stage.leader(1) as old, stage.client() as client:
        old.answers = False
        asking = asyncio.create_task(client.request(0, describe(client)))
        await asyncio.sleep(1.5)
        newer = m.Refused(request_id=old.requests[0].request_id, leader_epoch=3, verdict="not_leader", reason="")
        old.transport.publish(m.replies_topic(CLUSTER, "client"), m.encode(newer))
        await asyncio.sleep(3)
        assert 1 == len(old.requests)
        async with stage.leader(3):
            assert isinstance(await asking, m.TopicAnswer)


async def test_waiting_for_a_leader_is_bounded_and_counted():
    stage = Stage()
    async with stage.client() as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoLeaderError, match=r"shard 0 of cluster 'test': nobody leads it \(waited 3 s\)"):
            await client.request(0, describe(client), timeout_seconds=3)
        assert 3 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.01)
        assert 1 == client.leader_waits


async def test_a_broker_out_of_reach_is_named():
    stage = Stage()
    async with stage.leader(), stage.client() as client:
        await client.request(0, describe(client))
        stage.broker.stop()
        with pytest.raises(NoLeaderError, match="the broker is out of reach"):
            await client.request(0, describe(client), timeout_seconds=3)


async def test_garbage_on_our_topics_is_counted_and_survived():
    stage = Stage()
    async with stage.leader() as leader, stage.client() as client:
        await client.request(0, describe(client))
        for topic in (m.replies_topic(CLUSTER, "client"), m.leader_topic(CLUSTER, 0), m.cluster_topic(CLUSTER)):
            leader.transport.publish(topic, b"\xc1 not ours")
        await asyncio.sleep(0.1)
        assert 3 == client.undecodable_messages
        assert isinstance(await client.request(0, describe(client)), m.TopicAnswer)


async def test_a_cluster_of_another_protocol_is_not_used():
    stage = Stage()
    async with stage.client() as client:
        other = {"protocol": 99, "shards": 1, "ledger_url": "file:///x"}
        stage.broker.retained[m.cluster_topic(CLUSTER)] = msgspec.msgpack.encode(other)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolError, match=r"cluster 'test' speaks protocol 99, this client 1"):
            await client.shards(timeout_seconds=30)
        assert 3 > asyncio.get_running_loop().time() - began, "waiting would not help"


# --- commands ---------------------------------------------------------------------------------------------------------


async def test_a_command_keeps_its_token_through_its_tries():
    stage = Stage()
    async with stage.leader() as leader, Admin(stage.client()) as admin:
        leader.answers = False
        creating = asyncio.create_task(admin.create_topic("orders", segments=4))
        await asyncio.sleep(5)
        leader.answers = True
        assert "orders" == (await creating).topic
        tries = leader.seen(m.CreateTopic)
        assert 2 <= len(tries)
        assert 1 == len({request.token for request in tries})
        await admin.create_topic("orders", segments=4)
        assert tries[0].token != leader.seen(m.CreateTopic)[-1].token


async def test_refusals_say_which():
    stage = Stage()
    async with stage.leader() as leader, Admin(stage.client()) as admin:
        leader.fence.add("SplitSegment")
        with pytest.raises(FencedError, match="scripted fenced"):
            await admin.split("orders", 1)


async def test_commands_without_a_result_return_nothing_and_lists_are_gathered():
    stage = Stage()
    async with stage.leader(), Admin(stage.client()) as admin:
        assert await admin.delete_topic("orders") is None
        assert await admin.delete_subscription("orders", "billing") is None
        assert [] == await admin.list_topics()


async def test_a_command_that_nobody_answers_is_bounded():
    stage = Stage()
    async with stage.leader() as leader, Admin(stage.client(), timeout_seconds=3) as admin:
        leader.answers = False
        with pytest.raises(NoLeaderError, match="does not answer"):
            await admin.merge("orders", 0, 1)


async def test_an_admin_that_is_not_open_says_so():
    with pytest.raises(HeadgateError, match="not open"):
        await Admin(Stage().client()).list_topics()
