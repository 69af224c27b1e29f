"""The consumer with a scripted leader, over a broker and a store in memory, in virtual time."""

import asyncio
import contextlib
import math
import types
from types import SimpleNamespace

import msgspec
import pytest

from headgate import errors
from headgate.client.consumed_record import ConsumedRecord
from headgate.client.consumer import Consumer
from headgate.client.consuming.consumer_context import ConsumerOptions, ConsumerRequests
from headgate.client.decisions.unstored_acknowledgements import AcknowledgementBatch
from headgate.client.external_consumer import ExternalConsumer
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Generation, Offset, SegmentId
from headgate.model.positions import PositionToken, decode_positions
from headgate.protocol import codec
from headgate.protocol.codec import HeadAnnouncement, head_topic
from headgate.protocol.replies import AssignmentChanged, Grant, ResumingKey, Revocation
from headgate.protocol.request_fields import ReaderRequest
from headgate.protocol.requests import AcknowledgeBatch, ConfirmRevoked, LeaveConsumer, Record
from tests.support.fakes.scripted_leader import (
    CLUSTER,
    TOPIC_ID,
    ScriptedCluster,
    acknowledged,
    consumer,
    grant,
    nothing_more,
    records,
    registration,
    take,
)
from tests.support.samples.client_configs import client_config

# Reading


async def test_get_many_returns_what_is_available_and_waits_only_for_the_first_record(cluster):
    cluster.store_records(records("0", "1", "2"))
    async with cluster.leader(grants=[grant()]):
        async with consumer(cluster) as reader:
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(1)
            began = clock()
            assert ["0", "1"] == [record.value.decode() for record in await reader.get_many(2, timeout_seconds=5)]
            assert ["2"] == [record.value.decode() for record in await reader.get_many(2, timeout_seconds=5)]
            assert [] == await reader.get_many(2)
            assert began == clock()
            assert [] == await reader.get_many(2, timeout_seconds=5)
            assert 5 == pytest.approx(clock() - began)
            with pytest.raises(errors.ConfigError, match="max_records=0 has to be 1 or more"):
                await reader.get_many(0)
            with pytest.raises(errors.ConfigError, match="get_many: timeout_seconds=nan: use 0 to 31536000 seconds"):
                await reader.get_many(timeout_seconds=math.nan)
        with pytest.raises(errors.HeadgateError, match="closed"):
            await reader.get_many()


@pytest.mark.parametrize(("idle_seconds", "delay_seconds"), [(0.5, 1), (40, 5)])
async def test_a_lost_head_announcement_delays_records_until_a_poll_or_a_heartbeat(
    cluster, idle_seconds, delay_seconds
):
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        await asyncio.sleep(idle_seconds)
        began = asyncio.get_running_loop().time()
        cluster.store_records(records("0"))
        assert ["0"] == await take(reader, 1)
        assert delay_seconds + 0.1 > asyncio.get_running_loop().time() - began


async def test_what_was_stored_before_a_registration_is_read_at_once(cluster):
    """Its reply names the newest chunk: no announcement tells a consumer that comes later."""
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader, asyncio.timeout(0.1):
        assert ["0"] == await take(reader, 1)


async def test_only_granted_segments_are_read_and_each_chunk_is_read_once():
    cluster = ScriptedCluster(segments=4)
    keys = [f"key-{n}".encode() for n in range(60)]
    for key in keys:
        cluster.store_records([Record(key, key, 1)])
    async with cluster.leader(grants=[grant(0), grant(2), grant(3)]) as leader, consumer(cluster) as reader:
        found = {}
        while not await reader.caught_up():
            async with asyncio.timeout(5):
                record = await anext(reader)
            found.setdefault(record.segment, []).append(record.offset)
        assert {0, 2, 3} == set(found)
        assert all(list(range(len(offsets))) == offsets for offsets in found.values())
        reads = cluster.store.calls["read"]
        leader.push(registration(leader), granted=[grant(1)])
        await take(reader, 60 - sum(map(len, found.values())))
        assert reads + 5 > cluster.store.calls["read"], "it was read from what is there already"
    assert len(keys) + 5 > reads


async def test_queue_skips_acknowledged_records(cluster):
    cluster.store_records(records(*"0123456"))
    async with (
        cluster.leader(grants=[grant(start_offset=1, acknowledged=[(2, 4), (5, 6)])]),
        consumer(cluster, type="QUEUE") as reader,
    ):
        assert ["1", "4", "6"] == await take(reader, 3)


