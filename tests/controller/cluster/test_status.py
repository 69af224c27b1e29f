"""One daemon answers for the cluster: from its own leaders, and from real HTTP servers of others."""

import asyncio
import ssl
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp import web

from controller.cluster.peers import Peers
from controller.cluster.status import ClusterStatus
from controller.leadership.session_secret import SessionSecret
from metrics.health import judge_health
from tests.controller.cluster.test_peers import peers_with
from tests.support.samples import status_documents
from tests.support.servers.http_server import HttpHarness
from web.access import HttpAccess, Tokens
from web.api.history import SAMPLE_SECONDS
from web.api.overview import NotAnsweredError, UnknownNameError

pytestmark = pytest.mark.real_time

SECRET = SessionSecret("0" * 64)


def following(shard=0):
    return SimpleNamespace(
        leader=None,
        shard=shard,
        leadership=SimpleNamespace(role=SimpleNamespace(value="following")),
        follower=SimpleNamespace(
            end=SimpleNamespace(leader_epoch=2, chunk=5), fault=None, keeps_state=True, lag_seconds=0.0
        ),
    )


def status_of(peers, leader="two", *, controllers=None, spreader=None):
    return ClusterStatus(
        instance="one",
        cluster="c",
        version="1",
        health=lambda: judge_health(status_documents.HEALTHY_FACTS),
        leader_of=lambda _: leader,
        now_ms=lambda: status_documents.NOW_MS,
        url=lambda: None,
        peers=peers,
        controllers=lambda: [following()] if controllers is None else controllers,
        spreader=lambda: spreader,
    )


def register(peers, **urls):
    """Have ZooKeeper list live daemons."""
    known = {name: msgspec.json.encode({"url": url}) for name, url in urls.items()}
    peers.registry = lambda: SimpleNamespace(instances=AsyncMock(return_value=known))


@pytest.fixture
async def two():
    """Another daemon, which leads the shard and admits only daemons."""
    source = status_documents.FakeSource(
        status_documents.part(
            "two", [status_documents.topic_summary(daemon="two")], [status_documents.subscription_summary(daemon="two")]
        )
    )
    access = HttpAccess(tokens=Tokens(()))
    harness = HttpHarness(source=source, access=access)
    harness.peer_token = SECRET.http_token("two", status_documents.NOW_MS)
    async with harness.server:
        yield harness


@pytest.fixture
async def peers(monkeypatch):
    monkeypatch.setattr("controller.cluster.peers.TIMEOUT_SECONDS", 5.0)
    token_for = partial(SECRET.http_token, now_ms=status_documents.NOW_MS)
    async with Peers("one", ssl.create_default_context, registry=lambda: None, token_for=token_for) as peers:
        yield peers


async def test_what_another_daemon_leads_is_part_of_the_overview(two, peers):
    status = status_of(peers)
    register(peers, one="http://127.0.0.1:1", two=f"http://{two.server.address}")
    overview = await status.overview()

    assert [(each.topic, each.daemon) for each in overview.topics] == [("orders", "two")]
    assert [each.daemon for each in overview.daemons] == ["one", "two"]
    assert overview.daemons[0].started_at_ms == status_documents.NOW_MS
    assert overview.cluster.complete


async def test_documents_come_from_the_leader(two, peers):
    status = status_of(peers)
    register(peers, two=f"http://{two.server.address}")

    assert await status.topic("orders", own=False) == status_documents.topic_document()
    assert await status.subscription("orders", "billing", own=False) == status_documents.subscription_document()
    with pytest.raises(UnknownNameError, match="there is no topic 'x'"):
        await status.topic("x", own=False)


async def test_a_daemon_that_does_not_answer_is_unreachable_and_others_are_shown(peers):
    status = status_of(peers)
    register(peers, two="http://127.0.0.1:1", three="")
    overview = await status.overview()

    assert {each.daemon: each.state for each in overview.daemons} == {
        "one": "ready",
        "two": "unreachable",
        "three": "unreachable",
    }
    problems = [each.reason for each in overview.cluster.degraded]
    assert any("daemon 'two' at http://127.0.0.1:1 did not answer" in each for each in problems)
    assert "daemon 'three' has registered no address in ZooKeeper" in problems
    with pytest.raises(NotAnsweredError, match="daemon 'two' at"):
        await status.topic("orders", own=False)


async def test_of_a_daemon_that_does_not_answer_zookeeper_shows_the_maintenance(two, peers):
    register(peers, two=f"http://{two.server.address}", three="http://127.0.0.1:1")
    spreader = SimpleNamespace(
        state="settled", state_of={"two": "settling", "three": "maintenance"}.get, feature_level=None
    )
    overview = await status_of(peers, spreader=spreader).overview()

    # The one that answers says itself what the spread may do with it.
    answered = two.source.parts[0].daemon.spread
    assert {each.daemon: each.spread for each in overview.daemons} == {
        "one": "settled",
        "two": answered,
        "three": "maintenance",
    }
    assert answered != "settling"


async def test_a_daemon_that_answers_too_late_or_too_much_or_nonsense_is_unreachable(monkeypatch):
    monkeypatch.setattr("controller.cluster.peers.MAX_ANSWER_BYTES", 1000)

    async def late(_):
        await asyncio.sleep(60)

    async def large(_):
        return web.Response(body=b" " * 2000)

    async def nonsense(_):
        return web.Response(body=b"{}")

    async def bytes_that_are_no_text(_):
        return web.Response(body=b'{"daemon": {"daemon": "\xff"}}')

    async def moved(_):
        raise web.HTTPFound("http://127.0.0.1:1/")

    handlers = {"late": late, "large": large, "nonsense": nonsense, "no text": bytes_that_are_no_text, "moved": moved}

    async def answer(request):
        return await handlers[request.path.split("/")[1]](request)

    async with peers_with(answer, "late", timeout_seconds=1) as peers:
        peers.known = {name: f"{peers.known['late']}/{name}" for name in handlers}
        problems = {each.daemon.daemon: each.daemon.problem for each in await peers.parts()}

    assert "did not answer" in problems["late"]
    assert "more than" in problems["large"]
    assert all("is of another version" in problems[each] for each in ("nonsense", "no text"))
    assert "answered with status 302" in problems["moved"]


@pytest.mark.parametrize(
    ("leader", "own", "message"),
    [
        pytest.param("two", True, "is not led by this daemon", id="another daemon asks"),
        pytest.param(None, False, "has no leader; try again soon", id="no leader"),
    ],
)
async def test_a_shard_without_a_leader_is_not_answered(peers, leader, own, message):
    with pytest.raises(NotAnsweredError, match=message):
        await status_of(peers, leader).topic("orders", own=own)


async def test_before_it_joined_a_daemon_says_so(peers):
    status = status_of(peers, controllers=())
    with pytest.raises(NotAnsweredError, match="has not joined its cluster yet"):
        await status.topic("orders", own=False)
    assert (await status.part()).daemon.shards == ()


@pytest.mark.virtual_time
async def test_the_history_is_sampled_without_requests(peers):
    status = status_of(peers)
    clock = asyncio.get_running_loop().time
    status.now_ms = lambda: status_documents.NOW_MS + int(clock() * 1000)
    sampling = asyncio.ensure_future(status.sample())
    await asyncio.sleep(3.5 * SAMPLE_SECONDS)
    sampling.cancel()

    history = (await status.part()).daemon.history
    assert [later.at_ms - earlier.at_ms for earlier, later in pairwise(history)] == [SAMPLE_SECONDS * 1000] * 3
