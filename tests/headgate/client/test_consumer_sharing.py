"""A consumer that reads a share of a segment: its own keys, and how it gets past those of others, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.client.consumer import Consumer
from headgate.model.hashing import key_bucket
from headgate.protocol import messages as m
from tests.support.scripted_leader import ScriptedCluster, grant

pytestmark = pytest.mark.looptime

LOW, HIGH = (
    next(key for key in map(b"%d".__mod__, range(99)) if wanted(key_bucket(key, 16)))
    for wanted in (lambda bucket: bucket < 4, lambda bucket: bucket >= 8)
)
SHARE = {"first_bucket": 0, "end_bucket": 8}


def consumer(cluster: ScriptedCluster, **more) -> Consumer:
    return Consumer(cluster.client(), **{"topic": "orders", "subscription": "billing", "name": "c", **more})


def store(cluster: ScriptedCluster, leader, *keys: bytes) -> None:
    """Store a chunk whose values are the offsets."""
    first = len(cluster.stored)
    cluster.store_records([m.Record(key, b"%d" % (first + n), 1) for n, key in enumerate(keys)], leader)


async def take(reader: Consumer, count: int, *, acknowledge: bool = True) -> list[str]:
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            record = await anext(reader)
            found.append(record.value.decode())
            if acknowledge:
                await reader.acknowledge(record)
    return found


async def reached(cluster: ScriptedCluster, generation: int, end: int) -> None:
    """Wait until everything below ``end`` is acknowledged at ``generation``."""
    async with asyncio.timeout(20):
        while True:
            covered = {
                offset
                for a in cluster.acknowledged
                if a.generation == generation
                for offset in range(a.first_offset, a.end_offset)
            }
            if covered == set(range(end)):
                return
            assert covered <= set(range(end)), "beyond what was read and acknowledged"
            await asyncio.sleep(0.05)


async def test_it_says_that_it_can_share_unless_it_keeps_its_own_positions():
    for kind in ("STREAM", "QUEUE", "CHECKPOINT"):
        cluster = ScriptedCluster()
        async with cluster.leader() as leader, consumer(cluster, type=kind):
            assert [kind != "CHECKPOINT"] == [
                request.supports_bucket_ranges for request in leader.seen(m.RegisterConsumer)
            ]


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_it_delivers_its_own_keys_and_acknowledges_past_the_others(kind):
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(cluster, leader, HIGH, LOW, HIGH, HIGH, LOW, HIGH)
        async with consumer(cluster, type=kind) as reader:
            assert ["1", "4"] == await take(reader, 2)
            await reached(cluster, 1, 6)


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@pytest.mark.parametrize("end_offset", [None, 3])
async def test_a_share_without_records_reaches_the_end_all_the_same(kind, end_offset):
    """Else its segment would never be drained; the end may be known from the grant, or not."""
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(end_offset=end_offset, **SHARE)]
        store(cluster, leader, HIGH, HIGH, HIGH)
        async with consumer(cluster, type=kind):
            await reached(cluster, 1, 3)


async def test_nothing_is_passed_while_something_delivered_is_not_acknowledged():
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(cluster, leader, HIGH, LOW, HIGH)
        async with consumer(cluster) as reader:
            await take(reader, 1, acknowledge=False)
            await asyncio.sleep(5)
            assert all(a.end_offset <= 1 for a in cluster.acknowledged)


async def test_what_waits_undelivered_when_a_share_is_taken_back_is_not_passed():
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(**SHARE)]
        store(cluster, leader, LOW, HIGH, LOW, HIGH)
        async with consumer(cluster) as reader:
            first = await anext(reader)
            (request,) = leader.seen(m.RegisterConsumer)
            leader.push(request, revoked=[m.Revocation(segment=0, generation=1, **SHARE)])
            await asyncio.sleep(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(reader)
            await reader.acknowledge(first)
            await asyncio.sleep(5)
            assert 1 == max(a.end_offset for a in cluster.acknowledged)
            assert leader.seen(m.ConfirmRevoked)


async def test_reading_begins_in_each_bucket_where_the_grant_says():
    """Also in a whole segment, after it was shared."""
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(starts=[m.BucketStart(0, 8, 3)])]
        store(cluster, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(cluster) as reader:
            assert ["1", "3", "4"] == await take(reader, 3)


async def test_a_queue_skips_in_each_bucket_what_is_acknowledged_there():
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(starts=[m.BucketStart(0, 8, 0, [(2, 3)]), m.BucketStart(8, 16, 2)])]
        store(cluster, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(cluster, type="QUEUE") as reader:
            assert ["0", "3", "4"] == await take(reader, 3)


async def test_two_shares_of_one_segment_are_read_side_by_side():
    cluster = ScriptedCluster()
    async with cluster.leader() as leader:
        leader.grants = [grant(generation=1, **SHARE), grant(generation=2, first_bucket=8, end_bucket=16)]
        store(cluster, leader, LOW, HIGH, LOW, HIGH)
        async with consumer(cluster) as reader:
            assert ["0", "1", "2", "3"] == sorted(await take(reader, 4))
            assert [0] == reader.segments
            await reached(cluster, 1, 4)
            await reached(cluster, 2, 4)
