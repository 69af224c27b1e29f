"""A late copy of a command changes nothing, whatever was commanded since: for every request that has a token."""

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from headgate.model import entries as e
from headgate.protocol import requests
from headgate.protocol.replies import Rejected
from headgate.protocol.request_fields import RequestBody
from tests.support.worlds.one_shard import BareClient, OneShard

CONSUMER = {"topic": "orders", "subscription": "billing", "consumer": "c"}
BILLING = {"topic": "orders", "subscription": "billing"}
ADA = {"consumer": "ada", "incarnation": 1}
SOURCE = [requests.SegmentImport(segment="shard-1")]


@dataclass
class Case:
    """Requests without their tokens. Each is (type, fields)."""

    do: dict[str, Any]
    undo: tuple[type[RequestBody], dict[str, Any]]
    """The opposite, or what the copy would do again."""
    before: list[tuple[type[RequestBody], dict[str, Any]]] = field(default_factory=list)


def register(incarnation: int) -> tuple[type[RequestBody], dict[str, Any]]:
    return requests.RegisterConsumer, {**CONSUMER, "incarnation": incarnation, "subscription_type": "STREAM"}


SUBSCRIBE = (requests.CreateSubscription, {**BILLING, "subscription_type": "STREAM"})
IMPORT = (requests.ImportTopic, {"topic": "kinesis", "segments": SOURCE})
OPEN = {"name": "loader", "incarnation": 1}
SPLIT = (requests.SplitSegment, {"topic": "orders", "segment": 0})
MERGE = (requests.MergeSegments, {"topic": "orders", "segments": (1, 2)})
CASES: dict[type[RequestBody], Case] = {
    requests.OpenProducer: Case(OPEN, (requests.DeleteProducer, {"producer": "loader"})),
    requests.DeleteProducer: Case(
        {"producer": "loader"}, (requests.OpenProducer, {**OPEN, "incarnation": 2}), [(requests.OpenProducer, OPEN)]
    ),
    requests.CreateTopic: Case({"topic": "more"}, (requests.DeleteTopic, {"topic": "more"})),
    requests.DeleteTopic: Case({"topic": "orders"}, (requests.CreateTopic, {"topic": "orders"})),
    requests.ImportTopic: Case(IMPORT[1], (requests.DeleteTopic, {"topic": "kinesis"})),
    requests.SplitSegment: Case(SPLIT[1], MERGE),
    requests.MergeSegments: Case(MERGE[1], (requests.SplitSegment, {"topic": "orders", "segment": 3}), [SPLIT]),
    requests.SetTopicPolicy: Case(
        {"topic": "orders", "policy": {"auto_split": True}},
        (requests.SetTopicPolicy, {"topic": "orders", "reset": ["auto_split"]}),
    ),
    requests.PruneTopic: Case({"topic": "orders"}, MERGE, [SPLIT]),
    requests.CreateSubscription: Case(SUBSCRIBE[1], (requests.DeleteSubscription, BILLING)),
    requests.DeleteSubscription: Case(BILLING, SUBSCRIBE, [SUBSCRIBE]),
    requests.EvictConsumer: Case(CONSUMER, register(2), [register(1)]),
    requests.SeekSubscription: Case(
        {**BILLING, "to": "earliest"}, (requests.SeekSubscription, {**BILLING, "to": "latest"}), [SUBSCRIBE]
    ),
    requests.SetSubscriptionOrder: Case(
        {**BILLING, "order": "none"}, (requests.SetSubscriptionOrder, {**BILLING, "order": "strict"}), [SUBSCRIBE]
    ),
    requests.SetDeliveryPolicy: Case(
        {**BILLING, "ack_timeout_ms": 1000},
        (requests.SetDeliveryPolicy, {**BILLING, "ack_timeout_ms": 0}),
        [(requests.CreateSubscription, {**BILLING, "subscription_type": "QUEUE"})],
    ),
    requests.ResumeKey: Case(
        {**BILLING, "key": b"k"},
        (requests.DeleteSubscription, {**BILLING, "force": True}),
        [
            (requests.RegisterConsumer, {**BILLING, **ADA, "subscription_type": "STREAM"}),
            (requests.ProduceBatch, {"topic": "orders", "records": [requests.Record(b"k", b"", 0)]}),
            (requests.SetDeliveryPolicy, {**BILLING, "dead_letter_topic": "dead"}),
            (requests.ParkKey, {**BILLING, **ADA, "segment": 0, "generation": 1, "offset": 0, "key": b"k"}),
        ],
    ),
    requests.RaiseLevel: Case({"level": 2}, (requests.RaiseLevel, {"level": 3})),
    requests.SetShards: Case({"shards": 2, "before": 1}, (requests.SetShards, {"shards": 3, "before": 2})),
    requests.SetMaintenance: Case({"daemon": "b", "on": True}, (requests.SetMaintenance, {"daemon": "b", "on": False})),
    requests.TransferShard: Case({"daemon": "a"}, (requests.SetMaintenance, {"daemon": "a", "on": True})),
}
NO_CHANGE: dict[type[RequestBody], Case] = {
    requests.ImportTopic: Case(IMPORT[1], (requests.DeleteTopic, {"topic": "kinesis"}), [IMPORT]),
    requests.CreateSubscription: Case(
        {**SUBSCRIBE[1], "if_absent": True}, (requests.DeleteSubscription, BILLING), [SUBSCRIBE]
    ),
    requests.PruneTopic: Case({"topic": "orders"}, SPLIT),
}
"""Commands that find nothing to change. What follows must not make their copies change something."""


def test_every_request_with_a_token_has_a_case() -> None:
    assert {kind for kind in get_args(requests.AnyRequestBody) if "token" in kind.__struct_fields__} == set(CASES)


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


@pytest.mark.parametrize(
    ("kind", "case"), [*CASES.items(), *NO_CHANGE.items()], ids=lambda each: getattr(each, "__name__", "")
)
async def test_a_late_copy_of_a_command_changes_nothing(kind: type[RequestBody], case: Case) -> None:
    """Neither in the same term, nor in the next one: the copy names the earlier term, or none."""
    world = OneShard()
    async with world.client() as client:
        async with world.leader("a"):
            for number, (before, fields) in enumerate([(requests.CreateTopic, {"topic": "orders"}), *case.before]):
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
            refused = await client.call(requests.TransferShard, daemon="a", token="t", leader_epoch=epoch)
            assert refused.verdict == "not_leader"
