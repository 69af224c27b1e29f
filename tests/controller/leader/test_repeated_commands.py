"""A late copy of a command changes nothing, whatever was commanded since: for every request that has a token."""

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.support.worlds.one_shard import BareClient, OneShard

pytestmark = pytest.mark.looptime

CONSUMER = {"topic": "orders", "subscription": "billing", "consumer": "c"}
BILLING = {"topic": "orders", "subscription": "billing"}
ADA = {"consumer": "ada", "incarnation": 1}
SOURCE = [m.SegmentImport(segment="shard-1")]


@dataclass
class Case:
    """Requests without their tokens. Each is (type, fields)."""

    do: dict[str, Any]
    undo: tuple[type[m.RequestBody], dict[str, Any]]
    """The opposite, or what the copy would do again."""
    before: list[tuple[type[m.RequestBody], dict[str, Any]]] = field(default_factory=list)


def register(incarnation: int) -> tuple[type[m.RequestBody], dict[str, Any]]:
    return m.RegisterConsumer, {**CONSUMER, "incarnation": incarnation, "subscription_type": "STREAM"}


SUBSCRIBE = (m.CreateSubscription, {**BILLING, "subscription_type": "STREAM"})
OPEN = {"name": "loader", "incarnation": 1}
SPLIT = (m.SplitSegment, {"topic": "orders", "segment": 0})
MERGE = (m.MergeSegments, {"topic": "orders", "segments": (1, 2)})
CASES: dict[type[m.RequestBody], Case] = {
    m.OpenProducer: Case(OPEN, (m.DeleteProducer, {"producer": "loader"})),
    m.DeleteProducer: Case(
        {"producer": "loader"}, (m.OpenProducer, {**OPEN, "incarnation": 2}), [(m.OpenProducer, OPEN)]
    ),
    m.CreateTopic: Case({"topic": "more"}, (m.DeleteTopic, {"topic": "more"})),
    m.DeleteTopic: Case({"topic": "orders"}, (m.CreateTopic, {"topic": "orders"})),
    m.ImportTopic: Case({"topic": "kinesis", "segments": SOURCE}, (m.DeleteTopic, {"topic": "kinesis"})),
    m.SplitSegment: Case(SPLIT[1], MERGE),
    m.MergeSegments: Case(MERGE[1], (m.SplitSegment, {"topic": "orders", "segment": 3}), [SPLIT]),
    m.SetTopicPolicy: Case(
        {"topic": "orders", "policy": {"auto_split": True}},
        (m.SetTopicPolicy, {"topic": "orders", "reset": ["auto_split"]}),
    ),
    m.PruneTopic: Case({"topic": "orders"}, MERGE, [SPLIT]),
    m.CreateSubscription: Case(SUBSCRIBE[1], (m.DeleteSubscription, BILLING)),
    m.DeleteSubscription: Case(BILLING, SUBSCRIBE, [SUBSCRIBE]),
    m.EvictConsumer: Case(CONSUMER, register(2), [register(1)]),
    m.SeekSubscription: Case(
        {**BILLING, "to": "earliest"}, (m.SeekSubscription, {**BILLING, "to": "latest"}), [SUBSCRIBE]
    ),
    m.SetSubscriptionOrder: Case(
        {**BILLING, "order": "none"}, (m.SetSubscriptionOrder, {**BILLING, "order": "strict"}), [SUBSCRIBE]
    ),
    m.SetDeliveryPolicy: Case(
        {**BILLING, "ack_timeout_ms": 1000},
        (m.SetDeliveryPolicy, {**BILLING, "ack_timeout_ms": 0}),
        [(m.CreateSubscription, {**BILLING, "subscription_type": "QUEUE"})],
    ),
    m.ResumeKey: Case(
        {**BILLING, "key": b"k"},
        (m.DeleteSubscription, {**BILLING, "force": True}),
        [
            (m.RegisterConsumer, {**BILLING, **ADA, "subscription_type": "STREAM"}),
            (m.ProduceBatch, {"topic": "orders", "records": [m.Record(b"k", b"", 0)]}),
            (m.SetDeliveryPolicy, {**BILLING, "dead_letter_topic": "dead"}),
            (m.ParkKey, {**BILLING, **ADA, "segment": 0, "generation": 1, "offset": 0, "key": b"k"}),
        ],
    ),
    m.RaiseLevel: Case({"level": 2}, (m.RaiseLevel, {"level": 3})),
    m.SetShards: Case({"shards": 2, "before": 1}, (m.SetShards, {"shards": 3, "before": 2})),
    m.SetMaintenance: Case({"daemon": "b", "on": True}, (m.SetMaintenance, {"daemon": "b", "on": False})),
    m.TransferShard: Case({"daemon": "a"}, (m.SetMaintenance, {"daemon": "a", "on": True})),
}


def test_every_request_with_a_token_has_a_case() -> None:
    assert {kind for kind in get_args(m.AnyRequestBody) if "token" in kind.__struct_fields__} == set(CASES)


async def effects(world: OneShard) -> tuple[object, ...]:
    """Return what commands have done: all entries of the ledger but the beginnings of terms, and what daemons did."""
    chunks = [await world.ledger.read(number) for number in range(1, await world.ledger.newest() + 1)]
    first = e.TermStarted | e.ShardsGrown  # What a term begins with.
    entries = [entry for chunk in chunks for entry in chunk.entries if not isinstance(entry, first)]
    return entries, world.maintenance, world.level, world.shards, len(world.transfers)


async def ask(
    client: BareClient, kind: type[m.RequestBody], fields: dict[str, Any], token: str, epoch: int | None
) -> Any:
    with_token = {"token": token} if "token" in kind.__struct_fields__ else {}
    return await client.call(kind, **fields, **with_token, leader_epoch=epoch)


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
async def test_a_late_copy_of_a_command_changes_nothing(kind: type[m.RequestBody]) -> None:
    """Neither in the same term, nor in the next one: the copy names the earlier term, or none."""
    world, case = OneShard(), CASES[kind]
    async with world.client() as client:
        async with world.leader("a"):
            for number, (before, fields) in enumerate([(m.CreateTopic, {"topic": "orders"}), *case.before]):
                assert not isinstance(await ask(client, before, fields, f"before-{number}", 1), m.Rejected)
            assert not isinstance(await ask(client, kind, case.do, "token", 1), m.Rejected)
            undone = await ask(client, *case.undo, "undo", 1)
            assert not isinstance(undone, m.Rejected), undone
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
            refused = await client.call(m.TransferShard, daemon="a", token="t", leader_epoch=epoch)
            assert isinstance(refused, m.Rejected)
            assert refused.verdict == "not_leader"
