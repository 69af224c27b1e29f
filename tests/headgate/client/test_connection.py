"""One connection to a cluster: presence, leaders, repeated requests, and the commands of `Admin`."""

import asyncio
import math
import os
from functools import partial

import msgspec
import pytest

from headgate.client.admin import Admin
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.client.request_attempts import ReplyDispatch, body_of
from headgate.errors import (
    CommandUnknownError,
    ConfigError,
    FencedError,
    HeadgateError,
    NoLeaderError,
    ProtocolError,
    RequestRejectedError,
    TransportError,
)
from headgate.protocol import codec
from headgate.protocol.codec import Presence, cluster_topic, leader_topic, presence_topic, split_message
from headgate.protocol.replies import ConsumerFenced, MessagePart, Push, Registered, Rejected, Reply, TopicReply
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import ImportTopic, SegmentImport
from tests.headgate.client.test_request_attempts import DESCRIBE, unanswered
from tests.support.fakes.broker import Message
from tests.support.fakes.scripted_leader import CLUSTER, ScriptedCluster, ScriptedLeader


def presences(cluster: ScriptedCluster) -> list[Presence]:
    """Return a list that gets what the client or its will announces."""
    found: list[Presence] = []

    def note(message: Message) -> None:
        if message.topic == presence_topic(CLUSTER, "anonymous/client"):
            found.append(codec.read_presence(message.topic, message.payload))

    cluster.broker.spies.append(note)
    return found


async def test_presence_follows_the_connection(cluster):
    announced = presences(cluster)
    async with cluster.client():
        await asyncio.sleep(2)
        assert announced[-1].online
        cluster.broker.cut("client")
        await asyncio.sleep(0.1)
        assert not announced[-1].online, "the last will"
        cluster.broker.heal("client")
        await asyncio.sleep(3)
        assert announced[-1].online
    assert not announced[-1].online
    assert len({each.incarnation for each in announced if each.online}) == 1, "it is the same program"


async def test_the_broker_keeps_nothing_of_clients_that_are_gone(cluster):
    async with cluster.client():
        await asyncio.sleep(2)
        cluster.broker.drop("client")
        await asyncio.sleep(3)
    assert presence_topic(CLUSTER, "anonymous/client") not in cluster.broker.retained


async def test_a_request_is_repeated_at_once_when_the_leader_changes(cluster):
    async with cluster.leader() as old, cluster.client() as client:
        asking = await unanswered(old, client)
        await asyncio.sleep(0.5)
        async with cluster.leader(2):
            began = asyncio.get_running_loop().time()
            await asking
            assert 0.2 > asyncio.get_running_loop().time() - began


async def test_a_refusal_by_a_later_leader_leads_to_it_without_an_announcement(cluster):
    async with cluster.leader(1) as old, cluster.client() as client:
        await client.request(0, DESCRIBE)
        old.answers = False
        new = ScriptedLeader(cluster, 0, 3)
        new.announce = lambda: None
        await new.start()
        began = asyncio.get_running_loop().time()
        assert isinstance((await client.request(0, DESCRIBE)).body, TopicReply)
        assert 0.2 > asyncio.get_running_loop().time() - began
        assert 3 == client.leader(0).leader_epoch
        await new.transport.__aexit__(None, None, None)


def forge(leader: ScriptedLeader, **changes: object) -> None:
    """Replace the retained announcement of ``leader``, as a program without any right to it."""
    forged = {"shard": 0, "leader_epoch": 2**31 - 1, "instance": "x", "window": 1, **changes}
    leader.transport.publish(leader_topic(CLUSTER, 0), msgspec.msgpack.encode(forged), retain=True)


@pytest.mark.parametrize(
    "changes", [{}, {"leader_epoch": 10**15}, {"leader_epoch": 6}, {"leader_epoch": 5}, {"shard": 1}], ids=str
)
async def test_a_forged_announcement_never_silences_a_client(cluster, changes):
    async with cluster.leader(5) as leader, cluster.client() as client:
        await client.request(0, DESCRIBE)
        forge(leader, **changes)
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await client.request(0, DESCRIBE)
        assert 0.1 > asyncio.get_running_loop().time() - began
        assert (5, 64) == (client.leader(0).leader_epoch, client.leader(0).window)
        assert client.leader(1) is None


async def test_waiting_for_a_leader_is_bounded(cluster):
    async with cluster.client() as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoLeaderError, match=r"'test': it has no leader \(waited 3 s; see headgate doctor\)"):
            await client.request(0, DESCRIBE, timeout_seconds=3)
        assert 3 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.01)


