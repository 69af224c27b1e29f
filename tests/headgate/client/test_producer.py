"""The producer with a scripted leader, over a broker in memory, in virtual time."""

import asyncio
import math

import pytest

from headgate import errors
from headgate.client.producer import PAUSE_BYTES, Producer, RecordMetadata
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import MAX_PARTS, RECORD_OVERHEAD_BYTES
from headgate.ledger.chunk import decode_records
from headgate.ledger.objects import chunk_folder, chunk_name
from headgate.model.layout import shard_of
from headgate.protocol.requests import ProduceBatch
from tests.support.fakes.scripted_leader import TOPIC_ID, ScriptedCluster, ScriptedLeader, send_all
from tests.support.samples.chunks import record_rows
from tests.support.waiting import until

"""Every record is a batch of its own."""


async def test_records_are_stored_in_order_and_deliveries_return_their_offsets(cluster):
    async with cluster.leader(), Producer(cluster.client()) as producer:
        deliveries = await send_all(producer, 5)
        places = [await delivery for delivery in deliveries]

    assert [RecordMetadata(0, n, duplicate=False, topic_id=TOPIC_ID) for n in range(5)] == places
    assert [b"0", b"1", b"2", b"3", b"4"] == cluster.stored


async def test_send_and_wait_returns_where_the_record_is_stored_and_raises_what_a_delivery_raises(cluster):
    async with cluster.leader() as leader, Producer(cluster.client()) as producer:
        assert RecordMetadata(0, 0, duplicate=False, topic_id=TOPIC_ID) == await producer.send_and_wait(
            "orders", b"key", b"0"
        )
        assert RecordMetadata(0, 1, duplicate=False, topic_id=TOPIC_ID) == await producer.send_and_wait(
            "orders", b"key", b"1"
        )
        assert [b"0", b"1"] == cluster.stored
        leader.script.append("invalid")
        leader.refused["ListTopics"] = "forbidden"
        with pytest.raises(errors.RequestRejectedError, match="scripted invalid"):
            await producer.send_and_wait("orders", b"key", b"2")


async def test_offsets_follow_the_key_if_a_batch_spans_several_segments():
    cluster = ScriptedCluster(segments=4)
    keys = [f"key-{n}".encode() for n in range(40)]
    async with cluster.leader(), Producer(cluster.client()) as producer:
        deliveries = [await producer.send("orders", key, key) for key in keys]
        places = [await delivery for delivery in deliveries]

    found = {}
    for number in range(1, cluster.ledger.head + 1):
        data = cluster.store.objects[f"{chunk_folder(0)}/{chunk_name(number)}"]
        for row in record_rows(decode_records(data, shard=0, number=number)[1]):
            found[row["key"]] = (row["segment"], row["offset"])
    assert [found[key] for key in keys] == [(place.segment, place.offset) for place in places]
    assert 4 == len({place.segment for place in places})


@pytest.mark.parametrize("count", [0, 1, 5000])
async def test_many_records_are_stored_like_as_many_single_ones_in_few_batches(cluster, count: int):
    keys, values = [b"%d" % (n % 7) for n in range(count)], [b"%d" % n for n in range(count)]
    async with cluster.leader() as leader, Producer(cluster.client()) as producer:
        first = await producer.send("orders", b"k", b"first")
        many = await producer.send_many("orders", keys, values, timestamps_ms=list(range(count)))
        last = await producer.send("orders", b"k", b"last")
        await many
        places = [await each for each in many]
        assert many.done()
        assert count == len(many)
        assert list(range(count + 2)) == [each.offset for each in (await first, *places, await last)]
        batches = leader.seen(ProduceBatch)
    assert [b"first", *values, b"last"] == cluster.stored
    records = [record for batch in batches for record in batch.records]
    assert [*zip(keys, range(count), strict=True)] == [(each.key, each.timestamp_ms) for each in records[1:-1]]
    assert all(len(each.records) <= MAX_PARTS for each in batches)
    assert len(batches) <= 1 + count // 500
    assert 0 == producer.metrics().buffered_bytes


