"""The leader with a broker: verdicts, and nothing is sent before it is durable."""

import asyncio

import pytest

from controller.chunk_writer.group_commit import TermEndedError
from controller.leadership.policy.feature_levels import FIRST, MURMUR_DIGESTS
from controller.leadership.policy.transitions import Event
from controller.settings.sections import IngestSettings
from headgate.protocol import requests
from headgate.protocol.codec import MURMUR_DIGEST_BYTES, SHA_DIGEST_BYTES
from headgate.protocol.replies import Committed
from headgate.protocol.request_fields import MAX_RECORD_BYTES
from tests.support.whole_state import everything
from tests.support.worlds.one_shard import OneShard
from tests.support.worlds.one_shard_programs import RECORDS, batch, created, opened, producing, serving


async def test_a_consumer_is_fenced_only_once_its_successor_is_durable() -> None:
    consumer = {"topic": "orders", "subscription": "s", "consumer": "c"}
    shard = OneShard()
    async with shard.leader(), shard.client() as client:
        await created(client)
        await client.call(requests.RegisterConsumer, **consumer, incarnation=1, subscription_type="STREAM")
        shard.store.freeze()
        client.send(requests.RegisterConsumer, **consumer, incarnation=2, subscription_type="STREAM")
        heartbeat = client.send(requests.Heartbeat, **consumer, incarnation=1)
        await asyncio.sleep(5)
        assert heartbeat not in client.replies
        shard.store.thaw()

        assert "fenced" == (await client.reply(heartbeat)).verdict


async def test_a_refusal_that_ends_a_session_waits_for_a_barrier() -> None:
    """A deposed leader cannot create a chunk, so it cannot say ``fenced`` or ``out_of_order``."""
    shard = OneShard()
    async with shard.leader() as leader, producing(shard) as (client, identity):
        durable = leader.commit.durable
        shard.store.freeze()
        request = client.send(requests.ProduceBatch, **batch(identity, 5))
        await asyncio.sleep(5)
        assert request not in client.replies
        shard.store.thaw()
        rejected = await client.reply(request)
        assert durable + 1 == leader.commit.durable

    assert ("out_of_order", 1) == (rejected.verdict, client.replies[request][0].leader_epoch)


async def test_a_command_past_its_deadline_has_no_effect_and_the_refusal_says_how_old_the_term_is() -> None:
    """A frozen daemon finds such commands in its socket; their clients have reported a failure."""
    shard = OneShard()
    command = {"topic": "orders", "token": "t"}
    async with shard.leader() as leader, shard.client() as client:
        await asyncio.sleep(60)
        refused = await client.call(requests.CreateTopic, **command, max_term_age_ms=50_000)
        assert not leader.state.topics
        created = await client.call(requests.CreateTopic, **command, max_term_age_ms=refused.term_age_ms + 1000)

    assert ("expired", 60_000) == (refused.verdict, pytest.approx(refused.term_age_ms, abs=3000))
    assert "orders" == created.topic.topic


async def test_a_full_queue_refuses_batches_until_it_drains() -> None:
    shard = OneShard(ingest=IngestSettings(queue_bytes=4 * 1024 * 1024))
    async with shard.leader(), producing(shard) as (client, identity):
        shard.store.freeze()
        big = [requests.Record(b"k", b"v" * 1_000_000, 0)] * 3
        sent = [client.send(requests.ProduceBatch, **batch(identity, n, records=big)) for n in range(4)]
        rejected = await client.reply(sent[-1])
        shard.store.thaw()
        assert isinstance(await client.reply(sent[2]), Committed)
        assert isinstance(await client.call(requests.ProduceBatch, **batch(identity, 3, records=big)), Committed)

    assert "unavailable" == rejected.verdict


async def test_a_batch_from_before_the_feature_level_rose_is_recognized_after_it() -> None:
    shard = OneShard()
    async with shard.leader() as leader, producing(shard) as (client, identity):
        for sequence, shard.level in enumerate((FIRST, MURMUR_DIGESTS - 1, MURMUR_DIGESTS)):
            await client.call(requests.ProduceBatch, **batch(identity, sequence))
        repeated = [await client.call(requests.ProduceBatch, **batch(identity, sequence)) for sequence in range(3)]
        other = [
            await client.call(requests.ProduceBatch, **batch(identity, n, records=[requests.Record(b"o", b"", 0)]))
            for n in range(3)
        ]
        finished = leader.state.producers[identity.producer_id].finished

    assert [SHA_DIGEST_BYTES, SHA_DIGEST_BYTES, MURMUR_DIGEST_BYTES] == [len(each.digest) for each in finished]
    assert all(each.duplicate for each in repeated)
    assert {"invalid"} == {each.verdict for each in other}
    assert 3 == shard.registry.get_sample_value("headgate_batch_commit_seconds_count")


async def test_losing_the_broker_for_too_long_ends_the_term() -> None:
    shard = OneShard(ingest=IngestSettings(unreachable_seconds=10))
    async with serving(shard) as (_, task):
        shard.broker.stop()
        with pytest.raises(TermEndedError) as caught:
            await asyncio.wait_for(task, 60)
    assert Event.BROKER_UNREACHABLE is caught.value.event


