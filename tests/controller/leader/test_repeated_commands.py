"""A late copy of a command changes nothing, whatever was commanded since: for every request that has a token."""

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import Rejected
from headgate.protocol.request_fields import RequestBody
from headgate.protocol.requests import (
    AnyRequestBody,
    CreateSubscription,
    CreateTopic,
    DeleteProducer,
    DeleteSubscription,
    DeleteTopic,
    EvictConsumer,
    ImportTopic,
    MergeSegments,
    OpenProducer,
    ParkKey,
    ProduceBatch,
    PruneTopic,
    RaiseLevel,
    Record,
    RegisterConsumer,
    ResumeKey,
    SeekSubscription,
    SegmentImport,
    SetDeliveryPolicy,
    SetMaintenance,
    SetShards,
    SetSubscriptionOrder,
    SetTopicPolicy,
    SplitSegment,
    TransferShard,
)
from tests.support.worlds.one_shard import BareClient, OneShard

pytestmark = pytest.mark.looptime

CONSUMER = {"topic": "orders", "subscription": "billing", "consumer": "c"}
BILLING = {"topic": "orders", "subscription": "billing"}
ADA = {"consumer": "ada", "incarnation": 1}
SOURCE = [SegmentImport(segment="shard-1")]


@dataclass
class Case:
    """Requests without their tokens. Each is (type, fields)."""

    do: dict[str, Any]
    undo: tuple[type[RequestBody], dict[str, Any]]
    """The opposite, or what the copy would do again."""
    before: list[tuple[type[RequestBody], dict[str, Any]]] = field(default_factory=list)


def register(incarnation: int) -> tuple[type[RequestBody], dict[str, Any]]:
    return RegisterConsumer, {**CONSUMER, "incarnation": incarnation, "subscription_type": "STREAM"}


SUBSCRIBE = (CreateSubscription, {**BILLING, "subscription_type": "STREAM"})
OPEN = {"name": "loader", "incarnation": 1}
SPLIT = (SplitSegment, {"topic": "orders", "segment": 0})
MERGE = (MergeSegments, {"topic": "orders", "segments": (1, 2)})
CASES: dict[type[RequestBody], Case] = {
    OpenProducer: Case(OPEN, (DeleteProducer, {"producer": "loader"})),
    DeleteProducer: Case({"producer": "loader"}, (OpenProducer, {**OPEN, "incarnation": 2}), [(OpenProducer, OPEN)]),
    CreateTopic: Case({"topic": "more"}, (DeleteTopic, {"topic": "more"})),
    DeleteTopic: Case({"topic": "orders"}, (CreateTopic, {"topic": "orders"})),
    ImportTopic: Case({"topic": "kinesis", "segments": SOURCE}, (DeleteTopic, {"topic": "kinesis"})),
    SplitSegment: Case(SPLIT[1], MERGE),
    MergeSegments: Case(MERGE[1], (SplitSegment, {"topic": "orders", "segment": 3}), [SPLIT]),
    SetTopicPolicy: Case(
        {"topic": "orders", "policy": {"auto_split": True}},
        (SetTopicPolicy, {"topic": "orders", "reset": ["auto_split"]}),
    ),
    PruneTopic: Case({"topic": "orders"}, MERGE, [SPLIT]),
    CreateSubscription: Case(SUBSCRIBE[1], (DeleteSubscription, BILLING)),
    DeleteSubscription: Case(BILLING, SUBSCRIBE, [SUBSCRIBE]),
    EvictConsumer: Case(CONSUMER, register(2), [register(1)]),
    SeekSubscription: Case({**BILLING, "to": "earliest"}, (SeekSubscription, {**BILLING, "to": "latest"}), [SUBSCRIBE]),
    SetSubscriptionOrder: Case(
        {**BILLING, "order": "none"}, (SetSubscriptionOrder, {**BILLING, "order": "strict"}), [SUBSCRIBE]
    ),
    SetDeliveryPolicy: Case(
        {**BILLING, "ack_timeout_ms": 1000},
        (SetDeliveryPolicy, {**BILLING, "ack_timeout_ms": 0}),
        [(CreateSubscription, {**BILLING, "subscription_type": "QUEUE"})],
    ),
    ResumeKey: Case(
        {**BILLING, "key": b"k"},
        (DeleteSubscription, {**BILLING, "force": True}),
        [
            (RegisterConsumer, {**BILLING, **ADA, "subscription_type": "STREAM"}),
            (ProduceBatch, {"topic": "orders", "records": [Record(b"k", b"", 0)]}),
            (SetDeliveryPolicy, {**BILLING, "dead_letter_topic": "dead"}),
            (ParkKey, {**BILLING, **ADA, "segment": 0, "generation": 1, "offset": 0, "key": b"k"}),
        ],
    ),
    RaiseLevel: Case({"level": 2}, (RaiseLevel, {"level": 3})),
    SetShards: Case({"shards": 2, "before": 1}, (SetShards, {"shards": 3, "before": 2})),
    SetMaintenance: Case({"daemon": "b", "on": True}, (SetMaintenance, {"daemon": "b", "on": False})),
    TransferShard: Case({"daemon": "a"}, (SetMaintenance, {"daemon": "a", "on": True})),
}


def test_every_request_with_a_token_has_a_case() -> None:
    assert {kind for kind in get_args(AnyRequestBody) if "token" in kind.__struct_fields__} == set(CASES)


async def effects(world: OneShard) -> tuple[object, ...]:
    """Return what commands have done: all entries of the ledger but the beginnings of terms, and what daemons did."""
    chunks = [await world.ledger.read(number) for number in range(1, await world.ledger.newest() + 1)]
    first = e.TermStarted | e.ShardsGrown  # What a term begins with.
    entries = [entry for chunk in chunks for entry in chunk.entries if not isinstance(entry, first)]
    return entries, world.maintenance, world.level, world.shards, len(world.transfers)


async def ask(
    client: BareClient, kind: type[RequestBody], fields: dict[str, Any], token: str, epoch: int | None
) -> Any:
    with_token = {"token": token} if "token" in kind.__struct_fields__ else {}
    return await client.call(kind, **fields, **with_token, leader_epoch=epoch)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
async def test_a_late_copy_of_a_command_changes_nothing(kind: type[RequestBody]) -> None:
    """Neither in the same term, nor in the next one: the copy names the earlier term, or none."""
    world, case = OneShard(), CASES[kind]
    async with world.client() as client:
        async with world.leader("a"):
            for number, (before, fields) in enumerate([(CreateTopic, {"topic": "orders"}), *case.before]):
                assert not isinstance(await ask(client, before, fields, f"before-{number}", 1), Rejected)
            assert not isinstance(await ask(client, kind, case.do, "token", 1), Rejected)
            undone = await ask(client, *case.undo, "undo", 1)
            assert not isinstance(undone, Rejected), undone
            known = await effects(world)
            await ask(client, kind, case.do, "token", 1)
            assert await effects(world) == known
        async with world.leader("b"):
            for epoch in (1, None):
                await ask(client, kind, case.do, "token", epoch)
            assert await effects(world) == known


async def test_a_transfer_names_the_term_that_it_ends() -> None:
    """A copy without it could transfer the shard again in a later term."""
    world = OneShard()
    async with world.leader(), world.client() as client:
        for epoch in (None, 7):
            refused = await client.call(TransferShard, daemon="a", token="t", leader_epoch=epoch)
            assert refused.verdict == "not_leader"
