"""Repeated requests to a leader that answers late, and which of its replies count."""

import asyncio
from itertools import count, pairwise

import pytest

from headgate.client.connection import Client
from headgate.client.request_attempts import ReplyDispatch, RequestAttempts
from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.protocol import codec
from headgate.protocol.codec import LeaderAnnouncement
from headgate.protocol.replies import Done, Reply, TopicReply
from headgate.protocol.requests import DescribeTopic, Request
from headgate.views.topics import TopicInfo
from tests.support.fakes.scripted_leader import ScriptedCluster, ScriptedLeader

DESCRIBE = DescribeTopic(topic="orders")
RETRY_SECONDS = 1.0
"""Longest pause between two attempts, besides the wait for a reply."""


def times_of_requests(cluster: ScriptedCluster) -> list[float]:
    """Return a list that gets the time of each question about the topic."""
    found: list[float] = []

    def on_message(message) -> None:
        if "/requests/" in message.topic and isinstance(codec.decode_request(message.payload).body, DescribeTopic):
            found.append(asyncio.get_running_loop().time())

    cluster.broker.spies.append(on_message)
    return found


def answer(leader: ScriptedLeader, request: Request) -> None:
    described = TopicInfo(topic="orders", topic_id=1, shard=0, layout_epoch=1, segments=[], subscriptions=[])
    leader.reply(request, TopicReply(topic=described))


async def unanswered(leader: ScriptedLeader, client: Client) -> asyncio.Task[Reply]:
    """Return a request that a known leader does not answer."""
    await client.request(0, DESCRIBE)
    leader.answers = False
    return asyncio.create_task(client.request(0, DESCRIBE))


@pytest.mark.parametrize(
    ("after_seconds", "attempts", "within_seconds"),
    [(3.5, 2, 0.1), (2.001, 1, RETRY_SECONDS)],
    ids=["during the second attempt", "between two attempts"],
)
async def test_a_late_reply_to_an_earlier_attempt_counts(after_seconds, attempts, within_seconds, cluster):
    async with cluster.leader() as leader, cluster.client() as client:
        asking = await unanswered(leader, client)
        await asyncio.sleep(after_seconds)
        assert 1 + attempts == len(leader.requests)
        answer(leader, leader.requests[1])
        await asyncio.sleep(within_seconds)
        assert asking.done()
        assert isinstance(asking.result().body, TopicReply)
        assert 1 + attempts == len(leader.requests), "it is not sent again"


async def test_a_late_refusal_of_an_earlier_attempt_does_not_count(cluster):
    async with cluster.leader() as leader, cluster.client() as client:
        asking = await unanswered(leader, client)
        await asyncio.sleep(3.5)
        leader.refuse(leader.requests[1], "invalid")
        await asyncio.sleep(0.1)
        assert not asking.done()
        leader.refuse(leader.requests[2], "invalid")
        with pytest.raises(RequestRejectedError):
            await asking


async def test_a_reply_of_an_earlier_term_does_not_count_in_the_next_one():
    replies = ReplyDispatch(lambda *_: None, lambda _: None)
    with RequestAttempts(replies, count(1)) as attempts:
        first = attempts.begin(leader_epoch=1)
        attempts.leader_changed(leader(1))
        assert not first.done()
        attempts.leader_changed(leader(2))
        assert await first is None
        replies.dispatch(Reply(request_id=1, leader_epoch=1, body=Done()))
        second = attempts.begin(leader_epoch=2)
        assert not second.done()
        replies.dispatch(Reply(request_id=1, leader_epoch=1, body=Done()))
        assert not second.done()
        replies.dispatch(Reply(request_id=2, leader_epoch=2, body=Done()))
        assert 2 == (await second).leader_epoch


async def test_from_the_second_wait_in_vain_on_each_doubles_the_next_one_up_to_a_limit(cluster):
    sent = times_of_requests(cluster)
    async with cluster.leader() as leader, cluster.client() as client:
        await client.request(0, DESCRIBE)
        sent.clear()
        leader.answers = False
        with pytest.raises(NoLeaderError):
            await client.request(0, DESCRIBE, timeout_seconds=70)
    waits = [later - earlier for earlier, later in pairwise(sent)]
    for wait, expected in zip(waits, (2, 2, 4, 8, 16, 16, 16), strict=True):
        assert expected <= wait <= expected + RETRY_SECONDS


def leader(epoch: int) -> LeaderAnnouncement:
    return LeaderAnnouncement(shard=0, leader_epoch=epoch, instance="a", window=1)
