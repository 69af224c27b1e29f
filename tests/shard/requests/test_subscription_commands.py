"""Creations, seeks and changes of order: decisions, repetitions and refusals."""

import re
from typing import Any

import pytest

from headgate.model import entries as e
from headgate.protocol import requests
from headgate.protocol.replies import Done, SeekReply
from headgate.protocol.requests import CreateSubscription, DeleteSubscription, SeekSubscription, SetSubscriptionOrder
from shard.requests import subscription_commands
from shard.requests.subscription_commands import create_subscription, delete_subscription, seek_subscription, set_order
from shard.steps import complete
from shard.subscriptions.refusal import Refusal
from tests.support.worlds.command_shard import CommandShard, judged

IDS = {"topic_id": 1, "subscription_id": 2}


class Shard(CommandShard):
    """Topic orders: 0 (5 records) was split into 1 and 2 (3 records); billing has read 0 and one record of 2."""

    def __init__(self, kind: Any = "STREAM", order: Any = "strict") -> None:
        super().__init__(
            e.TopicCreated(topic_id=1, topic="orders", segments=1, token="t0"),
            e.SubscriptionCreated(**IDS, subscription="billing", subscription_type=kind, order=order, positions={}),
            e.RecordsStored(topic_id=1, count=5, placements=[e.Placement(0, 0, 65535, 0, 5)], size_bytes=5),
            e.SegmentSplit(topic_id=1, segment=0, end_offset=5, token="t1"),
            e.RecordsStored(topic_id=1, count=3, placements=[e.Placement(2, 32768, 65535, 0, 3)], size_bytes=3),
            e.RecordsAcknowledged(
                **IDS, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 5), e.AcknowledgedRange(2, 0, 1)]
            ),
            e.SegmentsDrained(**IDS, segments=[0], seek_generation=0),
        )
        self.subscription = self.state.subscriptions[2]

    def seek(self, token: str = "s1", **fields: Any) -> Any:
        return judged(seek_subscription, ask(SeekSubscription, token=token, **fields), self.state)

    def create(self, token: str = "c1", **fields: Any) -> Any:
        given = {"subscription": "audit", "subscription_type": "STREAM", **fields}
        return judged(create_subscription, ask(CreateSubscription, token=token, **given), self.state, "alice")

    def order(self, order: Any, token: str = "o1") -> Any:
        return judged(set_order, ask(SetSubscriptionOrder, token=token, order=order), self.state)


def ask(kind: Any, **fields: Any) -> Any:
    return kind(**{"topic": "orders", "subscription": "billing", **fields})


def moves(answer: SeekReply) -> list[tuple[int, int, int, int]]:
    return [(move.segment, move.from_offset, move.to_offset, move.end_offset) for move in answer.result.moves]


def test_descendants_of_named_segments_move_only_in_strict_order() -> None:
    strict, none = (shard.do(shard.seek(positions=[(0, 3)])) for shard in (Shard(), Shard("QUEUE", "none")))

    assert [(0, 5, 3, 5), (1, 0, 0, 0), (2, 1, 0, 3)] == moves(strict)
    assert [(0, 5, 3, 5)] == moves(none)


def test_a_repeated_seek_gets_its_reply_and_is_not_executed_again() -> None:
    shard = Shard()
    first = shard.do(shard.seek(to="latest"))
    shard.apply(e.SegmentsPruned(topic_id=1, segments=[0]))
    shard.apply(e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(2, 32768, 65535, 3, 1)], size_bytes=1))
    again = shard.seek(to="latest")

    assert () == again.entries
    assert [(0, 5, 5, 5), (1, 0, 0, 0), (2, 1, 3, 3)] == moves(first)
    assert [(1, 0, 0, 0), (2, 1, 3, 4)] == moves(shard.do(again)), "the end is the one of now"


def test_a_delayed_copy_of_a_seek_does_not_undo_a_later_seek() -> None:
    shard = Shard()
    shard.do(shard.seek("first", to="earliest"))
    shard.do(shard.seek("second", to="latest"))
    late = shard.seek("first", to="earliest")

    assert () == late.entries
    assert [] == moves(shard.do(late)), "its moves are not stored, and no client waits for them"
    assert 2 == shard.subscription.seek_generation


