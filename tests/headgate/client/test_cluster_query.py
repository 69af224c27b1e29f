"""Which daemon is asked for the cluster, and what is said if none answers; in virtual time."""

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.cli.context import CommandContext
from headgate.client.admin import Admin
from headgate.client.cluster_query import NEXT_DAEMON_SECONDS
from headgate.client.cluster_watch import SILENT_SECONDS, ClusterWatch, TopicPlaces
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.errors import LedgerError, NoLeaderError, RequestRejectedError, StoreUnavailableError
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH
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
from headgate.protocol.replies import ClusterReply, LeaderReply, Rejected, Reply, TopicPlace
from headgate.protocol.request_fields import PROTOCOL_VERSION
from headgate.protocol.requests import DescribeCluster, DescribeLeader
from headgate.settings.config import ClientConfig
from headgate.views.cluster import SubscriptionSummary
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.cluster_overviews import overview_message
from tests.support.waiting import until

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


async def test_a_list_that_one_shard_refuses_asks_the_others_no_more():
    broker = FakeBroker()
    async with AsyncExitStack() as stack:
        first, second = await leaders_of(stack, broker, "one", "two")
        first.refusal, second.silent = Rejected(verdict="forbidden", reason="may not"), True
        admin = await stack.enter_async_context(admin_of(broker, 2))
        before = asyncio.all_tasks()
        with pytest.raises(RequestRejectedError, match="may not"):
            await admin.list_topics()
        assert asyncio.all_tasks() <= before


