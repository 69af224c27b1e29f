"""Commands: decisions, repetitions and refusals."""

from typing import Any

import msgspec
import pytest

from controller.decisions import topic_commands as commands
from controller.decisions.handlers import Decision
from controller.decisions.placement import oversized_reason, route_batch
from controller.state.shard_state import MAX_EARLIER_TOKENS, ShardState
from coordinator.decisions.refusal import Refusal
from headgate.model import entries as e
from headgate.model.hashing import segment_hash
from headgate.protocol import messages as m


class Shard:
    """A state to which decisions are applied as the leader does."""

    def __init__(self) -> None:
        self.state = ShardState(0)
        self.state.apply_all([e.TermStarted(leader_epoch=3, instance="a")], chunk=1, at_ms=0)

    def do(self, decision: Any) -> m.AnyReplyBody:
        assert isinstance(decision, Decision), decision
        self.state.apply_all(decision.entries, chunk=self.state.chunk + 1, at_ms=1)
        return decision.answer(self.state)

    def open(self, token: str, **kwargs: Any) -> tuple[int, int]:
        reply = self.do(commands.open_producer(m.OpenProducer(token=token, **kwargs), self.state))
        assert isinstance(reply, m.ProducerIdentity)
        return reply.producer_id, reply.producer_epoch

    def rejected(self, token: str, **kwargs: Any) -> str:
        outcome = commands.open_producer(m.OpenProducer(token=token, **kwargs), self.state)
        assert isinstance(outcome, Refusal)
        assert outcome.after_barrier
        return outcome.verdict


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def topic(shard: Shard) -> Shard:
    shard.do(commands.create_topic(m.CreateTopic(topic="orders", token="t0", segments=2), shard.state))
    return shard


def test_an_anonymous_producer_gets_its_own_id(shard: Shard) -> None:
    assert (1, 0) == shard.open("a")
    assert (2, 0) == shard.open("b")


def test_a_repeated_open_request_gets_the_same_reply(shard: Shard) -> None:
    """A lost reply must use up neither an identity nor an epoch."""
    assert shard.open("a") == shard.open("a", producer_id=1, producer_epoch=0)
    assert (1, 1) == shard.open("b", producer_id=1, producer_epoch=0)
    assert (1, 1) == shard.open("b", producer_id=1, producer_epoch=0)


def test_a_stale_producer_that_requests_the_next_epoch_is_fenced(shard: Shard) -> None:
    """Its epoch is no longer the current one."""
    shard.open("a")
    shard.open("b", producer_id=1, producer_epoch=0)

    assert "fenced" == shard.rejected("c", producer_id=1, producer_epoch=0)


def test_opening_a_name_again_fences_the_previous_incarnation(shard: Shard) -> None:
    assert (1, 0) == shard.open("a", name="loader")
    assert (1, 1) == shard.open("b", name="loader")
    assert "fenced" == shard.rejected("c", name="loader", producer_id=1, producer_epoch=0)


def test_a_delayed_copy_of_an_open_request_does_not_fence_a_later_incarnation(shard: Shard) -> None:
    """The present incarnation keeps its epoch; the copy is fenced."""
    for epoch, token in enumerate("abc"):
        assert (1, epoch) == shard.open(token, name="loader")

    assert ["fenced", "fenced"] == [shard.rejected(token, name="loader") for token in "ab"]
    assert (1, 2) == shard.open("c", name="loader")


def test_the_number_of_stored_open_tokens_is_limited(shard: Shard) -> None:
    """An even older copy counts as a new open request: memory is limited, and such late copies do not occur."""
    tokens = [f"t{n}" for n in range(MAX_EARLIER_TOKENS + 2)]
    for token in tokens:
        shard.open(token, name="loader")

    assert "fenced" == shard.rejected(tokens[1], name="loader")
    assert (1, len(tokens)) == shard.open(tokens[0], name="loader")


