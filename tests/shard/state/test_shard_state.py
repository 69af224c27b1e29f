"""The same entries give the same state, and no id is used twice."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from shard.state import shard_state
from shard.state.consumers import Consumers, RemovedConsumer
from shard.state.shard_state import TERM_BITS, DeletedMembers, ShardState, Terms, Tombstone, Usage
from shard.state.subscription import Subscription
from shard.state.topic import SegmentTail
from tests.support.samples.histories import History
from tests.support.samples.stored_batches import stored_batch


def state_after(*chunks: list[Any]) -> ShardState:
    state = ShardState(0)
    for number, entries in enumerate(chunks, start=1):
        state.apply_all(entries, chunk=number, at_ms=number * 1000)
    return state


CREATED = e.TopicCreated(topic_id=1, topic="orders", segments=2, token="create")
OPENED = e.ProducerOpened(producer_id=2, producer_epoch=0, token="open")


def stored(sequence: int, first_offset: int, **kwargs: Any) -> e.RecordsStored:
    return stored_batch(sequence, first_offset, count=2, producer_id=2, **kwargs)


def subscribed(number: int = 2, name: str = "s", **kwargs: Any) -> e.SubscriptionCreated:
    given = {"subscription_type": "STREAM", "order": "strict", "positions": {}} | kwargs
    return e.SubscriptionCreated(topic_id=1, subscription_id=number, subscription=name, **given)


def test_records_advance_the_segment_and_the_producer() -> None:
    state = state_after([CREATED, OPENED], [stored(0, 0), stored(1, 2, source_position=b"line 4")])

    tail = state.topics["orders"].tails[0]
    assert (4, 40, [(0, 2)]) == (tail.next_offset, tail.size_bytes, tail.index)
    assert (2, {1: b"line 4"}) == (state.producers[2].next_sequence, state.producers[2].source_positions)


def test_a_batch_without_a_source_position_keeps_the_last_one() -> None:
    state = state_after([CREATED, OPENED], [stored(0, 0, source_position=b"a"), stored(1, 2)])

    assert {1: b"a"} == state.producers[2].source_positions


def test_an_offset_or_sequence_that_is_not_the_next_one_is_a_bug() -> None:
    """Applying it would hide a gap, so the term ends."""
    with pytest.raises(AssertionError, match="offset 5"):
        state_after([CREATED, OPENED], [stored(0, 5)])
    with pytest.raises(AssertionError, match="sequence 3"):
        state_after([CREATED, OPENED], [stored(3, 0)])


def test_chunks_are_applied_without_gaps() -> None:
    with pytest.raises(AssertionError, match="chunk 3 after 1"):
        state_after([CREATED]).begin_chunk(3, 0)


def test_ledger_time_never_decreases() -> None:
    """A new leader's clock may be behind its predecessor's."""
    state = ShardState(0)
    state.begin_chunk(1, 5000)
    state.begin_chunk(2, 3000)

    assert 5000 == state.at_ms


def test_a_topic_created_again_is_another_topic() -> None:
    """It does not inherit the subscriptions of the deleted topic."""
    state = state_after([CREATED, subscribed()], [e.TopicDeleted(topic_id=1, token="gone")])
    assert 3 == state.ids.next_id
    assert ({}, {}, {}) == (state.topics, state.topics_by_id, state.subscriptions)

    state.apply_all([e.TopicCreated(topic_id=3, topic="orders", segments=1, token="again")], chunk=3, at_ms=0)
    assert {} == state.topics["orders"].subscriptions


def test_a_split_and_a_merge_give_their_children_empty_tails() -> None:
    state = state_after(
        [CREATED, OPENED],
        [stored(0, 0)],
        [e.SegmentSplit(topic_id=1, segment=0, end_offset=2, token="split")],
        [e.SegmentsMerged(topic_id=1, segments=(3, 1), end_offsets=(0, 0), token="merge")],
    )
    topic = state.topics["orders"]

    assert {0, 1, 2, 3, 4} == set(topic.layout.segments) == set(topic.tails)
    assert [2, 4] == [segment.segment_id for segment in topic.layout.active()]
    assert {"create", "split", "merge"} == set(state.commands)


def test_a_split_makes_no_tails_of_segments_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger with a thousand splits of a wide topic is read with each start."""
    state = state_after([CREATED])
    made: list[SegmentTail] = []
    monkeypatch.setattr(shard_state, "SegmentTail", lambda: made.append(SegmentTail()) or made[-1])
    state.apply_all([e.SegmentSplit(topic_id=1, segment=0, end_offset=0, token="s")], chunk=2, at_ms=2)

    assert made == [state.topics["orders"].tails[2], state.topics["orders"].tails[3]]


