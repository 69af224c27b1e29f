"""Hostile requests to a leader, in virtual time: it continues, replies at most once, and changes nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.settings.sections import IngestSettings
from headgate.protocol import messages as m
from shard.state.shard_state import ShardState
from tests.simulation.virtual_loop import VirtualLoop
from tests.support.fakes.broker import Message
from tests.support.samples.hostile_messages import hostile
from tests.support.whole_state import everything
from tests.support.worlds.one_shard import BareClient, OneShard

CONSUMER = {"topic": "orders", "subscription": "s", "consumer": "c", "incarnation": 1}
VALID = [
    m.encode(
        m.Request(request_id=9, protocol=m.PROTOCOL_VERSION, client_id="client", leader_epoch=1, body=kind(**fields))
    )
    for kind, fields in (
        (m.ProduceBatch, {"topic": "orders", "records": [m.Record(b"k", b"v", 0)], "producer_id": 2, "sequence": 0}),
        (
            m.ProduceBatch,
            {
                "topic": "orders",
                "records": [m.Record(b"k", b"v", 0)] * 3,
                "headers": [m.RecordHeader(1, "a", b"1"), m.RecordHeader(1, "a", b"")],
                "producer_id": 2,
                "sequence": 0,
                "source_position": b"7",
                "topic_id": 1,
            },
        ),
        (m.OpenProducer, {"token": "2"}),
        (m.OpenProducer, {"token": "3", "name": "loader", "incarnation": 1, "producer_id": 2}),
        (m.DescribePosition, {"producer": "loader", "topic": "orders"}),
        (m.ListProducers, {"after": "a"}),
        (m.TransferShard, {"daemon": "b", "token": "8"}),
        (m.SetMaintenance, {"daemon": "b", "on": True, "token": "9"}),
        (m.DeleteProducer, {"producer": "loader", "token": "7"}),
        (m.CreateTopic, {"topic": "more", "token": "1", "segments": 2}),
        (m.RegisterConsumer, {**CONSUMER, "subscription_type": "STREAM", "start": "earliest"}),
        (m.Heartbeat, {**CONSUMER, "held": []}),
        (m.AcknowledgeBatch, {**CONSUMER, "acknowledgements": [m.Acknowledgement(0, 1, 0, 1)]}),
        (m.ConfirmRevoked, {**CONSUMER, "released": [(0, 1)]}),
        (m.DescribeSubscription, {"topic": "orders", "subscription": "s"}),
        (m.ListSubscriptions, {}),
        (m.LeaveConsumer, CONSUMER),
        (m.SplitSegment, {"topic": "orders", "segment": 0, "token": "3"}),
        (m.MergeSegments, {"topic": "orders", "segments": (0, 1), "token": "4"}),
        (m.DescribeTopic, {"topic": "orders"}),
        (m.ListTopics, {}),
        (m.DeleteSubscription, {"topic": "orders", "subscription": "s", "token": "5"}),
        (m.DeleteTopic, {"topic": "orders", "token": "6"}),
    )
]
REASONS = (
    "not a request of protocol 2: ",
    "not msgpack: ",
    "a request of protocol ",
    "a message has ",
    "the request names client ",
)


def is_malformed(payload: bytes) -> bool:
    try:
        return m.decode_request(payload).protocol != m.PROTOCOL_VERSION
    except msgspec.DecodeError:
        return True


def held(state: ShardState) -> str:
    """Return the state without its chunk number and ledger time, because a barrier may be an empty chunk."""
    return repr({name: value for name, value in everything(state).items() if name not in ("chunk", "time")})


def malformed_count(shard: OneShard) -> float:
    return sum(
        sample.value
        for metric in shard.registry.collect()
        for sample in metric.samples
        if sample.name == "headgate_messages_malformed_total"
    )


async def replayed(shard: OneShard) -> ShardState:
    """Return the state with which a successor would start."""
    state = ShardState(0)
    while (found := await shard.ledger.read_or_none(state.chunk + 1)) is not None:
        state.apply_all(found.entries, chunk=found.header.number, at_ms=found.header.at_ms)
    return state


async def prepared(client: BareClient) -> None:
    await client.call(m.CreateTopic, topic="orders", token="t", segments=2)
    await client.call(m.OpenProducer, token="p")
    await client.call(m.RegisterConsumer, **CONSUMER, subscription_type="STREAM", start="earliest")


async def confront(payloads: list[bytes]) -> None:
    """Send the payloads one by one to a leader, and check the effect of each."""
    shard = OneShard(ingest=IngestSettings(missing_epoch_rejection_delay_seconds=0))
    received: list[m.AnyReply] = []

    def listen(message: Message) -> None:
        if message.topic.endswith("/replies"):
            received.append(m.decode_reply(message.payload))

    async with shard.leader() as leader, shard.client() as client:
        # Hostile requests have ids of their own.
        client._next = 2**40
        await prepared(client)
        shard.broker.spies.append(listen)
        for payload in payloads:
            before, counted = held(leader.state), malformed_count(shard)
            received.clear()
            client.send_raw(payload)
            await asyncio.sleep(0.1)
            answers = [message.body for message in received if isinstance(message, m.Reply)]
            assert len(answers) <= 1
            assert is_malformed(payload) == malformed_count(shard) - counted
            if is_malformed(payload):
                assert all(isinstance(answer, m.Rejected) and answer.reason.startswith(REASONS) for answer in answers)
            if is_malformed(payload) or any(isinstance(answer, m.Rejected) for answer in answers):
                assert before == held(leader.state)
            assert all(answer.reason for answer in answers if isinstance(answer, m.Rejected))
            assert isinstance(await client.call(m.ListTopics), m.TopicList), "it carries on"
        await leader.commit.flush()
        assert held(await replayed(shard)) == held(leader.state), "and its successor will know the same"


@pytest.mark.simulation
@settings(max_examples=40, deadline=None)
@given(st.lists(hostile(VALID), min_size=1, max_size=12))
def test_a_leader_continues_after_any_message(payloads: list[bytes]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(confront(payloads))


@pytest.mark.parametrize(
    "number", range(len(VALID)), ids=[str(msgspec.msgpack.decode(each)["body"]["type"]) for each in VALID]
)
def test_each_request_is_valid_before_it_is_damaged(number: int) -> None:
    """Otherwise the test would not test the damage."""
    assert not is_malformed(VALID[number])