def test_a_name_recognizes_delayed_copies_after_it_got_a_new_id(shard: Shard) -> None:
    shard.open("a", name="loader")
    last = e.ProducerOpened(producer_id=1, producer_epoch=commands.LAST_PRODUCER_EPOCH, token="b", name="loader")
    shard.state.apply_all([last], chunk=3, at_ms=0)
    assert (2, 0) == shard.open("c", name="loader")

    assert ["fenced", "fenced"] == [shard.rejected(token, name="loader") for token in "ab"]


def test_an_id_that_does_not_belong_to_the_name_is_fenced(shard: Shard) -> None:
    """The id belongs to another producer; neither of the two may lose its epoch."""
    assert [(1, 0), (2, 0)] == [shard.open("a", name="loader"), shard.open("b")]

    assert "fenced" == shard.rejected("c", name="loader", producer_id=2, producer_epoch=0)
    assert [0, 0] == [producer.producer_epoch for producer in shard.state.producers.values()]


def test_a_stale_producer_of_an_expired_id_does_not_regain_its_name(shard: Shard) -> None:
    """Meanwhile the name has a new id, whose epoch equals the one of the stale producer."""
    shard.open("a", name="loader")
    shard.state.apply_all([e.ProducersExpired(producer_ids=[1])], chunk=3, at_ms=0)
    assert (2, 0) == shard.open("b", name="loader")

    assert "fenced" == shard.rejected("c", name="loader", producer_id=1, producer_epoch=0)


def test_a_repeated_request_for_a_new_id_of_a_name_gets_the_same_reply(shard: Shard) -> None:
    """The reply was lost, so the client still sends its old id."""
    last = e.ProducerOpened(producer_id=1, producer_epoch=commands.LAST_PRODUCER_EPOCH, token="a", name="loader")
    shard.state.apply_all([last], chunk=2, at_ms=0)
    old = {"name": "loader", "producer_id": 1, "producer_epoch": commands.LAST_PRODUCER_EPOCH}

    assert [(2, 0), (2, 0)] == [shard.open("b", **old), shard.open("b", **old)]


def test_an_unused_name_gets_a_new_id_regardless_of_the_given_id(shard: Shard) -> None:
    shard.open("a")

    assert (2, 0) == shard.open("b", name="loader", producer_id=1, producer_epoch=0)
    assert [(1, None, 0), (2, "loader", 0)] == [
        (producer.producer_id, producer.name, producer.producer_epoch) for producer in shard.state.producers.values()
    ]


def test_opening_a_name_returns_its_source_position(shard: Shard) -> None:
    shard.open("a", name="loader")
    shard.state.producers[1].source_position = b"line 7"
    reply = shard.do(commands.open_producer(m.OpenProducer(token="b", name="loader"), shard.state))

    assert isinstance(reply, m.ProducerIdentity)
    assert (1, b"line 7") == (reply.producer_epoch, reply.source_position)


def test_an_epoch_above_the_current_one_is_fenced(shard: Shard) -> None:
    """Leaders assign epochs, so a client cannot choose one."""
    shard.open("a")

    assert "fenced" == shard.rejected("b", producer_id=1, producer_epoch=7)


def test_an_exhausted_id_without_a_name_gets_a_new_id(shard: Shard) -> None:
    last = e.ProducerOpened(producer_id=1, producer_epoch=commands.LAST_PRODUCER_EPOCH, token="a")
    shard.state.apply_all([last], chunk=2, at_ms=0)

    assert (2, 0) == shard.open("b", producer_id=1, producer_epoch=commands.LAST_PRODUCER_EPOCH)


def test_an_unknown_id_gets_a_new_id(shard: Shard) -> None:
    """It never gets the old id: a delayed copy of its first batch may still arrive."""
    shard.open("a")
    shard.state.apply_all([e.ProducersExpired(producer_ids=[1])], chunk=3, at_ms=0)

    assert (2, 0) == shard.open("b", producer_id=1, producer_epoch=0)


def test_an_exhausted_epoch_gets_a_new_id(shard: Shard) -> None:
    last = e.ProducerOpened(producer_id=1, producer_epoch=commands.LAST_PRODUCER_EPOCH, token="a", name="loader")
    shard.state.apply_all([last], chunk=2, at_ms=0)

    assert (2, 0) == shard.open("b", name="loader")
    assert (2, 0) == shard.open("b", name="loader")