@pytest.mark.parametrize(
    ("keys", "values", "times", "error"),
    [
        ([b"k"], [], None, "lists of different lengths: 1, 0"),
        ([b"k"], [b""], [], "lists of different lengths: 1, 1, 0"),
        ([b"k", b""], [b"", b""], None, "the key is empty"),
        ([b"k", "k"], [b"", b""], None, "must be bytes, not str"),
        ([b"k", b"k"], [b"", bytes(2**20)], None, "above the limit of"),
        ([b"k", b"k"], [b"", b""], [0, -1], "timestamp_ms=-1 is no integer"),
        ([b"k", b"k"], [b"", b""], [0, 1.5], "timestamp_ms=1.5 is no integer"),
    ],
)
async def test_of_many_records_with_an_invalid_one_none_is_sent(cluster, keys, values, times, error: str):
    async with cluster.leader() as leader, Producer(cluster.client()) as producer:
        with pytest.raises((errors.ConfigError, errors.RequestRejectedError, TypeError), match=error):
            await producer.send_many("orders", keys, values, timestamps_ms=times)
        await producer.flush()
        assert [] == leader.seen(ProduceBatch)


async def test_many_records_wait_for_space_and_raise_for_the_first_one_that_is_not_stored(cluster):
    settings = ProducerSettings(buffer_bytes=50_000, guaranteed_bytes=50_000, delivery_timeout_seconds=20)
    many = [b"k"] * 3000, [b"%d" % n for n in range(3000)]
    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await (await producer.send_many("orders", *many))
        assert many[1] == cluster.stored
        leader.script.append("invalid")
        refused = await producer.send_many("orders", [b"k"] * 3, [b"a", b"b", b"c"])
        with pytest.raises(errors.RequestRejectedError, match="scripted invalid"):
            await refused
    async with Producer(cluster.client("without-leader"), settings=settings) as producer:
        with pytest.raises(errors.DeliveryFailedError, match="no buffer space"):
            await producer.send_many("orders", *many)


async def test_records_of_one_loop_turn_share_a_batch(cluster):
    async with cluster.leader() as leader, Producer(cluster.client()) as producer:
        await send_all(producer, 100)
        await producer.flush()
        assert [100] == [len(batch.records) for batch in leader.seen(ProduceBatch)]


@pytest.mark.parametrize("batch_bytes", [4 * 100, 4 * 100 + 50], ids=["full to the last byte", "one more does not fit"])
async def test_sending_without_a_pause_yields_to_the_loop_between_batches(batch_bytes, cluster):
    """Each turn reads one reply; without turns the window stays closed while the buffer fills. A turn never splits a batch."""
    settings = ProducerSettings(batch_bytes=batch_bytes)
    turns: set[int] = set()
    sent = 0

    def turn() -> None:
        turns.add(sent)
        if sent < 24:
            asyncio.get_running_loop().call_soon(turn)

    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await producer.open("orders")
        turn()
        for number in range(1, 25):
            sent = number
            await producer.send("orders", b"k", b"v" * (100 - RECORD_OVERHEAD_BYTES - 1))
        await producer.flush()
        sizes = [len(batch.records) for batch in leader.seen(ProduceBatch)]
        assert [4, 4, 16] == sizes, "the second one waits for the reply to the first one, so the third one grows"
    assert {0, 5, 9, 24} == turns, "at the first record of each batch but the first, and at the end"


@pytest.mark.parametrize(("busy_records", "waits"), [(3, False), (8, True)], ids=["little", "much"])
async def test_a_batch_that_may_grow_waits_until_as_much_was_answered(busy_records, waits, cluster):
    """It does not wait until nothing is unanswered: a busy topic would hold back all others of its shard."""
    settings = ProducerSettings(batch_bytes=100)
    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await producer.send_and_wait("orders", b"k", b"first")
        leader.script.extend(["silent"] * busy_records)
        for _ in range(busy_records):
            await producer.send("orders", b"k", b"v" * (100 - RECORD_OVERHEAD_BYTES - 1))
        leader.script.extend(["accept"] * 10)
        waiting = await producer.send("others", b"k", b"v")
        await asyncio.sleep(0.05)
        assert waits is not any(batch.topic == "others" for batch in leader.seen(ProduceBatch))
        await waiting


async def test_a_cancelled_send_reserves_no_bytes_and_sends_nothing(cluster):
    """A caller that cancels `send` repeatedly must not use up the buffer, and may send the record again."""
    settings, ended = ProducerSettings(batch_bytes=100), 0
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        await producer.open("orders")
        for turns in range(1, 5):
            await producer.send("orders", b"k", b"v" * 100)
            sending = asyncio.ensure_future(producer.send("orders", b"k", bytes(PAUSE_BYTES)))
            for _ in range(turns):
                await asyncio.sleep(0)
            ended += not sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await producer.flush()
        assert 0 == producer.metrics().buffered_bytes
    assert 0 < ended < 4, "it lets the loop turn"
    assert 4 + ended == len(cluster.stored)


