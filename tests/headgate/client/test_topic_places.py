"""A client finds a topic that more than one shard can have, and creates none before all others have denied it."""

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.client.cluster_watch import SILENT_SECONDS, ClusterWatch, TopicPlaces
from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.errors import NoLeaderError, RequestRejectedError
from headgate.protocol.codec import ClusterDescription
from headgate.protocol.replies import Reply, TopicPlace
from headgate.protocol.request_fields import PROTOCOL_VERSION
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.object_store import FakeStore

pytestmark = pytest.mark.looptime

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