def test_a_dry_run_reports_the_moves_and_changes_nothing() -> None:
    shard = Shard()
    decision = shard.seek(to="earliest", dry_run=True)

    assert () == decision.entries
    assert [(0, 5, 0, 5), (1, 0, 0, 0), (2, 1, 0, 3)] == moves(shard.do(decision))
    assert 0 == shard.subscription.seek_generation
    assert 3 == len(shard.seek("s1", to="earliest").entries[0].positions), "its token is not used up"


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("STREAM", {}, "needs either to"),
        ("STREAM", {"to": "latest", "positions": [(0, 1)]}, "needs either to"),
        ("STREAM", {"positions": [(0, 1), (0, 2)]}, "name a segment twice"),
        ("STREAM", {"positions": [(2, 4)]}, "ends at 3; 4 is beyond it: choose 0 to 3"),
        ("STREAM", {"positions": [(7, 0)]}, "there is no segment 7; the segments are 0, 1, 2"),
        ("CHECKPOINT", {"to": "earliest"}, "its consumers keep their own positions"),
        ("STREAM", {"positions": [(2, 1)], "topic_id": 7}, "created again: it has id 1, and the request is for id 7"),
        ("STREAM", {"to": "earliest", "subscription": "x"}, "has no subscription 'x'"),
    ],
    ids=["nothing", "both", "twice", "beyond", "unknown", "checkpoint", "another topic", "no subscription"],
)
def test_a_refused_seek_states_the_reason_and_changes_nothing(kind: str, fields: dict[str, Any], reason: str) -> None:
    shard = Shard(kind, "strict" if kind == "STREAM" else "none")
    refusal = shard.seek(**fields)

    assert ("invalid", True) == (refusal.verdict, refusal.after_barrier)
    assert reason in refusal.reason


def test_the_reply_describes_the_state_after_the_command_in_steps_while_later_ones_change_it() -> None:
    shard = Shard()
    relaxed = shard.order("none")
    shard.apply(*relaxed.entries)
    reply = relaxed.answer(shard.state)
    assert "strict" == shard.do(shard.order("strict", "o2")).subscription.order
    assert ("none", "strict") == (complete(reply.steps).subscription.order, shard.subscription.order)


def test_the_reply_describes_the_blocked_segments_after_the_change() -> None:
    shard = Shard(order="none")
    shard.do(shard.seek(to="earliest"))
    described = shard.do(shard.order("strict")).subscription

    assert {1: (0,), 2: (0,)} == {s.segment: s.blocked_by for s in described.segments if s.status == "blocked"}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("QUEUE", "order 'strict' is for STREAM"),
        ("CHECKPOINT", "order 'strict' is for STREAM"),
        (None, "is unknown so far"),
    ],
)
def test_an_order_that_the_type_cannot_have_is_refused(kind: Any, reason: str) -> None:
    shard = Shard(kind, "none")
    refusal = shard.order("strict")

    assert reason in refusal.reason


def test_a_change_of_order_keeps_the_balance() -> None:
    shard = Shard()
    shard.apply(e.SubscriptionConfigured(**IDS, subscription_type="STREAM", order="strict", balance="load"))
    shard.do(shard.order("none"))

    assert ("none", "load") == (shard.subscription.order, shard.subscription.balance)


@pytest.mark.parametrize(
    ("fields", "positions", "order"),
    [
        ({}, {0: 5, 1: 0, 2: 3}, "strict"),
        ({"start": "earliest"}, {}, "strict"),
        ({"start": "earliest", "subscription_type": "QUEUE"}, {}, "none"),
        ({"positions": [(0, 5), (2, 1)]}, {0: 5, 2: 1}, "strict"),
        ({"positions": [(0, 2)]}, {0: 2, 1: 0, 2: 0}, "strict"),
        ({"positions": [(2, 1)], "subscription_type": "QUEUE"}, {2: 1}, "none"),
    ],
    ids=["latest", "earliest", "queue", "positions", "within the parent", "queue at a position"],
)
def test_a_created_subscription_starts_where_it_was_asked_for(
    fields: dict[str, Any], positions: dict[int, int], order: str
) -> None:
    shard = Shard()
    described = shard.do(shard.create(**fields)).subscription
    created = shard.state.topics["orders"].subscriptions["audit"]

    assert (positions, order, "alice") == (created.progress.positions, created.order, created.user)
    assert ("audit", order, ()) == (described.subscription, described.order, described.consumers)
    assert created.consumers.unused_since_ms == 1, "it expires like every subscription without a consumer"


