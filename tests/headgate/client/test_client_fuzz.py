"""Hostile replies and announcements to a client and its producer, in virtual time."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.client.producer import Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.client.producing.record_batch import RecordMetadata
from headgate.errors import HeadgateError
from headgate.model.entries import Placement
from headgate.protocol import codec
from headgate.protocol.codec import cluster_topic, head_topic, leader_topic, replies_topic, requests_topic
from headgate.protocol.replies import (
    AnyReplyBody,
    AssignmentChanged,
    Committed,
    Done,
    ProducerIdentity,
    Rejected,
    Reply,
    TopicList,
)
from tests.support.fakes.broker import Message
from tests.support.samples.hostile_messages import hostile
from tests.support.virtual_loop import VirtualLoop
from tests.support.worlds.one_shard import CLUSTER
from tests.support.worlds.one_shard_programs import client as client_of
from tests.support.worlds.one_shard_programs import orders


def reply(body: AnyReplyBody) -> bytes:
    return codec.encode(Reply(request_id=7, leader_epoch=1, body=body))


PLACED = [Placement(0, 0, 32767, 0, 1), Placement(1, 32768, 65535, 0, 1)]
IDENTITY = reply(ProducerIdentity(producer_id=0, producer_epoch=0))
REPLIES = [
    reply(Committed(placements=PLACED)),
    reply(Committed(duplicate=True)),
    reply(Committed(placements=[])),
    reply(Committed(placements=[Placement(5, 1, 0, 0, 0), Placement(0, 0, 9, 2**62, 1)])),
    reply(Rejected(verdict="out_of_order", reason="x")),
    reply(Rejected(verdict="not_leader", reason="x")),
    reply(ProducerIdentity(producer_id=2, producer_epoch=0)),
    reply(Done()),
    reply(TopicList(topics=[])),
    codec.encode(AssignmentChanged(topic="orders", subscription="s", consumer="c", incarnation=1, leader_epoch=1)),
]
TOPICS = (
    replies_topic(CLUSTER, "anonymous/producer"),
    cluster_topic(CLUSTER),
    leader_topic(CLUSTER, 0),
    head_topic(CLUSTER, 0),
)


@pytest.mark.parametrize("payload", [b"\xc1", REPLIES[0][:-1], b"\x91" * 9999], ids=["wrong", "cut", "deep"])
async def test_a_client_counts_undecodable_messages_and_continues(payload: bytes) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with orders() as (world, _), world.client("attacker") as attacker, client_of(world, "producer") as client:
        await client.shard_map()
        await client.watch_leader(0)
        await client.watch_head(0, lambda _: None)
        for topic in TOPICS:
            attacker.transport.publish(topic, payload)
        await asyncio.sleep(0.1)
        assert (len(TOPICS), []) == (client.undecodable_messages, raised)


async def produce_among(payloads: list[bytes]) -> None:
    """Send records while hostile replies to the producer's requests arrive besides the real ones."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    waiting = list(payloads)
    async with orders() as (world, _), world.client("attacker") as attacker:

        def answer_first(message: Message) -> None:
            if (
                message.topic == requests_topic(CLUSTER, 0, "anonymous/producer")
                and message.sender == "producer"
                and waiting
            ):
                # A forged identity makes requests that no leader would decode.
                request_id = msgspec.msgpack.decode(message.payload)["request_id"]
                forged = b"\xaarequest_id\xcf" + request_id.to_bytes(8, "big")
                payload = waiting.pop().replace(b"\xaarequest_id\x07", forged)
                attacker.transport.publish(replies_topic(CLUSTER, "anonymous/producer"), payload)

        world.broker.spies.append(answer_first)
        patience = ProducerSettings(batch_bytes=100, request_timeout_seconds=1, delivery_timeout_seconds=30)
        async with Producer(client_of(world, "producer"), settings=patience) as producer:
            deliveries = [await producer.send("orders", b"%d" % n, b"v") for n in range(20)]
            outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
            assert all(isinstance(each, RecordMetadata | HeadgateError) for each in outcomes), outcomes
            assert [] == raised


@pytest.mark.simulation
@example([IDENTITY, b""])  # an identity in answer to a batch once broke the session
@given(st.lists(hostile(REPLIES), min_size=1, max_size=12))
def test_every_record_gets_an_outcome_whatever_replies_arrive(payloads: list[bytes]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(produce_among(payloads))
