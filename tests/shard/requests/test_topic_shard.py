"""A name becomes a topic on one shard only, whichever lists of shards its leaders and clients know."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.hashing import ShardMap
from headgate.protocol.replies import TopicPlace
from headgate.protocol.requests import CreateTopic, FindTopic, ImportTopic, SegmentImport
from shard.requests.handlers import Decision
from shard.requests.topic_commands import create_topic
from shard.requests.topic_import import import_topic
from shard.requests.topic_shard import find_place, refuse_creation
from shard.state.shard_state import ShardState
from shard.steps import complete
from shard.subscriptions.refusal import Refusal

OLD, NEW = [4], [4, 16]
NAME = "orders"
"""Its places by `NEW` are 9 and 1."""


def shard(number: int, *entries: e.AnyEntry) -> ShardState:
    state = ShardState(number)
    state.apply_all(entries, chunk=1, at_ms=0)
    return state


def grown(counts: list[int]) -> e.ShardsGrown:
    return e.ShardsGrown(counts=tuple(counts))


def listing(shards: list[int]) -> ImportTopic:
    return ImportTopic(topic=NAME, token="t", segments=[SegmentImport(segment="a")], positions="opaque", shards=shards)


@pytest.mark.parametrize(
    ("number", "known", "asked", "verdict"),
    [
        pytest.param(1, None, OLD, None, id="before the growth"),
        pytest.param(1, None, [], None, id="a client without a list, before the growth"),
        pytest.param(1, None, NEW, "unavailable", id="the client is ahead"),
        pytest.param(9, None, NEW, "unavailable", id="the client is ahead of a new shard"),
        pytest.param(1, NEW, OLD, "invalid", id="the client is behind"),
        pytest.param(1, NEW, [], "invalid", id="a client without a list"),
        pytest.param(1, NEW, NEW, "invalid", id="the name belongs elsewhere now"),
        pytest.param(9, NEW, NEW, None, id="the new place"),
        pytest.param(9, NEW, [4, 9, 16], "unavailable", id="one growth behind"),
        pytest.param(9, NEW, [5, 16], "invalid", id="another cluster's list"),
    ],
)
def test_a_leader_creates_what_belongs_to_its_shard_by_the_list_of_its_ledger(
    number: int, known: list[int] | None, asked: list[int], verdict: str | None
) -> None:
    state = shard(number, *([] if known is None else [grown(known)]))
    refusal = refuse_creation(NAME, asked, state)
    created = create_topic(CreateTopic(topic=NAME, token="t", shards=asked), state, "ada")
    imported = complete(import_topic(listing(shards=asked), state, "ada"))

    assert (None if refusal is None else refusal.verdict) == verdict
    assert isinstance(created, Refusal) == isinstance(imported, Refusal) == (verdict is not None)


def test_an_imported_topic_stays_and_is_imported_again_where_it_is() -> None:
    segments = [e.ImportedSegment(segment=0, label="a")]
    known = e.TopicImported(topic_id=1, topic=NAME, token="i", segments=segments, positions="opaque")

    assert isinstance(complete(import_topic(listing(shards=NEW), shard(1, known, grown(NEW)), "ada")), Decision)


def test_an_existing_topic_stays_and_a_repeated_command_gets_its_reply() -> None:
    created = e.TopicCreated(topic_id=1, topic=NAME, segments=1, token="t")
    state = shard(1, created, grown(NEW))
    assert (len(NEW) - 1) << 40 == state.ids.next_id, "no id is used for two numbers of shards"

    assert isinstance(create_topic(CreateTopic(topic=NAME, token="t", shards=NEW), state, "ada"), Decision)
    assert "already exists" in create_topic(CreateTopic(topic=NAME, token="u", shards=NEW), state, "ada").reason
    assert find_place(FindTopic(topic=NAME), state).answer(state) == TopicPlace(topic_id=1, shards=NEW)


LISTS = [[2], [2, 3], [2, 3, 7]]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 6), st.integers(1, 2)),
        st.tuples(st.just("create"), st.integers(0, 2)),
        st.tuples(st.just("look"), st.integers(0, 2), st.integers(0, 6)),
        st.tuples(st.just("delete"), st.integers(0, 6)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([f"t{number}" for number in range(20)]))
def test_no_order_of_steps_gives_two_shards_one_name(steps: list[tuple], name: str) -> None:
    """Clients with a list each ask one place at a time, and create once all have said that they do not have the name.

    In between, leaders store lists in any order, and other clients create and delete.
    """
    states = [ShardState(number) for number in range(7)]
    proofs: list[set[int]] = [set(), set(), set()]
    ids: list[int] = []
    for chunk, (what, *which) in enumerate(steps, 1):
        for state in states:
            state.begin_chunk(chunk, 0)
        match what, which:
            case "store", [number, length] if len(states[number].ids.shard_counts) <= length:
                states[number].apply(grown(LISTS[length]))
            case "look", [client, number]:
                place = find_place(FindTopic(topic=name), states[number]).answer(states[number])
                if place.topic_id is None and place.shards == (LISTS[client] if client else []):
                    proofs[client].add(number)
            case "create", [client]:
                places = ShardMap(tuple(LISTS[client])).candidates(name)
                if not set(places[1:]) <= proofs[client]:
                    continue
                request = CreateTopic(topic=name, token=f"t{chunk}", shards=LISTS[client])
                decision = create_topic(request, states[places[0]], "ada")
                if isinstance(decision, Decision):
                    states[places[0]].apply(decision.entries[0])
                    ids.append(decision.entries[0].topic_id)
            case "delete", [number] if name in states[number].topics:
                topic_id = states[number].topics[name].topic_id
                states[number].apply(e.TopicDeleted(topic_id=topic_id, token=f"d{chunk}"))
        assert sum(name in state.topics for state in states) <= 1
    assert all(first < second for first, second in pairwise(ids))