async def test_a_consumer_stops_at_a_damaged_chunk_with_its_name_and_skips_nothing(cluster):
    for value in "012":
        cluster.store_records(records(value))
    *_, path, _ = sorted(path for path in cluster.store.objects if path.startswith("chunks/"))
    data = cluster.store.objects[path]
    cluster.store.objects[path] = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        assert ["0"] == await take(reader, 1)
        for _ in range(2):
            with pytest.raises(errors.LedgerError, match=f"^{path} is damaged"):
                await anext(reader)


def token(positions: dict[int, int], topic: str = "orders") -> PositionToken:
    return PositionToken(topic, TOPIC_ID, "5" * 32, positions, list(positions), [])


async def test_a_checkpoint_consumer_resumes_at_its_own_positions(cluster):
    cluster.store_records(records("0", "1"))
    cluster.store_records(records("2", "3"))
    async with (
        cluster.leader(
            grants=[Grant(segment=0, generation=1, first_hash=0, last_hash=9, start_offset=3, start_chunk=2)]
        ),
        consumer(cluster, type="CHECKPOINT", positions=token({0: 1}).encode()) as reader,
    ):
        assert ["1", "2"] == await take(reader, 2)
        assert {0: 3} == decode_positions(reader.positions).positions
        record = await anext(reader)
        with pytest.raises(errors.HeadgateError, match="does not acknowledge"):
            await reader.acknowledge(record)


@pytest.mark.parametrize("given", ["x", 3, [], {"offset": 1}, {"topic": "bills"}], ids=str)
async def test_only_a_record_that_was_delivered_can_be_acknowledged(given, cluster):
    cluster.store_records(records("0", "1"))
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        record = await anext(reader)
        with pytest.raises((TypeError, errors.ConfigError), match=r"is no ConsumedRecord|not delivered a record at"):
            await reader.acknowledge(msgspec.structs.replace(record, **given) if isinstance(given, dict) else given)


async def test_nothing_is_acknowledged_or_asked_for_once_a_consumer_is_closed_or_leaves(cluster):
    cluster.store_records([Record(b"key", b"0", 1)])
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        record, leader.answers = await anext(reader), False
        closing = asyncio.create_task(reader.close())
        for _ in range(2):
            await asyncio.sleep(1)
            for use in (lambda: reader.acknowledge(record), reader.flush, reader.caught_up):
                with pytest.raises(errors.HeadgateError, match="this consumer is closed"):
                    await use()
            await asyncio.wait([closing], timeout=60)
        with pytest.raises(errors.HeadgateError, match="opened before"):
            await reader.__aenter__()


async def test_a_consumer_has_no_positions_before_it_is_entered():
    with pytest.raises(errors.HeadgateError, match="no positions before it is entered"):
        _ = consumer(ScriptedCluster(), type="CHECKPOINT").positions


async def test_every_registration_carries_balance_and_capacity(cluster):
    async with cluster.leader() as leader:
        async with consumer(cluster):
            assert (None, 100) == (registration(leader).balance, registration(leader).capacity)
        async with consumer(cluster, balance="load", capacity=2.5):
            assert ("load", 250) == (registration(leader).balance, registration(leader).capacity)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"start": "beginning"}, "start='beginning': use 'earliest' or 'latest'$"),
        ({"order": "loose"}, "order='loose': use 'strict' or 'none', or omit it"),
        ({"balance": "weight"}, "balance='weight': use 'count' or 'load', or omit it"),
        ({"connect_timeout_seconds": math.nan}, "connect_timeout_seconds=nan: use 0.001 to 31536000 seconds"),
        *(({"capacity": capacity}, "capacity") for capacity in (0, 11.0, math.nan, "1")),
        ({"capacity": 2.0, "balance": "count"}, "capacity=2 has no effect with balance"),
        ({"behind": "continue"}, "only for type CHECKPOINT"),
        ({"positions": token({0: 1}).encode()}, "CHECKPOINT"),
        (
            {"type": "CHECKPOINT", "positions": token({0: 1}, "other").encode()},
            "they are of topic 'other', not of 'orders'",
        ),
    ],
)
async def test_an_unknown_value_is_refused_before_connecting_and_lists_the_choices(wrong: dict, text: str):
    with pytest.raises(errors.ConfigError, match=text):
        consumer(ScriptedCluster(), **wrong)


