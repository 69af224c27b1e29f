"""The consumer during changes of leader, reconnections, and programs of the same name, in virtual time."""

import asyncio
from itertools import chain

import pytest

from headgate.client.consumer import Consumer
from headgate.errors import AcknowledgementsNotStoredError, FencedError, NoLeaderError, RequestRejectedError
from headgate.model.layout import key_bucket
from headgate.model.positions import decode_positions
from headgate.process.background import end_tasks
from headgate.protocol.replies import AssignmentChanged, BucketStart, Revocation
from headgate.protocol.requests import ConfirmRevoked, Heartbeat, LeaveConsumer, Record, RegisterConsumer
from tests.support.fakes.scripted_leader import ScriptedCluster, consumer, grant, records, registration, take
from tests.support.waiting import until
from tests.support.worlds.one_shard_programs import orders, produce, reader


async def test_records_are_delivered_while_the_new_leader_does_not_accept_the_registration(cluster):
    async with cluster.leader(grants=[grant()]) as old, consumer(cluster) as reader:
        old.answers = False
        async with cluster.leader(2, grants=[grant()]) as new:
            new.refused["RegisterConsumer"] = "unavailable"
            await asyncio.sleep(3)
            assert new.seen(RegisterConsumer)
            cluster.store_records(records("0"), new)
            assert ["0"] == await take(reader, 1)


async def test_pushes_of_another_ledger_to_another_program_or_before_the_registration_are_ignored(cluster):
    def push(incarnation: int, ledger_id: bytes = b"") -> AssignmentChanged:
        who = {"topic": "orders", "subscription": "billing", "consumer": "c", "incarnation": incarnation}
        return AssignmentChanged(**who, leader_epoch=1, granted=[grant()], ledger_id=ledger_id)

    reader = consumer(cluster)
    reader._client.replies.dispatch(push(0))
    assert [] == reader.segments
    async with cluster.leader() as leader, reader:
        reader._client.replies.dispatch(push(registration(leader).incarnation - 1))
        reader._client.replies.dispatch(push(registration(leader).incarnation, b"a" * 16))
        assert [] == reader.segments
        reader._client.replies.dispatch(push(registration(leader).incarnation))
        assert [0] == reader.segments


async def test_a_deposed_leader_does_not_fence_a_consumer(cluster):
    async with (
        cluster.leader(grants=[grant()]) as leader,
        consumer(cluster) as reader,
        cluster.leader(2, grants=[grant()]) as successor,
    ):
        await asyncio.sleep(3)
        leader.push_fenced(registration(leader), "silent for too long")
        await asyncio.sleep(0.1)
        assert [0] == reader.segments
        assert 1 == len(successor.seen(RegisterConsumer))


async def test_a_consumer_whose_heartbeat_is_fenced_ends(cluster, caplog):
    async with cluster.leader() as leader, consumer(cluster) as reader:
        leader.refused["Heartbeat"] = "fenced"
        with pytest.raises(FencedError):
            async with asyncio.timeout(10):
                await anext(reader)
    assert "consumer.failed" in caplog.text


async def test_a_consumer_whose_acknowledgements_are_fenced_ends(cluster):
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]) as leader:
        with pytest.raises(AcknowledgementsNotStoredError, match="scripted fenced"):  # noqa: PT012
            async with consumer(cluster) as reader:
                leader.script.append("fenced")
                await take(reader, 1, acknowledge=True)
                with pytest.raises(FencedError):
                    async with asyncio.timeout(4):
                        await anext(reader)
        assert [] == leader.seen(Heartbeat), "it was not the heartbeat that ended it"


async def test_a_newer_program_of_the_same_name_fences_this_one(cluster):
    async with cluster.leader() as leader:
        async with consumer(cluster) as reader:
            leader.refused["RegisterConsumer"] = "fenced"
            leader.push_fenced(registration(leader), "replaced")
            with pytest.raises(FencedError):
                async with asyncio.timeout(5):
                    await anext(reader)
        assert [] == leader.seen(LeaveConsumer), "another program has the name"


async def test_a_consumer_whose_heartbeat_is_refused_holds_nothing_until_it_is_registered_again(cluster, caplog):
    """It was evicted while it was disconnected, so no push notified it."""
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        await take(reader, 1)
        leader.refused |= {"Heartbeat": "invalid", "RegisterConsumer": "unavailable"}
        await asyncio.sleep(6)
        assert [] == reader.segments
        leader.grants = [grant(generation=2)]
        del leader.refused["RegisterConsumer"]
        assert ["0"] == await take(reader, 1), "granted again, it is read again"
        assert [RegisterConsumer, Heartbeat, RegisterConsumer] == [type(each.body) for each in leader.requests[:3]]
    assert "consumer.heartbeat_rejected" in caplog.text


