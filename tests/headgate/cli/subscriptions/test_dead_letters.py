"""`headgate subscription dead-letters`: which are open, and that each is sent back once, with the real leader of a shard.

Over a fake broker and store, in virtual time.
"""

import itertools
from unittest.mock import AsyncMock, Mock

import pytest

from headgate.client.admin import Admin
from headgate.client.open_letters import OpenLetters, act, find_open
from headgate.client.producer import Producer
from headgate.errors import DeliveryUnknownError, HeadgateError, RequestRejectedError
from headgate.model.headers import Origin
from tests.headgate.cli.conftest import Invoke
from tests.headgate.client.test_redelivery import QUEUE, jobs
from tests.support.fakes.cli_client import FakeCluster, subscription, topic
from tests.support.worlds import one_shard
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, produce, reader, restored_copy


def operator(world: OneShard) -> Admin:
    return Admin(client(world, "operator"))


async def listed(world: OneShard) -> tuple[OpenLetters, list[Origin]]:
    async with operator(world) as admin:
        found = await find_open(admin, "orders", "jobs")
        return found, [origin async for _, origin in found.letters()]


async def acted(world: OneShard, through: str, *, replay: bool = True) -> int | None:
    async with operator(world) as admin:
        return await act(admin, "orders", "jobs", through, replay=replay)


async def die(world: OneShard, records: int) -> None:
    """Make dead letters of new records of the queue."""
    await produce(world, records)
    async with reader(world, **QUEUE) as consumer:
        while True:
            found = await consumer.get_many(timeout_seconds=30)
            for record in found:
                await consumer.negative_acknowledge(record, reason=f"no order {record.value.decode()}")
            await consumer.flush()
            if not found:
                return


async def values(world: OneShard, name: str) -> list[bytes]:
    async with reader(world, "clerk", topic=name, subscription="clerks", type="CHECKPOINT") as consumer:
        return [each.value async for each in consumer.until_caught_up()]


@pytest.mark.parametrize("stored", [0, 1, 2])
async def test_each_dead_letter_is_sent_back_once_although_a_replay_is_interrupted(
    stored: int, monkeypatch: pytest.MonkeyPatch
):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 3)
        found, origins = await listed(world)
        assert [(n, 1, f"no order {n}") for n in range(3)] == [
            (each.offset, each.deliveries, each.reason) for each in origins
        ]
        send, left = Producer.send, iter(range(stored))

        async def lose(*words, **options):
            if next(left, None) is None:
                raise DeliveryUnknownError("the network ended")
            return await send(*words, **options)

        monkeypatch.setattr(Producer, "send", lose)
        with pytest.raises(HeadgateError, match="the network ended"):
            await acted(world, found.through)
        monkeypatch.undo()

        assert found.ends == (await listed(world))[0].ends
        assert 3 - stored == await acted(world, found.through)
        assert [] == (await listed(world))[1]
        assert [b"0", b"1", b"2"] * 2 == await values(world, "orders")
        await die(world, 1)
        assert 0 == await acted(world, found.through), "sent twice"
        newest, origins = await listed(world)
        assert 4 == len(origins), "the three that were sent back died again, and a new one"
        await acted(world, found.through, replay=False)
        assert 4 == len((await listed(world))[1]), "what was not seen is not dropped"
        await acted(world, newest.through, replay=False)
        await acted(world, found.through, replay=False)
        assert [] == (await listed(world))[1], "and is not opened again"
        assert 7 == len(await values(world, "dead"))
        for other in ("", "0/9/0:5", "0:5"):
            with pytest.raises(HeadgateError, match="list them again"):
                await acted(world, other)


async def test_a_replay_continues_in_a_restored_copy_of_the_ledger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(one_shard, "TERM_IDS", itertools.count(7**20))  # random as usual, and so are ids of topics
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 1)
        assert 1 == await acted(world, (await listed(world))[0].through)
        await die(world, 1)
    copied = restored_copy(world)
    async with copied.leader():
        found, origins = await listed(copied)
        assert 2 == len(origins) == await acted(copied, found.through)