def test_a_topic_is_created_once(topic: Shard) -> None:
    """The same command gets its reply again; another command with that name is rejected."""
    again = m.CreateTopic(topic="orders", token="t0", segments=2)
    decision = commands.create_topic(again, topic.state)
    assert isinstance(decision, Decision)
    assert () == decision.entries

    other = m.CreateTopic(topic="orders", token="t9")
    refusal = commands.create_topic(other, topic.state)
    assert isinstance(refusal, Refusal)
    assert "already exists" in refusal.reason


def test_a_split_is_one_entry_and_is_not_executed_twice(topic: Shard) -> None:
    request = m.SplitSegment(topic="orders", segment=0, token="s1")
    reply = topic.do(commands.split_segment(request, topic.state))
    assert isinstance(reply, m.TopicReply)
    assert [0, 1, 2, 3] == [segment.segment for segment in reply.topic.segments]

    repeated = commands.split_segment(request, topic.state)
    assert isinstance(repeated, Decision)
    assert () == repeated.entries


def test_a_merge_is_one_entry_and_is_not_executed_twice(topic: Shard) -> None:
    request = m.MergeSegments(topic="orders", segments=(0, 1), token="m1")
    topic.do(commands.merge_segments(request, topic.state))

    repeated = commands.merge_segments(request, topic.state)
    assert isinstance(repeated, Decision)
    assert () == repeated.entries
    assert [2] == [segment.segment_id for segment in topic.state.topics["orders"].layout.active()]


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (
            lambda s: commands.split_segment(m.SplitSegment(topic="no", segment=0, token="x"), s),
            "orders",
        ),
        (
            lambda s: commands.split_segment(m.SplitSegment(topic="orders", segment=7, token="x"), s),
            "active segments are 0, 1",
        ),
        (
            lambda s: commands.merge_segments(m.MergeSegments(topic="orders", segments=(0, 0), token="x"), s),
            "can merge with: 1",
        ),
        (lambda s: commands.describe_topic(m.DescribeTopic(topic="no"), s), "orders"),
        (
            lambda s: commands.delete_topic(m.DeleteTopic(topic="no", token="x"), s),
            "orders",
        ),
        (
            lambda s: commands.delete_subscription(
                m.DeleteSubscription(topic="orders", subscription="no", token="x"), s
            ),
            "it has: none",
        ),
    ],
    ids=[
        "split in no topic",
        "split of no segment",
        "merge with itself",
        "describe nothing",
        "delete nothing",
        "no subscription",
    ],
)
def test_a_refusal_lists_the_valid_choices(topic: Shard, decide: Any, said: str) -> None:
    refusal = decide(topic.state)

    assert isinstance(refusal, Refusal)
    assert "invalid" == refusal.verdict
    assert said in refusal.reason


def test_deleting_what_consumers_use_requires_force(topic: Shard) -> None:
    register = m.RegisterConsumer(
        topic="orders",
        subscription="s",
        consumer="c1",
        incarnation=1,
        subscription_type="STREAM",
    )
    created = commands.create_subscription(register, topic.state.topics["orders"], topic.state.next_id)
    registered = e.ConsumerRegistered(
        topic_id=1, subscription_id=created.subscription_id, consumer="c1", incarnation=1, client_id="c"
    )
    topic.state.apply_all([created, registered], chunk=3, at_ms=0)
    delete_topic = m.DeleteTopic(topic="orders", token="x")
    delete_subscription = m.DeleteSubscription(topic="orders", subscription="s", token="y")

    for refusal in (
        commands.delete_topic(delete_topic, topic.state),
        commands.delete_subscription(delete_subscription, topic.state),
    ):
        assert isinstance(refusal, Refusal)
        assert "c1" in refusal.reason
    forced = m.DeleteTopic(topic="orders", token="x", force=True)
    assert isinstance(topic.do(commands.delete_topic(forced, topic.state)), m.Done)
    assert isinstance(topic.do(commands.delete_topic(forced, topic.state)), m.Done)