@pytest.mark.parametrize(
    ("daemon_is_connected", "advice"),
    [
        (True, "the broker at mq:1883 (from client.toml) answers, so look at the logs of the daemons, and at"),
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
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(admin.describe_cluster(), 1)
        assert asyncio.all_tasks() <= before, "a question that is cancelled leaves no task behind"
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


# A client finds a topic that more than one shard can have, and creates none before all others have denied it.


NAME = "orders"
"""Its places by 4 and 16 shards are 1 and 9."""


def described(ledger_id: str, **shards: Any) -> ClusterDescription:
    return ClusterDescription(protocol=PROTOCOL_VERSION, ledger_url="", ledger_id=ledger_id, **shards)


class Leaders:
    """What the leaders of shards answer; one without an answer does not reply."""

    def __init__(self, **answers: TopicPlace) -> None:
        self.answers: dict[int, TopicPlace] = {int(shard[1:]): answer for shard, answer in answers.items()}
        self.asked: list[int] = []
        self.watch = watch = ClusterWatch(FakeBroker(random.Random(1)).transport("client"), "test", None)
        watch.connection_changed(connected=True)
        watch.described(described("aa", shards=16, earlier_shards=[4]))
        self.places = TopicPlaces(watch, self.request, random.Random(1).random)

    async def request(self, shard: int, _: object, timeout_seconds: float) -> Reply:
        self.asked.append(shard)
        if shard not in self.answers:
            await asyncio.sleep(timeout_seconds)
            raise NoLeaderError("its leader does not reply")
        return Reply(request_id=1, leader_epoch=1, body=self.answers[shard])


HAS, KNOWS, KNOWS_LESS = TopicPlace(topic_id=7, shards=[4, 16]), TopicPlace(shards=[4, 16]), TopicPlace()


@pytest.mark.parametrize(
    ("answers", "found"),
    [({"s1": HAS, "s9": KNOWS}, 1), ({"s9": HAS}, 9), ({"s1": HAS}, 1), ({"s1": KNOWS_LESS, "s9": KNOWS}, 9)],
    ids=["the old place", "the old place has no leader", "the new place has no leader", "neither has it"],
)
async def test_the_place_that_has_a_topic_is_found_whatever_the_others_do(
    answers: Mapping[str, TopicPlace], found: int
) -> None:
    leaders = Leaders(**answers)

    assert await leaders.places.shard_of(NAME, 5) == found
    assert asyncio.get_running_loop().time() < 1


async def test_a_place_is_remembered_until_its_leader_refuses() -> None:
    leaders = Leaders(s1=HAS, s9=KNOWS)

    async def ask(shard: int) -> int:
        if leaders.answers[shard] is not HAS:
            raise RequestRejectedError("invalid", "there is no such topic")
        return shard

    assert [await leaders.places.at(NAME, ask, 5) for _ in range(3)] == [1, 1, 1]
    assert sorted(leaders.asked) == [1, 9]
    leaders.answers = {1: KNOWS, 9: HAS}
    assert await leaders.places.at(NAME, ask, 5) == 9
    leaders.answers = {1: KNOWS, 9: KNOWS}
    with pytest.raises(RequestRejectedError):
        await leaders.places.at(NAME, ask, 5)


async def test_a_consumer_registers_where_its_topic_is_by_now() -> None:
    leaders, transport = Leaders(s1=HAS, s9=KNOWS), FakeBroker(random.Random(1)).transport("consumer")
    client = Client(transport=transport, store=FakeStore(), cluster="test", client_id="consumer", now_ms=lambda: 0)
    client.places, consumer = leaders.places, Consumer(client, topic=NAME, subscription="billing")
    assert await leaders.places.shard_of(NAME, 5) == 1
    leaders.answers = {1: KNOWS, 9: HAS}
    opened = []

    async def open_at(shard: int, _: float) -> None:
        opened.append(shard)
        if leaders.answers[shard] is not HAS:
            raise RequestRejectedError("invalid", "there is no such topic")

    consumer._membership = SimpleNamespace(open=open_at, close=lambda: None)
    await consumer._join(5.0)

    assert opened == [1, 9]


async def test_a_creation_waits_until_all_places_deny_the_topic_by_its_list() -> None:
    leaders = Leaders(s1=KNOWS_LESS, s9=KNOWS)
    asyncio.get_running_loop().call_later(2, leaders.answers.update, {1: KNOWS})

    assert await leaders.places.find(NAME, 5) == (9, [4, 16])
    assert asyncio.get_running_loop().time() >= 2
    leaders.answers = {1: KNOWS, 9: TopicPlace(shards=[4, 16, 17])}
    with pytest.raises(NoLeaderError):  # The place by the longer list is asked, and does not reply.
        await leaders.places.find(NAME, 5)
    assert 14 in leaders.asked


async def test_a_cluster_that_was_set_up_again_under_its_name_may_have_fewer_shards() -> None:
    leaders = Leaders(s9=HAS)
    assert await leaders.places.shard_of(NAME, 5) == 9
    leaders.watch.described(described("", shards=2))
    assert leaders.watch.shards.counts == (4, 16)  # A daemon that does not know its ledger yet.

    leaders.watch.described(described("bb", shards=2))
    await asyncio.sleep(SILENT_SECONDS)
    leaders.watch.doubt()

    assert leaders.watch.shards.counts == (2,)
    assert await leaders.places.shard_of(NAME, 5) < 2


# A client compares the ledger that it reads with that of the daemons.


PLANT, THEIRS, OTHER = "plant", "a" * 32, "b" * 32


def client_of(store: FakeStore | None) -> Client:
    broker = FakeBroker()
    described = ClusterDescription(protocol=PROTOCOL_VERSION, shards=1, ledger_url="s3://lake/plant", ledger_id=THEIRS)
    broker.retained[cluster_topic(PLANT)] = codec.encode(described)
    return Client(
        transport=broker.transport("c"),
        store=store,
        cluster=PLANT,
        client_id="c",
        rng=random.Random(1),
        config=ClientConfig(PLANT, "mq", 1883, "file:///mine"),
    )


def ledger(ledger_id: str) -> FakeStore:
    return FakeStore(objects={IDENTITY_PATH: identity_object(ledger_id)})


@pytest.mark.parametrize("store", [ledger(THEIRS), None], ids=["its store", "no store"])
async def test_the_id_is_that_of_the_daemons(store: FakeStore | None) -> None:
    async with client_of(store) as mine:
        assert THEIRS == await mine.ledger_id()


@pytest.mark.parametrize(
    ("store", "problem"),
    [
        (FakeStore(), r"file:///mine has no object ledger\.json, so it is no ledger"),
        (ledger(OTHER), f"file:///mine is another ledger, with id {OTHER}"),
    ],
    ids=["an empty folder", "another ledger"],
)
async def test_a_consumer_with_a_wrong_ledger_url_learns_both(store: FakeStore, problem: str) -> None:
    reads = Consumer(client_of(store), topic="orders", subscription="billing")
    with pytest.raises(LedgerError, match=f"{problem}: the daemons of cluster 'plant' use s3://lake/plant with id a"):
        await reads.__aenter__()


async def test_an_unreachable_store_is_an_error_when_the_time_to_connect_is_over() -> None:
    store = ledger(THEIRS)
    store.outage()
    reads = Consumer(client_of(store), topic="orders", subscription="billing", connect_timeout_seconds=5)
    with pytest.raises(StoreUnavailableError, match=r"ledger\.json of file:///mine cannot be read.*s3://lake/plant"):
        await reads.__aenter__()


async def test_an_administrator_looks_for_no_time_in_another_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no record is that late, every record would be passed over."""
    monkeypatch.setattr(Client, "from_config", lambda *_, **__: client_of(None))
    monkeypatch.setattr("headgate.client.admin.open_store", lambda _: ledger(OTHER))
    async with Admin(ClientConfig(PLANT, "mq", 1883, "file:///mine")) as admin:
        with pytest.raises(LedgerError, match="file:///mine is another ledger"):
            await admin.seek("orders", "billing", timestamp_ms=1_700_000_000_000)


async def test_a_command_looks_for_no_events_in_another_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client_of.toml"
    file.write_text(f'cluster = "{PLANT}"\nbroker_host = "mq"\nbroker_port = 1\nledger_url = "file:///mine"\n')
    monkeypatch.setattr(Client, "from_config", lambda *_, **__: client_of(FakeStore()))

    with pytest.raises(LedgerError, match="so it is no ledger"):
        await CommandContext(file).open_store()
