"""A topic for readers notices its deletion: real leader and client, in virtual time."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from headgate.client.admin import Admin
from headgate.client.topic_source import TopicSource, open_topic_source
from headgate.errors import HeadgateError, OtherHistoryError, PositionOutOfRangeError
from headgate.process.background import end_tasks
from headgate.reading.topic_reader import TopicReader
from headgate.views.topics import TopicInfo
from tests.support.samples.positioned_ledger import LedgerWithPositions
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import client, create, orders, produce


@pytest.mark.parametrize("again", [False, True])
async def test_a_deletion_is_noticed_soon_and_a_topic_that_was_created_again_is_another_one(again: bool):
    async with orders() as (world, admin), open_topic_source(client(world, "reader"), "orders") as source:
        waiting = asyncio.create_task(source.until_deleted())
        await produce(world, 5)
        await asyncio.sleep(100)
        assert not waiting.done()
        await admin.delete_topic("orders")
        if again:
            await create(world)
        what = "was deleted and created again; run the command again" if again else "was deleted, with its records"
        with pytest.raises(HeadgateError, match=f"topic 'orders' {what}"):
            async with asyncio.timeout(5):  # far below the longest time between two questions
                await waiting


async def test_a_segment_that_is_split_while_it_is_followed_ends_what_reads_it_alone():
    async with orders(segments=1) as (world, admin):
        async with open_topic_source(client(world, "reader"), "orders") as source:
            reader = TopicReader(source.ledger, source.description, starts={0: 0}, only_started=True)
            ended: list[bool] = []
            waiting = asyncio.create_task(source.until_deleted(lambda now: ended.append(reader.end_at(now))))
            await produce(world, 5)
            await asyncio.sleep(100)
            assert not any(ended)
            await admin.split("orders", 0)
            await asyncio.sleep(5)  # far below the longest time between two questions
            assert ended[-1]
            assert 5 == len([record async for record in reader.follow(source.head)])
        await end_tasks(waiting)


async def test_a_deletion_is_noticed_although_no_leader_answered_for_a_while():
    world = OneShard()
    async with Admin(client(world, "admin")) as admin:
        async with world.leader("a"):
            await create(world)
            entered = open_topic_source(client(world, "reader"), "orders", timeout_seconds=5)
            source = await entered.__aenter__()
            waiting = asyncio.create_task(source.until_deleted())
        await asyncio.sleep(200)
        assert not waiting.done()
        async with world.leader("b"):
            await admin.delete_topic("orders")
            with pytest.raises(HeadgateError, match="was deleted"):
                async with asyncio.timeout(60):
                    await waiting
        await entered.__aexit__(None, None, None)


async def starts(change: dict[str, Any], *, pruned: int = 0, ends: dict[int, int] | None = None) -> dict[int, int]:
    """Read two records of segment 0, of three in the topic, and continue at the changed position."""
    known = LedgerWithPositions()
    await known.write(1)
    await known.write(2, 0, 0, 1)
    topic = known.description()
    describe = AsyncMock(return_value=replace(topic, segments=topic.segments[pruned:]))
    pruned_ends = AsyncMock(return_value=ends or {})
    source = TopicSource(topic, known.ledger, "here", newest_chunk=1, describe=describe, pruned_ends=pruned_ends)
    now = await source.look()
    return await source.starts_after(replace(now.position({0: 2, 1: 0}), **change), now, remedy="do this")


async def test_a_topic_without_new_records_costs_no_request_to_the_store():
    known = LedgerWithPositions()
    await known.write(1, 0)
    source = TopicSource(known.description(), known.ledger, "here", 1, AsyncMock(side_effect=known.description))
    before = await source.look()
    await known.write(2)
    calls = known.ledger.store.calls.copy()
    assert before is await source.look(before)
    assert calls == known.ledger.store.calls
    other = before._replace(topic=replace(before.topic, topic_id=7))
    assert 1 == (await source.look(other)).topic.topic_id, "it was created again"
    await known.write(3, 0)
    assert (3, {0: 2, 1: 0}) == ((now := await source.look(before)).chunk, now.ends)

    async def described_after_the_next_chunk() -> TopicInfo:
        await known.write(4, 1)
        return known.description()

    now = await TopicSource(known.description(), known.ledger, "here", 1, described_after_the_next_chunk).look()
    assert (3, 4, {0: 2, 1: 1}) == (now.counted, now.chunk, now.ends), "an older ledger ends at 3"


def test_a_program_continues_at_the_position_that_it_has_kept() -> None:
    assert asyncio.run(starts({})) == {0: 2, 1: 0}
    assert asyncio.run(starts({"newest": 0, "offsets": {}})) == {1: 0}, "segment 1 was created since"
    assert asyncio.run(starts({}, pruned=1, ends={0: 2})) == {1: 0}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"ledger_id": "m"}, OtherHistoryError, "with the id m, and the cluster has the ledger with the id here"),
        ({"topic": "u"}, PositionOutOfRangeError, "is of topic 'u', not of 't'"),
        ({"topic_id": 7}, PositionOutOfRangeError, "created again: .* id 7, and the present one has the id 1,"),
        ({"term_id": 77}, OtherHistoryError, "does not have chunk 2 as it was .*: an older ledger was put back"),
        ({"chunk": 3}, OtherHistoryError, "does not have chunk 3 as it was"),
        ({"offsets": {0: 3}}, PositionOutOfRangeError, "segment 0 .* ends at 2, and its first 3 records were read"),
    ],
    ids=["another ledger", "another topic", "created again", "another term", "a chunk that is gone", "an older ledger"],
)
def test_a_position_of_something_else_is_refused_with_both_names(
    change: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"{text}.*; do this"):
        asyncio.run(starts(change))


def test_a_segment_that_was_pruned_before_it_was_read_is_named() -> None:
    with pytest.raises(PositionOutOfRangeError, match="segment 0 of topic 't' was read up to offset 2, and pruned"):
        asyncio.run(starts({}, pruned=1, ends={0: 5}))