async def test_letters_of_another_ledger_were_not_seen():
    """A page stays open while the cluster is restored, with topics of the same names and ids."""
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 1)
        found, _ = await listed(world)
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 1)
        with pytest.raises(HeadgateError, match="list them again"):
            await acted(world, found.through, replay=False)


async def test_who_may_not_close_dead_letters_sends_none_back(monkeypatch: pytest.MonkeyPatch):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, _):
        await die(world, 1)
        found, _ = await listed(world)
        refused = RequestRejectedError("forbidden", "may not consume topic dead")
        monkeypatch.setattr(Admin, "create_subscription", AsyncMock(side_effect=refused))
        with pytest.raises(RequestRejectedError):
            await acted(world, found.through)
        assert [b"0"] == await values(world, "orders")


async def test_a_replay_closes_no_letters_of_a_topic_that_is_created_again_meanwhile(monkeypatch: pytest.MonkeyPatch):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, admin):
        await die(world, 1)
        found, _ = await listed(world)

        async def send_back(*_):
            await admin.delete_topic("dead", force=True)
            await admin.create_topic("dead")
            await admin.create_subscription("dead", found.closing, type="QUEUE", start="earliest")
            await die(world, 1)

        monkeypatch.setattr(OpenLetters, "send_back", send_back)
        with pytest.raises(RequestRejectedError, match="'dead' was deleted and created again"):
            await acted(world, found.through)
        assert 1 == len((await listed(world))[1])


@pytest.mark.parametrize("deleted", ["subscription", "topic"])
async def test_what_an_earlier_subscription_or_topic_of_the_name_left_is_not_sent_back(deleted: str):
    async with jobs(0, max_deliveries=1, dead_letter_topic="dead") as (world, admin):
        await die(world, 2)
        known, _ = await listed(world)
        if deleted == "topic":
            await admin.delete_topic("orders", force=True)
            await admin.create_topic("orders")
            with pytest.raises(HeadgateError, match="'orders' was deleted and created again"):
                await known.send_back(admin)
        else:
            await admin.delete_subscription("orders", "jobs", force=True)
        await admin.create_subscription("orders", "jobs", type="QUEUE")
        await admin.set_delivery_policy("orders", "jobs", max_deliveries=1, dead_letter_topic="dead")

        found, origins = await listed(world)
        assert ([], 0) == (origins, await acted(world, found.through))


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--replay", "--drop"), 2, "give --replay or --drop, not both"),
        (("--drop",), 2, "there is no terminal to ask: add --yes"),
        ((), 1, "subscription jobs of orders has no dead-letter topic: headgate subscription set orders jobs"),
    ],
)
def test_a_wrong_use_is_refused(words, code: int, reason: str, invoke: Invoke, cluster: FakeCluster) -> None:
    cluster.topics["orders"] = topic("orders")
    cluster.subscriptions = [subscription("orders", "jobs")]
    result = invoke("subscription", "dead-letters", "orders", "jobs", *words)
    assert (code, True) == (result.exit_code, reason in result.stderr), result.stderr


@pytest.mark.parametrize(
    ("words", "acts"),
    [
        ((), 0),
        (("--replay",), 1),
        (("--replay", "--dry-run"), 0),
        (("--drop", "--yes"), 1),
        (("--drop", "--dry-run"), 0),
    ],
)
def test_only_a_replay_or_a_drop_that_is_no_dry_run_acts(
    words: tuple[str, ...], acts: int, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Mock(through="0/1/0:3", has_stored=True)
    letter = {"key": "k", "source_segment": 0, "source_offset": 1, "deliveries": 2, "reason": "r", "died_at": 0}
    monkeypatch.setattr("headgate.cli.subscriptions.failed_records._list", AsyncMock(return_value=(found, [letter])))
    monkeypatch.setattr("headgate.client.open_letters.act", asked := AsyncMock(return_value=1))
    result = invoke("subscription", "dead-letters", "orders", "billing", *words, "--json")

    assert (0, acts, "") == (result.exit_code, asked.await_count, result.stderr)
    assert bool(words) == found.require_order_kept.called