def test_pruning_removes_every_reference_to_a_segment() -> None:
    drained = e.SegmentsDrained(topic_id=1, subscription_id=2, segments=[0], seek_generation=0)
    state = state_after(
        [CREATED, subscribed(positions={0: 3})],
        [e.SegmentSplit(topic_id=1, segment=0, end_offset=0, token="s")],
        [drained],
        [e.SegmentsPruned(topic_id=1, segments=[0])],
    )
    subscription = state.topics["orders"].subscriptions["s"]

    assert 0 not in state.topics["orders"].tails
    assert (set(), {}) == (subscription.drained, subscription.progress.positions)


@pytest.mark.parametrize(
    ("external", "kind", "dropped"),
    [(False, "STREAM", 5), (False, "QUEUE", 5), (False, "CHECKPOINT", 0), (True, "STREAM", 0)],
)
def test_a_subscription_counts_the_unread_records_of_a_pruned_segment(external: bool, kind: str, dropped: int) -> None:
    """Offsets of an external topic count no records. A record that has failed counts once."""
    imported = e.ImportedSegment(segment=0, label="a", end_offset=8)
    created = [e.TopicImported(topic_id=1, topic="orders", token="x", segments=[imported], positions="offsets")]
    stored = [
        CREATED,
        e.RecordsStored(topic_id=1, count=8, placements=[e.Placement(0, 0, 65535, 0, 8)], size_bytes=8),
        e.SegmentRolled(topic_id=1, segment=0, end_offset=8, reason="age"),
    ]
    failed = e.DeliveriesFailed(topic_id=1, subscription_id=2, records=[(0, 5, 3, 0, "")])
    used = [subscribed(positions={0: 3}, subscription_type=kind), *[failed] * (kind == "QUEUE")]
    state = state_after(created if external else stored, used, [e.SegmentsPruned(topic_id=1, segments=[0])])

    assert dropped == state.topics["orders"].subscriptions["s"].dropped_records


@pytest.mark.parametrize(("age_ms", "term", "kept"), [(600_000, 0, 10_000), (600_001, 0, 256), (600_001, 1, 10_000)])
def test_stored_commands_are_limited_by_number_and_age_which_a_new_leader_does_not_know(age_ms, term, kept):
    """Its clock may be ahead. Clients repeat the commands that its predecessor has not answered."""
    policies = [e.TopicPolicySet(topic_id=1, policy=e.NO_POLICY, token=f"k{n}") for n in range(12_000)]
    state = state_after([e.TopicCreated(topic_id=1, topic="orders", segments=1, token="create"), *policies])
    entries = [e.TermStarted(leader_epoch=1, instance="a")] * term + [e.TopicDeleted(topic_id=1, token="delete")]
    state.apply_all(entries, chunk=state.chunk + 1, at_ms=state.at_ms + age_ms)

    assert [*(f"k{n}" for n in range(12_001 - kept, 12_000)), "delete"] == list(state.commands)


def test_the_index_of_a_segment_is_limited_and_never_skips_an_offset() -> None:
    """A consumer that starts at the returned chunk must find its offset there or later."""
    tail = SegmentTail()
    for chunk in range(1, 5000):
        tail.add_index_entry((chunk - 1) * 3, chunk)

    assert len(tail.index) <= 128
    for offset in range(0, 14_000, 97):
        true_chunk = offset // 3 + 1
        assert tail.chunk_of(offset) <= true_chunk
        assert true_chunk - tail.chunk_of(offset) <= 2 * tail.stride


def test_the_index_of_a_segment_names_every_chunk_up_to_128() -> None:
    tail = SegmentTail()
    for chunk in range(1, 129):
        tail.add_index_entry(chunk, chunk)
    assert 128 == len(tail.index)

    tail.add_index_entry(129, 129)
    assert [(chunk, chunk) for chunk in range(1, 130, 2)] == tail.index


def test_the_first_offset_of_an_indexed_chunk_is_found_there() -> None:
    tail = SegmentTail()
    assert 1 == tail.chunk_of(0), "of an empty segment"
    for chunk in range(1, 4):
        tail.add_index_entry(10 * chunk, chunk)

    assert [1, 1, 1, 2, 2, 3, 3] == [tail.chunk_of(offset) for offset in (0, 10, 19, 20, 29, 30, 99)]


SPLIT = e.SegmentSplit(topic_id=1, segment=0, end_offset=0, token="split")