async def test_the_error_says_that_a_quota_holds_requests_back(cluster):
    async with cluster.leader() as leader, cluster.client() as client:
        await client.request(0, DESCRIBE)
        leader.refused = {"DescribeTopic": "unavailable"}
        asyncio.get_running_loop().call_later(0.5, setattr, leader, "answers", False)
        with pytest.raises(NoLeaderError, match="'test': scripted unavailable"):
            await client.request(0, DESCRIBE, timeout_seconds=3)
    async with cluster.leader() as leader, cluster.client("new") as client:
        leader._describe = lambda request, _: leader.refuse(request, "unavailable")
        with pytest.raises(NoLeaderError, match="'test': scripted unavailable"):
            await client.request(0, DESCRIBE, timeout_seconds=3)


async def test_the_error_names_an_unreachable_broker(cluster):
    async with cluster.leader(), cluster.client() as client:
        await client.request(0, DESCRIBE)
        cluster.broker.stop()
        with pytest.raises(NoLeaderError, match="cannot reach the broker: the broker is down"):
            await client.request(0, DESCRIBE, timeout_seconds=3)


async def test_a_refused_first_connection_ends_the_wait_at_once(cluster):
    """An operator has to correct the password."""
    cluster.broker.refusal = "the broker refuses user shop: Not authorized"
    async with cluster.client() as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TransportError, match="cannot reach the broker: the broker refuses user shop"):
            await client.cluster_watch.description(timeout_seconds=30)
        assert asyncio.get_running_loop().time() - began < 2

        cluster.broker.refusal = None
        async with cluster.leader():
            await asyncio.sleep(5)  # It has tried again.
            assert (await client.cluster_watch.description(timeout_seconds=30)).shards


async def test_a_refusal_after_the_first_connection_is_an_outage(cluster, caplog):
    """Its password is changed at the broker before it is changed here: it waits, and connects again."""
    async with cluster.leader(), cluster.client() as client:
        await client.request(0, DESCRIBE)
        cluster.broker.refusal = "the broker refuses user shop: Not authorized"
        cluster.broker.drop("client")
        asking = asyncio.create_task(client.request(0, DESCRIBE, timeout_seconds=30))
        await asyncio.sleep(5)
        assert not asking.done()
        assert (await client.cluster_watch.description(timeout_seconds=30)).shards
        errors = [each.msg.event for each in caplog.records if each.levelname == "ERROR"]
        assert errors == ["broker.refuses"], "a script logs nothing else, and may wait for days"
        cluster.broker.refusal = None
        await asking


async def test_a_cluster_with_another_protocol_version_is_an_error_at_once(cluster):
    async with cluster.client() as client:
        other = {"protocol": 99, "shards": 1, "ledger_url": "file:///x"}
        cluster.broker.retained[cluster_topic(CLUSTER)] = msgspec.msgpack.encode(other)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ProtocolError, match=rf"cluster 'test' runs protocol 99, this client {PROTOCOL_VERSION}"):
            await client.shard_map(timeout_seconds=30)
        assert 3 > asyncio.get_running_loop().time() - began, "waiting would not help"


@pytest.mark.parametrize(
    "kind", [lambda client: client, Admin, Producer, partial(Consumer, topic="orders", subscription="billing")]
)
async def test_a_forked_child_cannot_use_what_its_parent_created(kind, cluster, monkeypatch):
    """Two children would have one client id, and the same request ids: a reply to one would count for the other."""
    async with cluster.leader():
        created = kind(cluster.client())
        monkeypatch.setattr(os, "getpid", lambda: 0)
        with pytest.raises(HeadgateError, match="create it after the fork"):
            await created.__aenter__()


# Commands


async def test_an_admin_that_is_open_is_not_opened_again(cluster):
    async with cluster.leader(), cluster.client() as client, Admin(client) as admin:
        with pytest.raises(HeadgateError, match="this admin is open already"):
            await admin.__aenter__()
        assert [] == await admin.list_topics()


async def test_a_refused_command_raises_the_error_of_its_verdict(cluster):
    async with cluster.leader() as leader, Admin(cluster.client()) as admin:
        leader.refused["SplitSegment"] = "fenced"
        with pytest.raises(FencedError, match="scripted fenced"):
            await admin.split("orders", 1)


async def test_commands_without_a_result_return_none_and_lists_cover_all_shards(cluster):
    async with cluster.leader(), Admin(cluster.client()) as admin:
        assert await admin.delete_topic("orders") is None
        assert await admin.delete_subscription("orders", "billing") is None
        assert [] == await admin.list_topics()