async def test_nothing_of_a_term_runs_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what replies wait for, nor what subscriptions ask the Spark process."""
    consumer = {"topic": "orders", "subscription": "s", "consumer": "c", "incarnation": 1}
    shard = OneShard()
    async with shard.client() as client:
        others = asyncio.all_tasks()
        async with shard.leader() as leader:
            monkeypatch.setattr(leader.backlogs, "answer", lambda _: asyncio.Event().wait())
            await created(client)
            await client.call(requests.RegisterConsumer, **consumer, subscription_type="STREAM")
            await client.call(requests.ProduceBatch, topic="orders", records=RECORDS)
            await client.call(requests.SplitSegment, topic="orders", segment=0, token="s")
            client.send(requests.DescribeBacklog)
            await asyncio.sleep(5)
            assert {"deferred-0", "drain-poller-orders/s"} <= {each.get_name() for each in asyncio.all_tasks()}
        assert others == asyncio.all_tasks()


async def test_a_bug_in_a_handler_ends_the_term_with_its_own_error() -> None:
    """The callback of the transport does not swallow it."""
    shard = OneShard()
    async with serving(shard) as (leader, task), shard.client() as client:
        leader.state.topics = None  # type: ignore[assignment]
        client.send(requests.CreateTopic, topic="orders", token="t")
        with pytest.raises(ExceptionGroup) as caught:
            await task
    assert isinstance(caught.value.exceptions[0], TypeError)


async def test_a_refused_registration_creates_no_subscription() -> None:
    consumer = {"topic": "orders", "subscription": "s", "consumer": "c1", "incarnation": 1}
    async with OneShard().led() as (leader, client):
        await created(client)
        rejected = await client.call(requests.RegisterConsumer, **consumer, subscription_type="QUEUE", order="strict")
        assert {} == leader.state.topics["orders"].subscriptions

    assert "invalid" == rejected.verdict
    assert "strict" in rejected.reason


async def test_a_leader_checks_the_term_first_and_the_waiting_bytes_last() -> None:
    """The two ends of the verdict table that test_protocol_document.py cannot judge."""
    shard = OneShard(ingest=IngestSettings(queue_bytes=1))
    async with shard.leader(), producing(shard) as (client, identity):
        shard.store.freeze()
        for sequence in range(2):
            client.send(requests.ProduceBatch, **batch(identity, sequence))
            await asyncio.sleep(0.1)
        wrong = {"topic": "nowhere", "records": [requests.Record(b"", bytes(MAX_RECORD_BYTES + 1), 0)]}
        undecodable = await client.call(requests.ProduceBatch, leader_epoch=9, topic="nowhere", records=[])
        elsewhere = await client.call(
            requests.ProduceBatch, **batch(identity, 2, **wrong, leader_epoch=9, max_term_age_ms=0)
        )
        too_late = await client.call(requests.ProduceBatch, **batch(identity, 2, **wrong, max_term_age_ms=0))
        too_large = await client.call(requests.ProduceBatch, **batch(identity, 2, records=wrong["records"]))
        too_many = await client.call(requests.ProduceBatch, **batch(identity, 2))
        shard.store.thaw()

    assert ["invalid", "not_leader", "expired", "invalid", "unavailable"] == [
        each.verdict for each in (undecodable, elsewhere, too_late, too_large, too_many)
    ]
    for verdict in ("not_leader", "expired", "unavailable"):
        assert 1 == shard.registry.get_sample_value("headgate_batches_judged_total", {"shard": "0", "verdict": verdict})


# Producers that a leader forgets when they are idle or too many, and the table that its successor finds.


DAY_MS = 86_400_000


async def test_no_producer_expires_because_the_clock_jumps() -> None:
    """Neither in a term whose clock is set, nor in the next one, whose machine is wrong from the start."""
    shard = OneShard()
    async with shard.leader() as leader, shard.client() as client:
        await asyncio.sleep(1)
        await opened(client)
        shard.clock_ahead_ms = 8 * DAY_MS
        await asyncio.sleep(2)
        await opened(client, "second")
        assert 2 == len(leader.state.producers)
        assert leader.state.at_ms > 8 * DAY_MS
    shard.clock_ahead_ms = 16 * DAY_MS
    async with shard.leader("b") as leader:
        await asyncio.sleep(60)
        assert 2 == len(leader.state.producers)
        at_ms = leader.state.at_ms
        await asyncio.sleep(4 * 3600)
        lived_ms = leader.state.time.age_ms(at_ms, shard.now_ms())
    assert 4 * 3_600_000 == pytest.approx(lived_ms, abs=65_000), "also while there is no request"


async def test_the_producer_table_survives_a_change_of_leader() -> None:
    """Identities, epochs, windows, tokens, positions and the order of use are replayed from the ledger."""
    shard = OneShard(ingest=IngestSettings(max_producers=3))
    async with shard.client() as client:
        async with shard.leader("a") as leader:
            await created(client)
            for token in "abcd":
                identity = await opened(client, token)
                for sequence in range(3):
                    await client.call(requests.ProduceBatch, **batch(identity, sequence))
            for incarnation, token in enumerate("xyz"):
                loader = await client.call(requests.OpenProducer, token=token, name="loader", incarnation=incarnation)
            await client.call(requests.ProduceBatch, **batch(loader, 0, source_position=b"7", topic_id=1))
            await client.call(
                requests.OpenProducer,
                token="bump",
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
            )
            await asyncio.sleep(1)
            before, known = everything(leader.state.producers), len(leader.state.producers)
        async with shard.leader("b") as leader:
            after = everything(leader.state.producers)

    assert 3 + 1 == known
    assert before == after