async def test_of_two_registrations_one_begins_when_the_other_has_a_reply(cluster):
    async with cluster.leader() as leader, consumer(cluster) as reader:
        leader.answers = False
        both = asyncio.gather(*(reader._membership.register() for _ in range(2)))
        await asyncio.sleep(1)
        assert 2 == len(leader.seen(RegisterConsumer))
        leader.answers = True
        await both


async def test_heartbeats_follow_the_interval_of_the_leader(cluster):
    async with cluster.leader() as leader:
        leader.heartbeat_seconds = 2.0
        async with consumer(cluster):
            await asyncio.sleep(10.5)
            assert 5 == len(leader.seen(Heartbeat))


async def test_a_consumer_whose_heartbeat_has_no_reply_sends_another_one(cluster, caplog):
    """The leader pushes what the heartbeat does not list. It is late, so a registration would cost it more."""
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster):
        leader.answers = False
        await asyncio.sleep(12)
        leader.requests.clear()
        leader.answers = True
        await asyncio.sleep(30)
        assert [(0, 1)] == leader.seen(Heartbeat)[0].held
        assert [] == leader.seen(RegisterConsumer)


@pytest.mark.real_time
async def test_a_consumer_whose_machine_has_slept_delivers_nothing_until_a_registration(cluster, monkeypatch, caplog):
    """The loop's clock has not moved on, and the leader's has. Calls that read an external topic end with the lease."""
    cluster.store_records(records(*"01"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        assert ["0"] == await take(reader, 1)
        leader.answers = False
        monkeypatch.setattr("time.clock_gettime", lambda _: 1e9)
        assert [] == await reader.get_many(10, 1.5)
        assert "consumer.lease_ended" in caplog.text
        leader.answers = True
        assert ["1"] == await take(reader, 1)
        assert 2 == len(leader.seen(RegisterConsumer))


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE", "CHECKPOINT"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "moved"])
async def test_without_an_answer_nothing_is_delivered_after_the_lease_until_a_registration(kind, kept, cluster, caplog):
    cluster.store_records(records(*"0123"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster, type=kind) as reader:
        await asyncio.sleep(12)  # The heartbeat at 11 s is answered.
        leader.answers = False
        await asyncio.sleep(28)
        assert ["0"] == await take(reader, 1), "29 s after the last request that was answered was sent"
        await asyncio.sleep(2)
        assert [] == await reader.get_many(10, 60)
        assert "consumer.lease_ended" in caplog.text
        assert "consumer.no_leader" in caplog.text
        leader.refused["RegisterConsumer"] = "unavailable"
        leader.requests.clear()
        leader.grants = [grant(generation=1 if kept else 2)]
        leader.answers = True
        assert [] == await reader.get_many(10, 30), "an answer to a heartbeat does not say what is still held"
        assert isinstance(leader.requests[0].body, Heartbeat), "a leader that is late gets no registration"
        leader.refused.clear()
        first = "1" if kept or kind == "CHECKPOINT" else "0"
        assert first == (await take(reader, 1))[0]


async def test_a_revocation_before_the_reply_to_the_registration_is_confirmed_at_once(cluster):
    """Another consumer joined a moment later. A grant is not taken from such a push: the consumer asks for it at once."""
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant(), grant(1)]) as leader:
        leader.mute = True
        reader = consumer(cluster)
        entering = asyncio.create_task(reader.__aenter__())
        await asyncio.sleep(0.5)
        request = registration(leader)
        leader.push(request, granted=[grant(2)], revoked=[Revocation(segment=0, generation=1)])
        leader.push(request, granted=[grant(3)])
        await asyncio.sleep(0.5)
        assert [] == leader.seen(ConfirmRevoked)
        leader.mute = False

        await entering
        await asyncio.sleep(0.5)

        assert [[(0, 1)]] == [each.released for each in leader.seen(ConfirmRevoked)]
        assert 1 == len(leader.seen(Heartbeat)[0].held)
        assert [1] == reader.segments
        await reader.__aexit__(None, None, None)


async def test_a_closed_consumer_sends_and_receives_nothing_more(cluster, caplog):
    async with cluster.leader() as leader, cluster.client() as client:
        async with Consumer(client, topic="orders", subscription="billing") as reader:
            request = registration(leader)
        assert [] == [task for task in asyncio.all_tasks() if task.get_name().startswith(reader.name)]
        leader.push(request, granted=[grant()])
        leader.push_fenced(request, "replaced")
        leader.announce()
        leader.requests.clear()
        await asyncio.sleep(30)
        assert "consumer.fenced" not in caplog.text
        assert [] == reader.segments
        assert [] == leader.requests


async def test_registering_without_a_leader_is_a_clear_error(cluster):
    async with cluster.leader() as leader:
        leader.answers = False
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoLeaderError, match="shard 0 of cluster 'test': its leader does not reply"):
            await consumer(cluster, connect_timeout_seconds=7).__aenter__()
        assert 7 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.5)
    assert [] == [client for client in cluster.broker.connected() if client == "client"]


