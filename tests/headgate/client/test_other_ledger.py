"""Two clusters of one name on one broker: a client is served by the one that it found, and by the other one once that is gone."""

import asyncio

import pytest

from controller.leader.leader import ShardLeader
from headgate.client.admin import Admin
from headgate.client.cluster_watch import SILENT_SECONDS
from headgate.client.producer import Producer
from headgate.errors import CommandUnknownError, OtherHistoryError
from headgate.ledger.identity import identity_object
from headgate.ledger.paths import IDENTITY_PATH
from headgate.protocol import messages as m
from tests.support.fakes.broker import Message
from tests.support.worlds.one_shard import CLUSTER, OneShard
from tests.support.worlds.one_shard_programs import client, create, described, reader

pytestmark = pytest.mark.looptime


async def two_worlds() -> tuple[OneShard, OneShard]:
    """Return a world with a topic, and a copy of its ledger on the same broker."""
    own, other = worlds = OneShard(), OneShard()
    other.broker, own.ledger_id, other.ledger_id = own.broker, b"a" * 16, b"b" * 16
    async with own.leader():
        await create(own)
    other.store.objects.update(own.store.objects)
    for world in worlds:
        world.store.objects[IDENTITY_PATH] = identity_object(world.ledger_id.hex())
    return worlds


def describe(world: OneShard) -> None:
    """As its daemons do."""
    world.broker.route(Message(m.cluster_topic(CLUSTER), described(world), retain=True, sender="daemon"))


def values(leader: ShardLeader) -> int:
    return sum(tail.next_offset for tail in leader.state.topics["orders"].tails.values())


async def test_two_clusters_serve_the_clients_that_found_them_and_leave_each_other_alone() -> None:
    own, other = await two_worlds()
    async with own.leader() as leader, other.leader("b") as stranger, Producer(client(own, "producer")) as producer:
        heads = leader.commit.durable, stranger.commit.durable
        await asyncio.sleep(60)
        assert (leader.commit.durable, stranger.commit.durable) == heads, "no announcement is corrected"
        async with reader(own) as consumer:
            for number in range(20):
                describe((other, own)[number % 2])
                await (await producer.send("orders", b"key", b"%d" % number))
                assert (await anext(consumer)).value == b"%d" % number
                await asyncio.sleep(SILENT_SECONDS / 2)
        async with Producer(client(other, "late")) as late:
            await (await late.send("orders", b"key", b"late"))
        assert (values(leader), values(stranger)) == (20, 1)

    assert other.registry.get_sample_value("headgate_messages_malformed_total", {"reason": "other_ledger"}) > 20


async def test_a_client_goes_to_the_other_ledger_only_once_its_own_is_gone() -> None:
    """A command that may have been executed is not repeated there, and a consumer ends."""
    own, other = await two_worlds()
    sending, asking = client(own, "producer"), client(own, "admin")
    async with Producer(sending) as producer, Admin(asking, timeout_seconds=60) as admin:
        async with own.leader():
            await (await producer.send("orders", b"key", b"0"))
            consumer = await reader(own).__aenter__()
            other.store.objects |= own.store.objects | {IDENTITY_PATH: other.store.objects[IDENTITY_PATH]}
            own.store.freeze()
            command = asyncio.create_task(admin.split("orders", 0))
            await asyncio.sleep(0.2)
        async with other.leader("b") as successor:
            describe(other)
            began = asyncio.get_running_loop().time()
            await (await producer.send("orders", b"key", b"1"))  # The copy knows this producer.
            assert SILENT_SECONDS <= asyncio.get_running_loop().time() - began < 2 * SILENT_SECONDS
            with pytest.raises(CommandUnknownError, match="the cluster has another ledger by now"):
                await command
            with pytest.raises(OtherHistoryError, match="it began with the ledger 6161"):
                await anext(consumer)
            await consumer.__aexit__(None, None, None)
            assert len(successor.state.topics["orders"].tails) == 2
            assert values(successor) == 2
