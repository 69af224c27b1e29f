"""A consumer that reads a share of a segment: its own keys, and how it gets past those of others, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.consumer import Consumer
from headgate.model.hashing import key_bucket
from headgate.protocol import messages as m
from tests.support.scripted_leader import Stage, grant

pytestmark = pytest.mark.looptime

LOW, HIGH = (
    next(key for key in map(b"%d".__mod__, range(99)) if wanted(key_bucket(key, 16)))
    for wanted in (lambda bucket: bucket < 4, lambda bucket: bucket >= 8)
)
SHARE = {"first_bucket": 0, "end_bucket": 8}


def consumer(stage: Stage, **more) -> Consumer:
    return Consumer(stage.client(), **{"topic": "orders", "subscription": "billing", "name": "c", **more})


def store(stage: Stage, leader, *keys: bytes) -> None:
    """Store a chunk whose values are the offsets."""
    first = len(stage.stored)
    stage.store_records([m.Record(key, b"%d" % (first + n), 1) for n, key in enumerate(keys)], leader)


async def take(reader: Consumer, count: int, *, acknowledge: bool = True) -> list[str]:
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            record = await anext(reader)
            found.append(record.value.decode())
            if acknowledge:
                await reader.acknowledge(record)
    return found


async def reached(stage: Stage, generation: int, end: int) -> None:
    """Wait until everything below ``end`` is acknowledged at ``generation``."""
    async with asyncio.timeout(20):
        while True:
            covered = {
                offset
                for a in stage.acknowledged
                if a.generation == generation
                for offset in range(a.first_offset, a.end_offset)
            }
            if covered == set(range(end)):
                return
            assert covered <= set(range(end)), "beyond what was read and acknowledged"
            await asyncio.sleep(0.05)


async def test_it_says_that_it_can_share_unless_it_keeps_its_own_positions():
    for kind in ("STREAM", "QUEUE", "CHECKPOINT"):
        stage = Stage()
        async with stage.leader() as leader, consumer(stage, type=kind):
            assert [kind != "CHECKPOINT"] == [request.shares for request in leader.seen(m.RegisterConsumer)]


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_it_delivers_its_own_keys_and_acknowledges_past_the_others(kind):
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(stage, leader, HIGH, LOW, HIGH, HIGH, LOW, HIGH)
        async with consumer(stage, type=kind) as reader:
            assert ["1", "4"] == await take(reader, 2)
            await reached(stage, 1, 6)


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@pytest.mark.parametrize("end_offset", [None, 3])
async def test_a_share_without_records_reaches_the_end_all_the_same(kind, end_offset):
    """Else its segment would never be drained; the end may be known from the grant, or not."""
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(end_offset=end_offset, **SHARE)]
        store(stage, leader, HIGH, HIGH, HIGH)
        async with consumer(stage, type=kind):
            await reached(stage, 1, 3)


async def test_nothing_is_passed_while_something_delivered_is_not_acknowledged():
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(stage, leader, HIGH, LOW, HIGH)
        async with consumer(stage) as reader:
            await take(reader, 1, acknowledge=False)
            await asyncio.sleep(5)
            assert all(a.end_offset <= 1 for a in stage.acknowledged)


async def test_what_waits_undelivered_when_a_share_is_taken_back_is_not_passed():
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(stage, leader, LOW, HIGH, LOW, HIGH)
        async with consumer(stage) as reader:
            first = await anext(reader)
            (request,) = leader.seen(m.RegisterConsumer)
            leader.push(request, revoked=[m.Revocation(segment=0, generation=1, **SHARE)])
            await asyncio.sleep(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(reader)
            await reader.acknowledge(first)
            await asyncio.sleep(5)
            assert 1 == max(a.end_offset for a in stage.acknowledged)
            assert leader.seen(m.ConfirmRevoked)


async def test_reading_begins_in_each_bucket_where_the_grant_says():
    """Also in a whole segment, after it was shared."""
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(starts=[m.BucketStart(0, 8, 3)])]
        store(stage, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(stage) as reader:
            assert ["1", "3", "4"] == await take(reader, 3)


async def test_a_queue_skips_in_each_bucket_what_is_acknowledged_there():
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(starts=[m.BucketStart(0, 8, 0, [(2, 3)]), m.BucketStart(8, 16, 2)])]
        store(stage, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(stage, type="QUEUE") as reader:
            assert ["0", "3", "4"] == await take(reader, 3)


async def test_two_shares_of_one_segment_are_read_side_by_side():
    stage = Stage()
    async with stage.leader() as leader:
        leader.grants = [grant(generation=1, **SHARE), grant(generation=2, first_bucket=8, end_bucket=16)]
        store(stage, leader, LOW, HIGH, LOW, HIGH)
        async with consumer(stage) as reader:
            assert ["0", "1", "2", "3"] == sorted(await take(reader, 4))
            assert [0] == reader.segments
            await reached(stage, 1, 4)
            await reached(stage, 2, 4)