async def test_linger_delays_a_batch_until_more_records_arrive(cluster):
    settings = ProducerSettings(linger_seconds=0.5)
    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await producer.send("orders", b"key", b"first")
        await asyncio.sleep(0.4)
        assert [] == leader.seen(ProduceBatch)
        await producer.send("orders", b"key", b"second")
        await asyncio.sleep(0.2)
        assert [2] == [len(batch.records) for batch in leader.seen(ProduceBatch)]


# Names and positions


async def test_a_batch_carries_the_position_of_its_last_record(cluster):
    async with cluster.leader(), Producer(cluster.client(), name="loader") as producer:
        await producer.open("orders")
        for n in range(3):
            await producer.send("orders", b"key", b"value", source_position=f"line {n}".encode())
        await producer.flush()
    assert [b"line 2"] == cluster.positions


@pytest.mark.parametrize(("verdict", "error"), [("fenced", errors.FencedError), ("forgotten", errors.ForgottenError)])
async def test_a_producer_that_is_fenced_or_whose_name_was_deleted_raises_on_every_path(verdict, error, cluster):
    async with cluster.leader() as leader, Producer(cluster.client(), name="loader") as producer:
        leader.script.append(verdict)
        for _ in range(2):
            with pytest.raises(error, match=f"scripted {verdict}"):
                await (await producer.send("orders", b"key", b"value"))
        with pytest.raises(error, match=f"scripted {verdict}"):
            await producer.open("orders")
        assert 2 == producer.metrics().rejected_records
    assert [] == cluster.stored


@pytest.mark.parametrize("verdict", ["fenced", "forgotten"])
async def test_a_named_producer_that_ends_on_one_shard_ends_on_all(verdict):
    """On the others too it is the older program, or has lost its position; it must not continue half alive."""
    cluster = ScriptedCluster(shards=3)
    topics = [next(f"t{n}" for n in range(100) if shard_of(f"t{n}", 3) == shard) for shard in range(3)]
    other = ScriptedLeader(cluster, 1, 1)
    await other.start()
    async with cluster.leader() as leader, Producer(cluster.client(), name="loader") as producer:
        leader.script.extend(["accept", "drop"])
        await producer.send_and_wait(topics[0], b"key", b"stored")
        in_flight = await producer.send(topics[0], b"key", b"no reply")
        unsent = asyncio.create_task(producer.open(topics[2]))
        other.script.append(verdict)
        for send in (producer.send_and_wait(topics[1], b"key", b"value"), in_flight, unsent):
            with pytest.raises(errors.RequestRejectedError, match=f"scripted {verdict}") as caught:
                await send
            assert verdict == caught.value.verdict
        for topic in topics:
            with pytest.raises(errors.RequestRejectedError, match=f"scripted {verdict}"):
                await producer.send_and_wait(topic, b"key", b"later")
    await other.transport.__aexit__(None, None, None)


async def test_an_identity_that_is_refused_raises_at_open(cluster):
    async with cluster.leader() as leader, Producer(cluster.client(), name="loader") as producer:
        leader.refused["OpenProducer"] = "fenced"
        with pytest.raises(errors.FencedError):
            await producer.open("orders")


# Bad input and back-pressure


async def test_send_refuses_an_oversized_record_with_its_size_and_the_limit(cluster):
    settings = ProducerSettings(max_record_bytes=10)
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        with pytest.raises(errors.RequestRejectedError, match=r"11 bytes .* limit of 10"):
            await producer.send("orders", b"key", b"12345678")
        await (await producer.send("orders", b"key", b"1234567"))
        assert 0 == producer.metrics().buffered_bytes