async def test_only_a_consumer_of_stored_records_opens_the_ledger_with_a_client_of_its_own():
    where = {"topic": "orders", "subscription": "billing"}

    assert Consumer(client_config(), **where)._client.store is not None
    with pytest.raises(errors.HeadgateError, match="this client has no object store"):
        _ = ExternalConsumer(client_config(), **where)._member._client.store


# Acknowledging


async def test_a_sealed_segment_is_not_read_beyond_its_end(cluster):
    cluster.store_records(records(*"01"))
    async with cluster.leader(grants=[grant(end_offset=2)]) as leader, consumer(cluster) as reader:
        assert ["0", "1"] == await take(reader, 2)
        await asyncio.sleep(1.5)
        reads = cluster.store.calls["read"]
        cluster.store_records(records("2"), leader)
        await asyncio.sleep(5)
        assert reads == cluster.store.calls["read"]
        assert await reader.caught_up()


async def test_a_consumer_tolerates_a_missing_right_for_half_a_minute_and_then_raises(cluster):
    cluster.store_records(records(*"01"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        leader.refused["Heartbeat"] = leader.refused["RegisterConsumer"] = "forbidden"
        await asyncio.sleep(20)
        leader.announce()
        await take(reader, 1)
        leader.refused.clear()
        await asyncio.sleep(20)
        assert [0] == reader.segments
        leader.refused["Heartbeat"] = "forbidden"
        await take(reader, 1)
        await asyncio.sleep(30)
        with pytest.raises(errors.RequestRejectedError, match="scripted forbidden"):
            async with asyncio.timeout(20):
                await anext(reader)


@pytest.mark.parametrize(
    ("acknowledges", "at_work", "revoke_timeout", "limit"),
    [(2, 0, 30, 20), (2, 1, 30, 21), (0, 1, 30, 20), (0, 1, 300, 290), (0, 1, 3, 2)],
)
async def test_a_revocation_is_confirmed_once_acknowledgements_are_stored_or_at_its_limit(
    cluster, acknowledges, at_work, revoke_timeout, limit
):
    """They have a second more if records were still at work until then."""
    cluster.store_records(records(*"012"))
    async with cluster.leader(grants=[grant()]) as leader:
        leader.refused["AcknowledgeBatch"], leader.revoke_timeout_seconds = "forbidden", revoke_timeout
        async with consumer(cluster) as reader:
            await take(reader, acknowledges, acknowledge=True)
            await take(reader, at_work)
            leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
            await asyncio.sleep(limit - 0.1)
            assert [] == leader.seen(ConfirmRevoked)
            await asyncio.sleep(0.3)
            assert 1 == len(leader.seen(ConfirmRevoked))
            if acknowledges:
                with pytest.raises(errors.AcknowledgementsNotStoredError, match="segment 0: offsets 0 to 1") as raised:
                    await reader.flush(0)
                assert {0: ((0, 2),)} == raised.value.offsets


async def test_a_negative_acknowledgement_that_cannot_be_stored_counts_as_the_loss_of_its_holder(cluster):
    """The leader does not hear that a segment was handed back in order, so it counts the delivery as failed."""
    cluster.store_records(records("0"))
    for revoked in ([Revocation(segment=0, generation=1)], []):
        async with cluster.leader(grants=[grant()]) as leader:
            leader.refused["AcknowledgeBatch"] = "forbidden"
            with pytest.raises(errors.AcknowledgementsNotStoredError):  # noqa: PT012
                async with consumer(cluster, type="QUEUE") as reader:
                    await reader.negative_acknowledge(await anext(reader))
                    leader.push(registration(leader), revoked=revoked)
                    await asyncio.sleep(25)
            assert [] == leader.seen(ConfirmRevoked)
            assert [True] == [each.failed for each in leader.seen(LeaveConsumer)]


@pytest.mark.parametrize("ending", ["block", "close", "exception"])
async def test_closing_says_which_acknowledgements_are_not_stored(ending, cluster, caplog):
    """The network is cut at the end of a program that has acknowledged everything."""
    cluster.store_records(records(*"012"))
    async with cluster.leader(grants=[grant()]) as leader:
        expected = ZeroDivisionError if ending == "exception" else errors.AcknowledgementsNotStoredError
        with pytest.raises(expected) as raised:  # noqa: PT012
            async with consumer(cluster) as reader:
                await take(reader, 1, acknowledge=True)
                await reader.flush()
                await take(reader, 2, acknowledge=True)
                leader.answers = False
                if ending == "exception":
                    1 / 0  # noqa: B018
                if ending == "close":
                    await reader.close()
        if ending != "exception":
            assert {0: ((1, 3),)} == raised.value.offsets
        assert "segment 0: offsets 1 to 2" in caplog.text


async def test_an_acknowledgement_waits_while_too_many_are_collected(cluster):
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]), consumer(cluster) as reader:
        capacity = asyncio.Event()
        reader._acknowledger.wait_for_capacity = capacity.wait
        acknowledging = asyncio.create_task(reader.acknowledge(await anext(reader)))
        await asyncio.sleep(60)
        assert not acknowledging.done()
        capacity.set()
        await acknowledging