def test_a_repeated_creation_gets_its_reply_and_a_late_copy_creates_nothing() -> None:
    shard = Shard()
    shard.do(shard.create("first"))
    again = shard.create("first")
    assert () == again.entries
    assert "audit" == shard.do(again).subscription.subscription

    created = shard.state.topics["orders"].subscriptions["audit"]
    shard.apply(e.SubscriptionDeleted(topic_id=1, subscription_id=created.subscription_id, token="d"))
    late = shard.create("first")
    assert "has been deleted since" in late.reason


def test_an_existing_subscription_stays_as_it_is() -> None:
    shard = Shard()
    existing = {"subscription": "billing", "start": "earliest"}
    refusal = shard.create(**existing)
    assert "'billing' of topic 'orders' exists (type STREAM, order strict)" in refusal.reason

    unchanged = shard.create(**existing, if_absent=True)
    assert (shard.state.topics["orders"].policy, "c1") == (unchanged.entries[0].policy, unchanged.entries[0].token)
    assert 2 == shard.do(unchanged).subscription.subscription_id

    other = shard.create("c2", **existing, if_absent=True, subscription_type="QUEUE")
    assert "is of type STREAM, not QUEUE" in other.reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"positions": [(0, 1), (0, 2)]}, "name a segment twice"),
        ({"positions": [(2, 4)]}, "ends at 3; 4 is beyond it: choose 0 to 3"),
        ({"positions": [(2, 1)]}, "comes after unread records of segment 0"),
        ({"positions": [(7, 0)]}, "there is no segment 7; the segments are 0, 1, 2"),
    ],
    ids=["twice", "beyond", "skips the parent", "unknown"],
)
def test_a_refused_creation_states_the_reason(fields: dict[str, Any], reason: str) -> None:
    refusal = Shard().create(**fields)

    assert ("invalid", True) == (refusal.verdict, refusal.after_barrier)
    assert reason in refusal.reason


@pytest.mark.parametrize(
    ("ask_for", "fields", "accepted"),
    [
        (Shard.create, {"start": "earliest"}, True),
        (Shard.create, {}, False),
        (Shard.create, {"start": "earliest", "positions": [(0, 1)]}, False),
        (Shard.seek, {"to": "earliest", "subscription": "known"}, True),
        (Shard.seek, {"to": "latest", "subscription": "known"}, False),
    ],
)
def test_a_subscription_of_an_external_topic_starts_at_the_earliest_record_and_moves_only_there(
    ask_for: Any, fields: dict[str, Any], accepted: bool
) -> None:
    shard = Shard()
    segments = [e.ImportedSegment(segment=0, label="shard-0")]
    shard.apply(e.TopicImported(topic_id=9, topic="kinesis", token="i", segments=segments, positions="opaque"))
    shard.do(shard.create("k1", topic="kinesis", subscription="known", start="earliest"))
    outcome = ask_for(shard, topic="kinesis", **fields)

    assert accepted != isinstance(outcome, Refusal)
    if not accepted:
        assert re.search("is external: (start at|only its source knows its end; seek to) 'earliest'", outcome.reason)


def test_a_late_copy_of_a_drop_drops_nothing_of_a_key_that_is_parked_again() -> None:
    shard, dropped = Shard(), ask(requests.ResumeKey, token="d", key=b"k", drop=True)
    parked = e.KeyParked(**IDS, key=b"k", reason="")
    assert "has not parked key 'k'" in subscription_commands.resume_key(dropped, shard.state).reason
    shard.apply(parked)
    assert Done() == shard.do(subscription_commands.resume_key(dropped, shard.state))
    shard.apply(e.KeyUnparked(**IDS, key=b"k"), parked)
    assert () == subscription_commands.resume_key(dropped, shard.state).entries


@pytest.mark.parametrize("consumers", [0, 1])
def test_a_subscription_is_deleted_once_and_with_consumers_only_by_force(consumers: int) -> None:
    shard = Shard()
    for number in range(consumers):
        shard.apply(e.ConsumerRegistered(**IDS, consumer=f"c{number}", incarnation=1, client_id="c"))
    deletion = ask(DeleteSubscription, token="d")
    forced = ask(DeleteSubscription, token="d", force=True)

    assert bool(consumers) == isinstance(delete_subscription(deletion, shard.state), Refusal)
    assert Done() == shard.do(delete_subscription(forced if consumers else deletion, shard.state))
    assert {} == shard.state.topics["orders"].subscriptions
    again = delete_subscription(deletion, shard.state)
    assert () == again.entries
    assert Done() == shard.do(again), "its reply was lost"