async def test_only_a_program_that_copies_sends_headers_of_headgate(cluster):
    own = {"headgate-reason": b"too late"}
    async with cluster.leader() as leader:
        async with Producer(cluster.client()) as producer:
            with pytest.raises(
                errors.RequestRejectedError, match="topic 'orders': the record has the header 'headgate-reason'"
            ):
                await producer.send("orders", b"k", b"v", headers=own)
        async with Producer(cluster.client("copy"), settings=ProducerSettings(reserved_headers=True)) as producer:
            await producer.send_and_wait("orders", b"k", b"v", headers=own)
        assert [True] == [batch.reserved_headers for batch in leader.seen(ProduceBatch)]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"timestamp_ms": -1}, {"timestamp_ms": 2**63}, {"source_position": b"x" * 1025}),
        *({"headers": {"": b""}}, {"headers": [("a", b"")] * 65}, {"headers": {"\ud800": b""}}),
    ],
    ids=str,
)
async def test_send_refuses_what_would_invalidate_a_whole_batch(wrong, cluster):
    async with cluster.leader(), Producer(cluster.client()) as producer:
        with pytest.raises(errors.RequestRejectedError):
            await producer.send("orders", b"key", b"value", **wrong)


@pytest.mark.parametrize("name", [None, "loader"])
async def test_a_source_position_needs_a_name_and_an_open_topic(cluster, name):
    """Without the position where to continue, and the id of the topic, records would be stored twice or skipped."""
    async with cluster.leader(), Producer(cluster.client(), name=name) as producer:
        for opens in (False, True):
            if opens:
                await producer.open("orders" if name is None else "returns")
            with pytest.raises(
                errors.RequestRejectedError, match=r"topic 'orders' was not opened: .* call open\(topic\)"
            ):
                await producer.send("orders", b"key", b"value", source_position=b"1")


async def test_send_refuses_text_instead_of_bytes_and_an_empty_key(cluster):
    async with cluster.leader(), Producer(cluster.client(), "loader") as producer:
        with pytest.raises(errors.RequestRejectedError, match="the key is empty"):
            await producer.send("orders", b"", b"value")
        with pytest.raises(TypeError, match="key and value must be bytes, not str and bytes"):
            await producer.send("orders", "key", b"value")
        await producer.open("orders")
        with pytest.raises(TypeError, match="source_position must be bytes, not str"):
            await producer.send("orders", b"key", b"value", source_position="1")


@pytest.mark.parametrize("name", ["no/slashes", None, b"orders", "x" * 1000], ids=lambda name: repr(name)[:12])
async def test_send_refuses_an_invalid_topic_name(cluster, name):
    async with cluster.leader(), Producer(cluster.client()) as producer:
        with pytest.raises(errors.InvalidNameError, match=r"topic name .{1,130}: use 1 to 100 letters"):
            await producer.send(name, b"key", b"value")


async def test_names_may_be_of_a_subclass_of_str(cluster):
    """No encoder takes one, and the error would be raised in the loop: the records of a shard would wait forever."""
    subclass = type("Subclass", (str,), {})("orders")
    async with cluster.leader(), Producer(cluster.client()) as producer, asyncio.timeout(10):
        for topic in (subclass, "orders", subclass):
            await producer.send_and_wait(topic, b"key", b"value")
            await (await producer.send_many(topic, [b"key"], [b"value"]))
    assert 6 == len(cluster.stored)


async def test_send_fails_at_once_with_when_full_fail(cluster):
    settings = ProducerSettings(batch_bytes=1, buffer_bytes=300, guaranteed_bytes=100, when_full="fail")
    async with cluster.leader() as leader, Producer(cluster.client(), settings=settings) as producer:
        await (await producer.send("orders", b"key", b"probe"))
        leader.script.extend(["delay"] * 5)
        for _ in range(3):
            await producer.send("orders", b"key", b"x" * 50)
        with pytest.raises(errors.DeliveryFailedError, match="buffer_bytes=300"):
            await producer.send("orders", b"key", b"x" * 50)


async def test_a_missing_cluster_is_a_clear_error(cluster):
    with pytest.raises(
        errors.NoLeaderError, match=r"found no daemon of cluster 'test' through the broker \(waited 5 s\)"
    ):
        async with Producer(cluster.client(), connect_timeout_seconds=5):
            pass
    assert [] == cluster.broker.connected()


async def test_time_outs_of_a_producer_are_checked_before_anything_happens(cluster):
    with pytest.raises(errors.ConfigError, match="connect_timeout_seconds=nan: use"):
        Producer(cluster.client(), connect_timeout_seconds=math.nan)
    async with cluster.leader(), Producer(cluster.client()) as producer:
        with pytest.raises(errors.ConfigError, match="close: timeout_seconds=-1: use 0 to"):
            await producer.close(timeout_seconds=-1)
        await producer.send_and_wait("orders", b"k", b"v")