async def test_a_refused_registration_raises(cluster):
    async with cluster.leader() as leader:
        leader.refused["RegisterConsumer"] = "fenced"
        with pytest.raises(RequestRejectedError):
            await consumer(cluster).__aenter__()


# Caught up


async def test_caught_up_is_true_only_when_every_durable_record_was_delivered(cluster):
    cluster.store_records(records(*"01"))
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        await asyncio.sleep(0.1)
        assert not await reader.caught_up()
        await take(reader, 2)
        await asyncio.sleep(0.1)
        assert await reader.caught_up()
        cluster.store_records(records("2"))
        assert not await reader.caught_up()


@pytest.mark.parametrize(("blocked", "settled"), [(1, True), (0, False)])
async def test_caught_up_is_false_while_a_segment_is_blocked_or_moving(blocked, settled, cluster):
    async with cluster.leader() as leader:
        leader.blocked, leader.stable = blocked, settled
        async with consumer(cluster) as reader:
            assert not await reader.caught_up()


async def test_caught_up_is_false_if_a_pushed_grant_was_lost(cluster):
    async with cluster.leader() as leader, consumer(cluster) as reader:
        assert await reader.caught_up()
        leader.grants = [grant()]
        assert not await reader.caught_up()


# A consumer of a bucket range: it delivers its own keys and skips the others, in virtual time.


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

    def covered() -> set[int]:
        own = (range(a.first_offset, a.end_offset) for a in cluster.acknowledged if a.generation == generation)
        return {*chain.from_iterable(own)}

    await until(lambda: covered() == {*range(end)}, 20)


async def test_consumers_support_bucket_ranges_except_checkpoint():
    for kind in ("STREAM", "QUEUE", "CHECKPOINT"):
        cluster = ScriptedCluster()
        async with cluster.leader() as leader, consumer(cluster, type=kind):
            assert registration(leader).supports_bucket_ranges == (kind != "CHECKPOINT")


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


# A consumer whose program hangs, beside one that works, with the real leader of a shard, in virtual time.


@pytest.mark.parametrize("runs", [False, True], ids=["loop", "run"])
async def test_the_segment_of_a_program_that_hangs_is_read_by_another_until_it_asks_for_records_again(runs):
    lost, resumed, found = [], asyncio.Event(), []

    async def hang(record):
        found.append(record)
        await resumed.wait()

    async with orders() as (world, admin):
        await admin.create_subscription("orders", "billing", start="earliest")
        async with (
            reader(world, "hangs", on_revoked=lambda *gone: lost.append(gone)) as hanging,
            reader(world, "works") as working,
        ):
            await until(lambda: len(hanging.segments) == len(working.segments) == 1)
            await admin.set_delivery_policy("orders", "billing", max_processing_seconds=60)
            lost.clear()
            (stuck,) = hanging.segments
            await produce(world, 40)
            reading = asyncio.create_task(hanging.run(hang) if runs else hang(await anext(hanging)))
            await until(lambda: found)
            working_on = asyncio.create_task(working.run(lambda _: None))
            await until(lambda: stuck in working.segments, 200)
            await until(lambda: lost)
            await asyncio.sleep(120)
            assert [] == hanging.segments, "it gets no segment before it asks for a record"
            resumed.set()
            if not runs:
                await reading
                reading = asyncio.create_task(anext(hanging))
            await until(lambda: hanging.segments)
            assert ([stuck], 0.0) == lost[0]
            await end_tasks(reading, working_on)
    assert 1 == world.registry.get_sample_value("headgate_segments_stalled_total", {"outcome": "moved"})


async def test_a_subscription_without_acknowledgements_has_no_limit():
    async with orders() as (_, admin):
        await admin.create_subscription("orders", "billing", type="CHECKPOINT")
        with pytest.raises(RequestRejectedError, match="is of type CHECKPOINT: only ignored-by-retention can be set"):
            await admin.set_delivery_policy("orders", "billing", max_processing_seconds=60)


async def test_a_late_answer_to_the_release_of_a_segment_that_is_held_again_changes_nothing(cluster):
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster, type="CHECKPOINT") as reader:
        leader.refused["ConfirmRevoked"] = "unavailable"
        leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
        await until(lambda: leader.seen(ConfirmRevoked))
        leader.grants = [grant(generation=2)]
        leader.push(registration(leader), granted=leader.grants)
        await until(lambda: len(leader.seen(RegisterConsumer)) == 2)
        leader.refused.clear()
        await asyncio.sleep(2)
        assert [0] == decode_positions(reader.positions).held
