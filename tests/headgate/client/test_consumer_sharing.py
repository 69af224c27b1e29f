"""A consumer of a bucket range: it delivers its own keys and skips the others, in virtual time."""

import asyncio

import pytest

from headgate.model.layout import key_bucket
from headgate.protocol.replies import BucketStart
from headgate.protocol.requests import Record, RegisterConsumer
from tests.support.fakes.scripted_leader import ScriptedCluster, consumer, grant, take

pytestmark = pytest.mark.looptime

LOW, HIGH = (
    next(key for key in map(b"%d".__mod__, range(99)) if wanted(key_bucket(key, 16)))
    for wanted in (lambda bucket: bucket < 4, lambda bucket: bucket >= 8)
)
LOW_HALF = {"first_bucket": 0, "end_bucket": 8}


def store(cluster: ScriptedCluster, leader, *keys: bytes) -> None:
    """Store a chunk whose values are the offsets."""
    first = len(cluster.stored)
    cluster.store_records([Record(key, b"%d" % (first + n), 1) for n, key in enumerate(keys)], leader)


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


async def test_consumers_support_bucket_ranges_except_checkpoint():
    for kind in ("STREAM", "QUEUE", "CHECKPOINT"):
        cluster = ScriptedCluster()
        async with cluster.leader() as leader, consumer(cluster, type=kind):
            assert [kind != "CHECKPOINT"] == [
                request.supports_bucket_ranges for request in leader.seen(RegisterConsumer)
            ]


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_a_bucket_range_delivers_its_own_keys_and_acknowledges_the_others(kind, cluster):
    async with cluster.leader(grants=[grant(**LOW_HALF)]) as leader:
        store(cluster, leader, HIGH, LOW, HIGH, HIGH, LOW, HIGH)
        async with consumer(cluster, type=kind) as reader:
            assert ["1", "4"] == await take(reader, 2, acknowledge=True)
            await reached(cluster, 1, 6)


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
@pytest.mark.parametrize("end_offset", [None, 3])
async def test_a_bucket_range_without_records_is_acknowledged_to_its_end(kind, end_offset, cluster):
    """Otherwise its segment is never drained. The grant may or may not contain the end."""
    async with cluster.leader(grants=[grant(end_offset=end_offset, **LOW_HALF)]) as leader:
        store(cluster, leader, HIGH, HIGH, HIGH)
        async with consumer(cluster, type=kind):
            await reached(cluster, 1, 3)


async def test_nothing_is_skipped_while_a_delivered_record_is_unacknowledged(cluster):
    async with cluster.leader(grants=[grant(**LOW_HALF)]) as leader:
        store(cluster, leader, HIGH, LOW, HIGH)
        async with consumer(cluster) as reader:
            await take(reader, 1)
            await asyncio.sleep(5)
            assert all(a.end_offset <= 1 for a in cluster.acknowledged)


async def test_what_a_run_of_a_bucket_range_had_not_begun_at_its_end_is_not_acknowledged(cluster):
    """Its last handler ends after the later records were given back: these were read, and not skipped."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        begun.set()
        await ended.wait()

    async with cluster.leader(grants=[grant(**LOW_HALF)]) as leader:
        store(cluster, leader, HIGH, LOW, LOW, HIGH)
        async with consumer(cluster) as reader:
            running = asyncio.create_task(reader.run(handle))
            await begun.wait()
            await asyncio.sleep(5)
            reader.stop()
            await asyncio.sleep(1)
            ended.set()
            assert 1 == (await running).unhandled
        assert 2 == max(a.end_offset for a in cluster.acknowledged)


async def test_reading_starts_in_each_bucket_at_the_offset_of_the_grant(cluster):
    """Also for a whole segment that was shared before."""
    async with cluster.leader(grants=[grant(starts=[BucketStart(0, 8, 3)])]) as leader:
        store(cluster, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(cluster) as reader:
            assert ["1", "3", "4"] == await take(reader, 3, acknowledge=True)


async def test_the_last_record_of_a_whole_segment_may_be_acknowledged_in_its_bucket_already(cluster):
    """Its former holder of this bucket acknowledged it; without another acknowledgement nothing drains the segment."""
    async with cluster.leader(grants=[grant(end_offset=3, starts=[BucketStart(8, 16, 3)])]) as leader:
        store(cluster, leader, LOW, LOW, HIGH)
        async with consumer(cluster) as reader:
            assert ["0", "1"] == await take(reader, 2, acknowledge=True)
            await reached(cluster, 1, 3)


async def test_a_queue_skips_the_acknowledged_records_of_each_bucket(cluster):
    async with cluster.leader(grants=[grant(starts=[BucketStart(0, 8, 0, [(2, 3)]), BucketStart(8, 16, 2)])]) as leader:
        store(cluster, leader, LOW, HIGH, LOW, HIGH, LOW)
        async with consumer(cluster, type="QUEUE") as reader:
            assert ["0", "3", "4"] == await take(reader, 3, acknowledge=True)


async def test_two_bucket_ranges_of_one_segment_are_read_concurrently(cluster):
    async with cluster.leader(
        grants=[grant(generation=1, **LOW_HALF), grant(generation=2, first_bucket=8, end_bucket=16)]
    ) as leader:
        store(cluster, leader, LOW, HIGH, LOW, HIGH)
        async with consumer(cluster) as reader:
            assert ["0", "1", "2", "3"] == sorted(await take(reader, 4, acknowledge=True))
            assert [0] == reader.segments
            await reached(cluster, 1, 4)
            await reached(cluster, 2, 4)