async def test_a_record_above_the_brokers_limit_is_refused_and_takes_no_other_with_it(cluster):
    """The broker ends the connection of a client that sends a larger packet, again at each repetition."""
    cluster.broker.max_packet_bytes = 40_000
    lost: list[bool] = []
    async with cluster.leader(), Producer(cluster.client()) as producer:
        producer._client.cluster_watch.connection_handlers.add(lost.append)
        sent = [await producer.send("t", b"k", b"%05d" % number + bytes(5_000)) for number in range(20)]
        with pytest.raises(errors.RequestRejectedError, match="the broker's limit of packets"):
            await producer.send("t", b"k", bytes(40_000))
        await producer.send_and_wait("t", b"k", bytes(30_000))
        for delivery in sent:
            await delivery
        assert not lost

    assert len(cluster.stored) == 21
    assert [b"%05d" % number for number in range(20)] == [value[:5] for value in cluster.stored[:20]]


# Invalid settings of a producer are refused when they are made.


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (
            {"delivery_timeout_seconds": 3, "request_timeout_seconds": 3, "linger_seconds": 0.1},
            "delivery_timeout_seconds=3 .*linger_seconds=0.1 .*request_timeout_seconds=3",
        ),
        ({"guaranteed_bytes": 2000, "buffer_bytes": 1000}, "guaranteed_bytes=2000 .*buffer_bytes=1000"),
        ({"batch_bytes": 3_000_000}, "batch_bytes=3000000"),
        ({"max_record_bytes": 2_000_000}, "max_record_bytes=2000000"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"buffer_bytes": math.nan}, "buffer_bytes=nan has to be an integer"),
        ({"batch_bytes": "1"}, "batch_bytes=.1. has to be an integer"),
        ({"linger_seconds": -1}, "linger_seconds=-1"),
        ({"linger_seconds": math.nan}, "linger_seconds=nan: use 0 to 31536000"),
        ({"request_timeout_seconds": math.nan}, "request_timeout_seconds=nan: use"),
        ({"delivery_timeout_seconds": math.inf}, "delivery_timeout_seconds=inf: use 0.001 to 31536000 seconds"),
        ({"request_timeout_seconds": 1e-320}, "request_timeout_seconds=.* use 0.001 to"),
        ({"when_full": "drop"}, "when_full='drop'"),
    ],
)
def test_invalid_settings_are_refused_with_their_values(settings, names):
    with pytest.raises(errors.ConfigError, match=names):
        ProducerSettings(**settings)


# A producer with a scripted leader, in virtual time: when records expire, and what closing reports.


SHORT = ProducerSettings(batch_bytes=1, request_timeout_seconds=1, delivery_timeout_seconds=3, max_in_flight=2)


async def test_records_of_several_topics_expire_at_their_own_deadlines(cluster):
    """Batches that wait for their turn expire, too, and none earlier than its records."""
    settings = ProducerSettings(request_timeout_seconds=1, delivery_timeout_seconds=10)
    loop = asyncio.get_running_loop()
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        await producer.open("orders")
        cluster.broker.stop()
        outcomes = []
        for _ in range(100):
            for topic in ("orders", "payments", "returns"):
                delivery = await producer.send(topic, b"key", b"value", headers={"trace": b"1"})
                outcomes.append(asyncio.ensure_future(_timed_outcome(delivery, loop.time())))
            await asyncio.sleep(0.03)
        results = await asyncio.gather(*outcomes)

    assert {errors.DeliveryFailedError} == {type(what) for what, _ in results}
    assert all(10 <= after < 10.02 for _, after in results)
    assert 0 == producer.metrics().buffered_bytes


@pytest.mark.parametrize("buffer", [{}, {"buffer_bytes": 4000, "guaranteed_bytes": 2000}], ids=["large", "small"])
async def test_records_are_stored_in_the_order_of_the_calls_whatever_a_call_waits_for(buffer, cluster):
    """For its topic, for a turn of the loop, for another call, or for buffer space. Later calls come in between."""
    settings, values, calls = ProducerSettings(batch_bytes=1000, **buffer), [b"%d" % n for n in range(4501)], []
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        for number in range(2500):
            calls.append(asyncio.create_task(producer.send("orders", b"k", values[number])))
            if number >= 1000:
                await (calls[0] if number == 1000 else asyncio.sleep(0))
        calls.append(asyncio.create_task(producer.send_many("orders", [b"k"] * 2000, values[2500:4500])))
        for sent in await asyncio.gather(*calls, producer.send("orders", b"k", values[4500])):
            await sent

    assert values == cluster.stored