@pytest.mark.parametrize(
    ("ended", "segments"),
    [
        (e.SegmentsPruned(topic_id=1, segments=[0], token="end"), [0]),
        (e.TopicDeleted(topic_id=1, token="end"), [0, 1, 2, 3]),
    ],
    ids=["pruned", "with its topic, after all other state of which its data is deleted"],
)
def test_a_segment_that_is_gone_has_a_tombstone_until_its_data_is_deleted(ended: Any, segments: list[int]) -> None:
    state = state_after([CREATED], [SPLIT], [ended])

    assert {(1, segment): Tombstone(3, 3000) for segment in segments} == state.tombstones
    assert "end" in state.commands
    state.apply_all([e.DataDeleted(topic_id=1, segments=segments)], chunk=4, at_ms=4000)
    assert {} == state.tombstones


def test_traffic_is_counted_until_a_segment_is_sealed() -> None:
    state = state_after([CREATED, OPENED], [stored(0, 0)])
    assert [(0, 2, 20)] == state.topics["orders"].tails[0].traffic.slots

    state.apply_all([e.SegmentRolled(topic_id=1, segment=0, end_offset=2, reason="age")], chunk=3, at_ms=3000)
    assert [[], [(0, 2, 20)]] == [state.topics["orders"].tails[each].traffic.slots for each in (0, 2)], "continues in 2"


def test_only_an_entry_of_a_topic_has_one() -> None:
    state = state_after([CREATED])

    assert state.topics["orders"] is state.topic_of(e.TopicDeleted(topic_id=1, token="t"))
    assert state.topic_of(e.TopicDeleted(topic_id=2, token="t")) is None
    assert state.topic_of(e.LedgerTrimmed(below=2)) is None


def ids_of_a_term(state: ShardState, term_id: int, count: int = 100) -> list[int]:
    """Return the ids of topics that are created one after the other."""
    ids: list[int] = []
    state.apply(e.TermStarted(leader_epoch=2, instance="a", term_id=term_id))
    for _ in range(count):
        ids.append(state.ids.next_id)
        state.apply(e.TopicCreated(topic_id=ids[-1], topic=str(ids[-1]), segments=1, token="t"))
        state.apply(e.TopicDeleted(topic_id=ids[-1], token="d"))
    return ids


@given(term_ids=st.lists(st.integers(1, 2**63 - 1), min_size=2, max_size=2, unique_by=lambda each: each % 2**TERM_BITS))
def test_no_id_is_used_twice_also_if_the_ledger_was_put_back(term_ids: list[int]) -> None:
    """Earlier versions numbered ids; a term of theirs continues, and a new one meets none of them."""
    restored = [state_after([CREATED, subscribed()], [e.TopicDeleted(topic_id=1, token="d")]) for _ in range(2)]
    lost, present = (ids_of_a_term(*each) for each in zip(restored, term_ids, strict=True))

    assert [3, 4] == ids_of_a_term(state_after([CREATED, subscribed()]), 0, 2)
    assert len({1, 2, *lost, *present}) == 202
    assert max(*lost, *present) < 2**53


def test_a_new_subscription_counts_as_unused() -> None:
    assert 1000 == state_after([CREATED, subscribed()]).subscriptions[2].consumers.unused_since_ms


def test_only_a_term_entry_starts_a_term() -> None:
    term = [e.TermStarted(leader_epoch=1, instance="a")]

    assert state_after([CREATED], term, [e.LedgerTrimmed(below=2)], [OPENED]).terms.started_at_ms == 2000


def test_consumers_of_a_deleted_subscription_are_stored_by_its_name_for_a_limited_time() -> None:
    def subscription(number: int, name: str) -> list[Any]:
        ids = {"topic_id": 1, "subscription_id": number}
        created = subscribed(number, name)
        ada = e.ConsumerRegistered(**ids, consumer="ada", incarnation=number, client_id="c")
        return [created, ada, e.SubscriptionDeleted(**ids, token=f"delete {number}")]

    state = state_after([CREATED], subscription(2, "billing"), subscription(3, "alarms"))
    topic = state.topics["orders"]
    assert [RemovedConsumer("ada", 2, "c", 2000)] == state.deleted_members.of("orders", "billing")
    assert [] == state.deleted_members.of("payments", "billing")

    created = subscription(4, "billing")[0]
    state.apply_all([created], chunk=4, at_ms=4000)
    assert topic.subscriptions["billing"].consumers.find_removed("ada", 2, "c"), "a late copy finds a new one"
    assert not topic.subscriptions["billing"].consumers.find_removed("ada", 3, "c")

    state.apply_all([e.SubscriptionDeleted(topic_id=1, subscription_id=4, token="4")], chunk=5, at_ms=4000)
    assert 1 == len(state.deleted_members.of("orders", "billing")), "known to both subscriptions"

    state.apply_all(subscription(5, "audit"), chunk=6, at_ms=603_000)
    assert ["audit"] == [name for _, name, _ in state.deleted_members.members]