async def test_closing_ends_a_wait_for_records_at_once_and_gives_a_silent_leader_five_seconds_twice(cluster, caplog):
    """For the last acknowledgements, and for leaving. Nothing is sent afterwards."""
    loop = asyncio.get_running_loop()
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]) as leader, cluster.client() as client:
        with pytest.raises(errors.AcknowledgementsNotStoredError):  # noqa: PT012
            async with Consumer(client, topic="orders", subscription="billing") as reader:
                await take(reader, 1, acknowledge=True)
                waiting = asyncio.create_task(anext(reader))
                await asyncio.sleep(0.01)
                leader.answers = False
                began = loop.time()
                waiting.add_done_callback(lambda _: ended.append(loop.time()))
                ended: list[float] = []
        assert loop.time() == pytest.approx(began + 10, abs=0.01)
        assert ended == pytest.approx([began], abs=0.01)
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert "consumer.acknowledgements_not_stored" in caplog.text
        assert [] == [task for task in asyncio.all_tasks() if task.get_name().startswith(reader.name)]
        async with cluster.leader(2) as successor:
            await asyncio.sleep(30)
            assert [] == successor.requests


# Revocations


async def test_a_revocation_is_confirmed_after_every_delivered_record_is_acknowledged(cluster):
    cluster.store_records(records(*"012"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        first = await anext(reader)
        leader.push(registration(leader), revoked=[Revocation(segment=0, generation=1)])
        await asyncio.sleep(0.1)
        await nothing_more(reader)
        assert [] == leader.seen(ConfirmRevoked)
        await reader.acknowledge(first)
        await asyncio.sleep(0.5)
        assert [[(0, 1)]] == [each.released for each in leader.seen(ConfirmRevoked)]
        kinds = [type(request.body) for request in leader.requests]
        assert kinds.index(AcknowledgeBatch) < kinds.index(ConfirmRevoked)
        assert [(0, 1, 1)] == acknowledged(cluster)
        assert [] == reader.segments


@pytest.mark.parametrize("finals", [[True], [False, True]], ids=["alone", "in the turn of another one"])
async def test_a_final_revocation_stops_at_once_without_a_confirmation(cluster, finals):
    """A program that was busy reads several messages in one turn of its loop."""
    cluster.store_records(records(*"012"))
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        await take(reader, 1)
        for final in finals:
            named, revoked = registration(leader), [Revocation(segment=0, generation=1, final=final)]
            who = {each: getattr(named, each) for each in ("topic", "subscription", "consumer", "incarnation")}
            reader._membership._on_push(AssignmentChanged(**who, leader_epoch=1, revoked=revoked))
        await asyncio.sleep(0.1)
        await nothing_more(reader)
        assert [] == leader.seen(ConfirmRevoked)
        assert [] == reader.segments


async def test_revocations_that_are_finished_together_are_confirmed_together(cluster):
    grants = [grant(segment, generation=segment + 1) for segment in range(4)]
    async with cluster.leader(grants=grants) as leader, consumer(cluster) as reader:
        revoked = [Revocation(segment=each.segment, generation=each.generation) for each in grants]
        leader.answers = False
        leader.push(registration(leader), revoked=revoked[:2])
        await asyncio.sleep(0.1)
        # The first request is under way.
        for each in revoked[2:]:
            leader.push(registration(leader), revoked=[each])
        await asyncio.sleep(0.1)
        assert [[(0, 1), (1, 2)]] == [each.released for each in leader.seen(ConfirmRevoked)]
        assert [0, 1, 2, 3] == reader.segments

        leader.answers = True
        await asyncio.sleep(5)

        assert [(2, 3), (3, 4)] == leader.seen(ConfirmRevoked)[-1].released
        assert {((0, 1), (1, 2)), ((2, 3), (3, 4))} == {tuple(each.released) for each in leader.seen(ConfirmRevoked)}
        assert [] == reader.segments


async def test_one_request_confirms_250_revocations_at_most(cluster):
    async with cluster.leader() as leader, consumer(cluster):
        leader.push(registration(leader), revoked=[Revocation(segment=n, generation=n + 1) for n in range(501)])
        await asyncio.sleep(1)
        confirmed = [each.released for each in leader.seen(ConfirmRevoked)]
        assert [250, 250, 1] == [len(each) for each in confirmed]
        assert [(n, n + 1) for n in range(501)] == [pair for each in confirmed for pair in each]


async def test_a_forged_head_delays_reading_once(cluster):
    """Otherwise the consumer would read each later chunk only when it polls."""
    async with cluster.leader(grants=[grant()]) as leader, consumer(cluster) as reader:
        forged = HeadAnnouncement(shard=0, leader_epoch=1, head=2**62)
        leader.transport.publish(head_topic(CLUSTER, 0), codec.encode(forged))
        await asyncio.sleep(5.5)
        for value in (b"0", b"1"):
            began = asyncio.get_running_loop().time()
            cluster.store_records([Record(b"key", value, 1)], leader)
            assert [value.decode()] == await take(reader, 1)
            assert 0.1 > asyncio.get_running_loop().time() - began
            await asyncio.sleep(0.37)


# Every request that rests on what a consumer has read says what that was.


class Silent:
    """A client of a cluster without a leader. It notes what it is asked to send."""

    def __init__(self) -> None:
        self.sent: list[ReaderRequest] = []
        self.cluster_watch = SimpleNamespace(ledger=b"")

    async def request(self, shard: int, body: ReaderRequest, *_: object) -> None:
        self.sent.append(body)
        raise errors.NoLeaderError(f"no leader of shard {shard}")


async def test_a_leader_of_another_history_can_refuse_whatever_comes_first() -> None:
    client = Silent()
    options = ConsumerOptions(SubscriptionType.STREAM, "latest", None, None, 1.0, False, "error")
    requests = ConsumerRequests(client, topic="orders", subscription="billing", consumer="c", options=options)
    requests.history.add(7, 11)
    resuming = ResumingKey(segment=0, generation=1, key=b"k", parking=1, topic="d", number=1, last=1, stored=1)
    record = ConsumedRecord("orders", SegmentId(0), Offset(0), b"k", b"", 0, Generation(1))
    for asked in (
        requests.register({}, 1.0),
        requests.heartbeat([], []),
        requests.acknowledge(AcknowledgementBatch(), 1),
        requests.begin([]),
        requests.park(record, "why", 0),
        requests.unpark(resuming),
        requests.confirm_dead_letters([]),
    ):
        with contextlib.suppress(errors.NoLeaderError):
            await asked

    assert {kind.__name__: [(7, 11)] for kind in ReaderRequest.__subclasses__()} == {
        type(body).__name__: body.history for body in client.sent
    }


@pytest.mark.parametrize("suspension", range(4))
async def test_a_consumer_whose_close_is_cancelled_anywhere_tells_what_it_loses_and_disconnects(suspension, cluster):
    @types.coroutine
    def cancelled(work):
        for _ in range(suspension):
            yield work.send(None)
        work.send(None)
        yield  # A task that it has spawned begins.
        yield work.throw(asyncio.CancelledError())
        yield from work

    lost = []
    cluster.store_records(records("0"))
    async with cluster.leader(grants=[grant()]):
        reader = await consumer(cluster, on_revoked=lambda *gone: lost.append(gone)).__aenter__()
        cluster.store.latency_seconds = 9, 9  # chunk 1 is loading when it is closed
        await asyncio.sleep(2)
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled(reader.close())
        assert (False, [([0], 20.0)]) == (reader._client.entered, lost)