@pytest.mark.parametrize(("start", "positions"), [("earliest", {}), ("latest", {0: 4, 1: 0, 2: 0, 3: 0})])
def test_a_subscription_starts_at_the_requested_position(topic: Shard, start: Any, positions: dict[int, int]) -> None:
    """LATEST starts at the present end of every segment, also of sealed ones, which are thus drained."""
    topic.state.begin_chunk(3, 0)
    topic.state.topics["orders"].tails[0].next_offset = 4
    topic.state.apply(e.SegmentSplit(topic_id=1, segment=0, end_offset=4, token="x"))
    register = m.RegisterConsumer(
        topic="orders",
        subscription="s",
        consumer="c1",
        incarnation=1,
        subscription_type="QUEUE",
        start=start,
    )

    entry = commands.create_subscription(register, topic.state.topics["orders"], 9)

    assert (positions, "none", "count") == (entry.positions, entry.order, entry.balance)
    by_load = commands.create_subscription(
        msgspec.structs.replace(register, balance="load"), topic.state.topics["orders"], 9
    )
    assert "load" == by_load.balance


def test_records_are_routed_by_hash_in_the_order_of_the_batch(topic: Shard) -> None:
    keys = [b"k%d" % n for n in range(50)]
    batch = m.ProduceBatch(topic="orders", records=[m.Record(key, b"v" * 3, 7) for key in keys])
    topic.state.topics["orders"].tails[1].next_offset = 100

    entry, columns = route_batch(topic.state.topics["orders"], batch)

    expected = [0 if segment_hash(key) < 0x8000 else 1 for key in keys]
    assert expected == columns.segment
    assert keys == columns.key
    for segment, start in ((0, 0), (1, 100)):
        offsets = [offset for offset, where in zip(columns.offset, columns.segment, strict=True) if where == segment]
        assert list(range(start, start + len(offsets))) == offsets
    assert [(0, 0), (1, 100)] == [(placement.segment, placement.first_offset) for placement in entry.placements]
    assert 50 == sum(placement.count for placement in entry.placements)


def test_the_reason_names_an_oversized_record_its_size_and_the_limit() -> None:
    batch = m.ProduceBatch(
        topic="orders",
        records=[m.Record(b"k", b"v", 0), m.Record(b"k", b"v" * m.MAX_RECORD_BYTES, 0)],
    )

    assert f"record 1 has {m.MAX_RECORD_BYTES + 1} bytes" in (oversized_reason(batch) or "")
    assert oversized_reason(m.ProduceBatch(topic="t", records=[m.Record(b"", b"", 0)])) is None


def _set(shard: Shard, token: str, **fields: Any) -> Any:
    return commands.set_topic_policy(m.SetTopicPolicy(topic="orders", token=token, **fields), shard.state)


def test_setting_a_policy_changes_only_the_given_fields(topic: Shard) -> None:
    topic.do(_set(topic, "p1", auto_split=True, max_segments=8))
    reply = topic.do(_set(topic, "p2", retention_ms=1000, reset=["max_segments"]))

    assert reply.topic.policy == e.TopicPolicy(auto_split=True, retention_ms=1000)
    assert topic.state.topics["orders"].policy == reply.topic.policy


def test_a_repeated_change_of_policy_is_not_executed_twice(topic: Shard) -> None:
    topic.do(_set(topic, "p1", auto_split=True))
    topic.do(_set(topic, "p2", auto_split=False))

    repeated = _set(topic, "p1", auto_split=True)
    assert repeated.entries == ()
    assert topic.do(repeated).topic.policy.auto_split is False


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"min_segments": 9}, "min_segments 9 is above max_segments 8"),
        ({"auto_split": True, "reset": ["auto_split"]}, "auto_split: give a value or reset it"),
    ],
    ids=["with what was set before", "both at once"],
)
def test_a_contradictory_policy_is_refused(topic: Shard, fields: dict[str, Any], reason: str) -> None:
    topic.do(_set(topic, "p1", max_segments=8))

    refusal = _set(topic, "p2", **fields)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_a_policy_of_an_unknown_topic_is_refused(shard: Shard) -> None:
    refusal = _set(shard, "p1", auto_split=True)

    assert isinstance(refusal, Refusal)
    assert refusal.after_barrier