@pytest.mark.parametrize(("age_ms", "term"), [(599_999, 0), (600_000, 0), (600_000, 1), (3_600_000, 0), (3_600_001, 0)])
def test_removed_consumers_and_deleted_names_are_remembered_until_a_leader_has_led_for_ten_minutes(age_ms, term):
    """A step of its clock, beyond the pause of an idle leader, counts like the beginning of a term."""
    known = not 600_000 <= age_ms <= 3_600_000 or term > 0
    ids = {"topic_id": 1, "subscription_id": 2, "incarnation": 1}
    joined = [e.ConsumerRegistered(**ids, consumer=name, client_id="c") for name in ("ada", "bob")]
    opened = e.ProducerOpened(producer_id=7, producer_epoch=0, token="o", user="u", name="loader", incarnation=3)
    left = e.ConsumerRemoved(**ids, consumer="ada", reason="left")
    state = state_after([CREATED, subscribed(), *joined, opened], [left, e.ProducerDeleted(producer_id=7, token="d")])
    entries = [e.TermStarted(leader_epoch=1, instance="a")] * term
    entries += [e.ConsumerRemoved(**ids, consumer="bob", reason="evicted")]
    state.apply_all(entries, chunk=state.chunk + 1, at_ms=state.at_ms + age_ms)

    assert known == bool(state.subscriptions[2].consumers.find_removed("ada", 1, "c"))
    assert (3 if known else -1) == state.producers.deleted_incarnation("loader", state.forgotten_ms)


def test_consumers_of_a_deleted_topic_do_not_come_back_with_a_new_topic_of_the_name() -> None:
    ids = {"topic_id": 1, "subscription_id": 2}
    ada = e.ConsumerRegistered(**ids, consumer="ada", incarnation=2, client_id="c")
    deleted = e.TopicDeleted(topic_id=1, token="delete")
    again = e.TopicCreated(topic_id=3, topic="orders", segments=1, token="again")
    created = e.SubscriptionCreated(
        topic_id=3, subscription_id=4, subscription="billing", subscription_type=None, order="strict", positions={}
    )
    state = state_after([CREATED, subscribed(2, "billing"), ada], [deleted], [again, created])

    assert [RemovedConsumer("ada", 2, "c", 2000)] == state.deleted_members.of("orders", "billing")
    assert state.subscriptions[4].consumers.find_removed("ada", 2, "c")


def test_a_limited_number_of_former_consumers_is_remembered() -> None:
    def gone(number: int) -> Subscription:
        left = [RemovedConsumer(f"{number}-{n}", 1, "c", 0) for n in range(1000)]
        return Subscription(1, "orders", number, "billing", None, "none", consumers=Consumers(removed=left))

    members = DeletedMembers()
    members.add([gone(number) for number in range(12)], 1, 0)

    found = [member.consumer for member in members.of("orders", "billing")]
    assert (10_000, "2-0", "11-999") == (len(found), found[0], found[-1])


def test_a_point_of_the_history_is_a_chunk_and_the_term_that_wrote_it() -> None:
    terms = Terms()
    for chunk, term_id in ((1, 11), (5, 55), (6, 66)):
        terms.begin(e.TermStarted(leader_epoch=1, instance="a", term_id=term_id), chunk, 7)

    wrote = {(chunk, term_id) for chunk in range(10) for term_id in (0, 11, 55, 66, 67) if terms.wrote(chunk, term_id)}

    assert {(1, 11), (2, 11), (3, 11), (4, 11), (5, 55), (6, 66), (7, 66), (8, 66), (9, 66)} == wrote
    assert (66, 7) == (terms.newest_id, terms.started_at_ms)
    assert (False, 0) == (Terms().wrote(1, 0), Terms().newest_id), "before the first term"


def random_history(seed: int) -> History:
    history = History(seed)
    history.grow(60)
    return history


@pytest.mark.parametrize("seed", range(12))
def test_the_counts_equal_a_count_of_everything(seed: int) -> None:
    state = random_history(seed).state
    counted = Usage()
    for topic in state.topics.values():
        counted.add_topic(topic)

    assert counted == state.usage
    assert all(count > 0 for count in state.usage.values())


@pytest.mark.parametrize("seed", range(12))
def test_the_producers_of_each_user_are_counted_and_ordered_by_use(seed: int) -> None:
    history = random_history(seed)
    producers = history.state.producers

    assert Counter(producer.user for producer in history.state.producers.values()) == Counter(
        {user: producers.count_of(user) for user in ("u0", "u1") if producers.count_of(user)}
    )
    for user in ("u0", "u1"):
        assert [each for each in producers.anonymous.values() if each.user == user] == list(
            producers.anonymous_of(user)
        )