async def test_a_record_that_waits_for_buffer_space_precedes_those_that_are_sent_once_there_is_some(cluster):
    settings = ProducerSettings(buffer_bytes=300, guaranteed_bytes=1)
    async with cluster.leader(), Producer(cluster.client(), settings=settings) as producer:
        first = await producer.send("orders", b"k", bytes(250))
        waits = asyncio.create_task(producer.send("orders", b"k", b"waits"))
        await first
        for sent in (await producer.send("orders", b"k", b"younger"), await waits):
            await sent

    assert [bytes(250), b"waits", b"younger"] == cluster.stored


async def _timed_outcome(delivery, began: float) -> tuple[RecordMetadata | errors.HeadgateError, float]:
    """Return the outcome, and after how many seconds it was known."""
    try:
        outcome = await delivery
    except errors.HeadgateError as error:
        outcome = error
    return outcome, asyncio.get_running_loop().time() - began


async def test_close_with_a_timeout_reports_every_record(cluster):
    settings = ProducerSettings(batch_bytes=1, max_in_flight=2)
    async with cluster.leader() as leader:
        producer = Producer(cluster.client(), settings=settings)
        await producer.__aenter__()
        await (await producer.send("orders", b"key", b"value"))
        leader.answers = False
        deliveries = await send_all(producer, 5)
        began = asyncio.get_running_loop().time()
        report = await producer.close(timeout_seconds=2)
        assert 2 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.1)
    assert (1, 3, 2) == (report.committed_records, report.failed_records, report.unknown_records)
    assert all(delivery.done() for delivery in deliveries)
    assert 0 == producer.metrics().buffered_bytes
    with pytest.raises(errors.HeadgateError):
        await producer.send("orders", b"key", b"late")


async def test_leaving_the_block_flushes(cluster):
    async with cluster.leader():
        async with Producer(cluster.client()) as producer:
            delivery = await producer.send("orders", b"key", b"value")
        assert delivery.done()
        with pytest.raises(errors.HeadgateError, match="opened before"):
            await producer.__aenter__()
    assert [b"value"] == cluster.stored


async def test_an_opening_that_is_cancelled_leaves_nothing_behind_in_a_shared_connection(cluster, monkeypatch):
    async with cluster.leader(), cluster.client() as client, Producer(client) as producer:
        monkeypatch.setattr(client, "watch_leader", lambda _: asyncio.Event().wait())  # The broker does not answer.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.open("orders"), 1)
        assert [] == list(client.cluster_watch.connection_handlers)


async def test_an_opening_ends_when_the_producer_is_closed(cluster):
    async with cluster.leader() as leader:
        leader.answers = False
    async with Producer(cluster.client()) as producer:
        opening = asyncio.create_task(producer.open("orders"))
        await asyncio.sleep(1)
        await producer.close()
        with pytest.raises(errors.HeadgateError, match="the producer was closed"):
            await asyncio.wait_for(opening, 1)


async def test_opening_without_a_leader_is_bounded(cluster):
    async with cluster.leader() as leader, Producer(cluster.client(), settings=SHORT) as producer:
        leader.answers = False
        with pytest.raises(errors.NoLeaderError, match="shard 0 of cluster 'test'"):
            await producer.open("orders")


async def test_a_record_that_expires_names_the_refusal_of_the_broker(cluster):
    client = cluster.client()
    async with cluster.leader() as leader, Producer(client, settings=SHORT) as producer:
        await producer.open("orders")
        cluster.broker.refusal = "the broker refuses user till"
        cluster.broker.drop("client")
        with pytest.raises(
            errors.DeliveryFailedError, match="sent; shard 0: cannot reach the broker: the broker refuses user"
        ):
            await (await producer.send("orders", b"key", b"value"))
        cluster.broker.refusal, leader.answers = None, False
        await until(lambda: client.transport.connected)
        client.cluster_watch.refused("the broker refuses the requests")
        with pytest.raises(
            (errors.DeliveryFailedError, errors.DeliveryUnknownError), match="; shard 0: the broker refuses the requ"
        ):
            await (await producer.send("orders", b"key", b"value"))
        leader.answers = True
        await (await producer.send("orders", b"key", b"value"))
        await until(lambda: client.cluster_watch.refusal is None)