async def test_a_command_that_no_leader_has_begun_is_reported_as_not_executed(cluster):
    """Its copies wait in the socket of a frozen leader, which must refuse them when it continues."""
    async with cluster.leader() as leader, Admin(cluster.client(), timeout_seconds=3) as admin:
        await admin.list_topics()
        leader.requests.clear()
        leader.answers = False
        with pytest.raises(NoLeaderError, match=r"see headgate doctor\); the command was not executed") as error:
            await admin.merge("orders", 0, 1)
    assert not isinstance(error.value, CommandUnknownError)
    assert leader.requests
    assert all(request.max_term_age_ms == 0 for request in leader.requests)


async def test_a_command_whose_reply_is_lost_has_an_unknown_outcome_and_is_not_begun_later(cluster):
    async with cluster.leader() as leader, Admin(cluster.client(), timeout_seconds=3) as admin:
        leader.mute = True
        with pytest.raises(CommandUnknownError, match=r"doctor\); unknown outcome: the command may have been exec"):
            await admin.split("orders", 1)
        assert 2 <= len(leader.requests)
        assert all(0 < request.max_term_age_ms <= leader.term_age_ms for request in leader.requests[1:])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e-320], ids=str)
async def test_a_time_out_that_cannot_work_is_refused_before_connecting(cluster, seconds):
    with pytest.raises(ConfigError, match=r"timeout_seconds=\S+: use 0\.001 to 31536000 seconds"):
        Admin(cluster.client(), timeout_seconds=seconds)


async def test_a_request_that_no_leader_accepts_is_refused_before_it_is_sent(cluster):
    segments = [SegmentImport(segment=f"{n}", parents=["p" * 128] * 64) for n in range(600)]
    async with cluster.leader() as leader, cluster.client() as client:
        with pytest.raises(RequestRejectedError, match="bytes; the limit of a message is 4194304: send less at a time"):
            await client.request(0, ImportTopic(topic="orders", token="t", segments=segments))
        assert leader.requests == []


# Each message of the leaders reaches who waits for it, and no one else.


@pytest.fixture
def undecodable() -> list[tuple[str, msgspec.DecodeError]]:
    return []


@pytest.fixture
def dispatch(undecodable) -> ReplyDispatch:
    return ReplyDispatch(lambda kind, error: undecodable.append((kind, error)), lambda _: None)


def reply(request_id: int) -> Reply:
    return Reply(request_id=request_id, leader_epoch=1, body=Rejected(verdict="invalid", reason="no"))


def test_a_reply_reaches_its_request_until_it_is_forgotten(dispatch):
    received: list[Reply] = []
    dispatch.expect(7, received.append)
    for request_id in (7, 8, 7):
        dispatch.dispatch(reply(request_id))
    dispatch.forget(7)
    dispatch.dispatch(reply(7))
    assert [reply(7)] * 2 == received


def test_a_push_reaches_its_consumer_until_it_is_forgotten(dispatch):
    push = ConsumerFenced(topic="t", subscription="s", consumer="c", incarnation=1, leader_epoch=1, reason="newer")
    received: list[Push] = []
    dispatch.expect_pushes(("t", "s", "c", 1), received.append)
    dispatch.expect_pushes(("t", "s", "c", 0), received.append)
    dispatch.forget_pushes(("t", "s", "c", 0))
    dispatch.dispatch(push)
    dispatch.dispatch(msgspec.structs.replace(push, consumer="d"))
    dispatch.forget_pushes(("t", "s", "c", 1))
    dispatch.dispatch(push)
    assert [push] == received


def parts(payload: bytes) -> list[MessagePart]:
    return list(split_message(payload, shard=0, leader_epoch=1, number=1))


def test_a_reply_in_parts_is_handed_over_once_it_is_complete(dispatch):
    received: list[Reply] = []
    dispatch.expect(7, received.append)
    large = msgspec.structs.replace(reply(7), body=Rejected(verdict="invalid", reason="x" * 1_000_000))
    for part in parts(codec.encode(large)):
        assert [] == received
        dispatch.dispatch(part)
    assert [large] == received


def test_parts_that_make_no_message_are_reported_and_ignored(dispatch, undecodable):
    for part in parts(b"\xc1"):
        dispatch.dispatch(part)
    assert ["parts"] == [kind for kind, _ in undecodable]


def test_a_reply_of_another_kind_is_an_error_that_names_both_kinds_and_the_sender():
    assert body_of(reply(7), Rejected, "the leader of shard 0") == reply(7).body
    with pytest.raises(ProtocolError, match="the leader of shard 0 answered Rejected instead of Registered"):
        body_of(reply(7), Registered, "the leader of shard 0")
