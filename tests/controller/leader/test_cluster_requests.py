"""Requests of operators to a leader: each reply, and which limits apply."""

import asyncio

import pytest

from controller.leader.cluster_requests import MAX_PENDING, OperatorCommands, cluster_reply
from headgate.protocol import codec
from headgate.protocol.codec import PAGE_BYTES
from headgate.protocol.replies import ClusterReply, Done, Rejected
from headgate.protocol.request_fields import PROTOCOL_VERSION, RequestBody
from headgate.protocol.requests import DescribeCluster, RaiseLevel, Request, SetMaintenance, TransferShard
from shard.requests.handlers import Deferred
from shard.subscriptions.refusal import Refusal
from tests.support.samples.status_documents import NOW_MS, part, subscription_summary, topic_summary
from tests.support.waiting import until
from tests.support.worlds.one_shard import OneShard
from web.api.overview import merged


class Daemon:
    """Operations whose outcome the test decides."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.outcome: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def transfer(self, shard: int, daemon: str, token: str) -> str | None:
        self.calls.append(("transfer", shard, daemon))
        return await asyncio.shield(self.outcome)

    async def raise_level(self, level: int) -> str | None:
        self.calls.append(("level", level))
        return await asyncio.shield(self.outcome)

    async def set_maintenance(self, daemon: str, *, on: bool, token: str) -> str | None:
        self.calls.append(("maintenance", daemon, on, token))
        return await asyncio.shield(self.outcome)


MOVE = TransferShard(daemon="b", token="t")
MAINTAIN = SetMaintenance(daemon="b", on=True, token="t")


def respond(commands: OperatorCommands, request: RequestBody, replies: list[object]) -> object:
    """Handle ``request``; a later reply is appended to ``replies``."""
    respond_to = dict(commands.handlers())[type(request)]
    outcome = respond_to(Request(request_id=1, protocol=PROTOCOL_VERSION, client_id="c", body=request), None)
    if isinstance(outcome, Deferred):
        answered = asyncio.ensure_future(outcome.work())
        answered.add_done_callback(lambda done: replies.append(done.result()))
    return outcome


@pytest.mark.parametrize("problem", ["daemon 'b' is frozen", None], ids=["refused", "done"])
@pytest.mark.parametrize(
    ("asked", "request_of", "call", "reply"),
    [
        pytest.param("b", MOVE, ("transfer", 3, "b"), Done(), id="a shard that the daemon leads is kept"),
        pytest.param("a", MOVE, ("transfer", 3, "b"), None, id="the client asks the new leader after a transfer"),
        pytest.param("a", MAINTAIN, ("maintenance", "b", True, "t"), Done(), id="maintenance"),
        pytest.param("a", RaiseLevel(level=2, token="t"), ("level", 2), Done(), id="feature level"),
    ],
)
async def test_a_command_is_answered_once_it_is_done_or_refused_with_the_reason(
    problem: str | None, asked: str, request_of: RequestBody, call: tuple[object, ...], reply: Done | None
) -> None:
    daemon, replies = Daemon(), []
    respond(OperatorCommands(3, asked, daemon), request_of, replies)
    await until(lambda: daemon.calls == [call])
    assert replies == []

    daemon.outcome.set_result(problem)
    await until(lambda: replies)

    assert replies == [reply if problem is None else Refusal("invalid", problem)]


async def test_a_client_receives_a_refusal_that_is_decided_later() -> None:
    async with OneShard().led() as (_, client):
        refused = await client.call(TransferShard, daemon="b", token="t")

    assert isinstance(refused, Rejected), refused
    assert (refused.verdict, refused.reason) == ("invalid", "no daemon 'b' is live, to lead shard 0")


class SlowCluster(OneShard):
    """Its overview waits until the test says so."""

    def __init__(self):
        super().__init__()
        self.ready = asyncio.Event()

    async def overview(self, instance, leader):
        await self.ready.wait()
        return await super().overview(instance, leader)


async def test_more_requests_than_may_wait_are_refused_as_unavailable():
    shard = SlowCluster()
    async with shard.leader(), shard.client() as client:
        waiting = [client.send(DescribeCluster) for _ in range(MAX_PENDING)]
        refused = await client.call(DescribeCluster)
        assert (refused.verdict, "64 requests wait" in refused.reason) == ("unavailable", True)
        counted = "headgate_requests_over_limit_total"
        assert shard.registry.get_sample_value(counted, {"limit": "cluster_overviews"}) == 1
        shard.ready.set()
        for each in waiting:
            assert isinstance(await client.reply(each), ClusterReply)


def overview(*rows):
    names = sorted({each.topic for each in rows})
    return merged("local", "one", NOW_MS, 2, [part("one", [topic_summary(name) for name in names], rows)])


def names(reply):
    return [(each.topic, each.subscription) for each in reply.subscriptions]


def test_pages_have_every_subscription_once_and_the_overview_once():
    rows = [
        subscription_summary(f"topic-{number:04}", f"{'n' * 90}{letter}") for number in range(400) for letter in "ab"
    ]
    rows.append(subscription_summary("unblocked", blocked_segments=0))
    found = overview(*rows)
    pages = [cluster_reply(DescribeCluster(), found)]
    while pages[-1].next is not None:
        pages.append(cluster_reply(DescribeCluster(after=pages[-1].next), found))

    assert len(pages) > 1
    assert all(len(codec.encode(page)) < PAGE_BYTES + 10_000 for page in pages)
    assert [name for page in pages for name in names(page)] == [(row.topic, row.subscription) for row in rows]
    assert [page.overview is not None for page in pages] == [True] + [False] * (len(pages) - 1)
    assert cluster_reply(DescribeCluster(blocked=True), overview(rows[-1])).subscriptions == []
