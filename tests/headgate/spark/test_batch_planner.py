"""Micro-batches over random histories of a topic: order, limits, progress, and what was pruned unread."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import OtherHistoryError, PositionOutOfRangeError
from headgate.model.layout import Layout, SegmentState
from headgate.spark.batch_planner import batch_end, is_complete, readable
from headgate.spark.stream_position import StreamPosition
from headgate.views.topics import SegmentInfo, TopicInfo

STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "write", "split", "merge", "prune", "batch"]), st.integers(0, 9999)),
    max_size=60,
)


class World:
    """A topic, and a query that reads it: each record is (number, segment, offset), and a hash is a key."""

    def __init__(self) -> None:
        self.layout = Layout.initial(2, 0)
        self.numbers = count()
        self.records: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        self.pruned_ends: dict[int, int] = {}
        self.position = StreamPosition(
            topic="t", topic_id=1, ledger_id="l", positions={0: 0, 1: 0}, unfinished=[0, 1], history=[]
        )
        self.newest: dict[int, int] = {}
        """Hash → the newest record of it that was in a batch."""
        self.read: list[int] = []

    def segments(self) -> tuple[SegmentInfo, ...]:
        return tuple(
            SegmentInfo(
                segment=n,
                first_hash=known.first_hash,
                last_hash=known.last_hash,
                state=known.state,
                parents=known.parents,
                children=known.children,
                next_offset=len(self.records[n]),
                size_bytes=7 * len(self.records[n]),
                created_at_ms=0,
            )
            for n, known in sorted(self.layout.segments.items())
        )

    def step(self, verb: str, pick: int) -> None:
        active = sorted(self.layout.active(), key=lambda each: each.first_hash)
        at = pick % len(active)
        chosen = active[at].segment_id
        if verb == "write":
            self.records[chosen].append((next(self.numbers), active[at].first_hash + pick % 2))
        elif verb == "split":
            self.layout = self.layout.split(chosen, len(self.records[chosen]), 0)
        elif verb == "merge" and at:
            pair = [active[at - 1].segment_id, chosen]
            self.layout = self.layout.merge(*pair, {each: len(self.records[each]) for each in pair}, 0)
        elif verb == "prune":
            self.prune(min(self.layout.segments))
        elif verb == "batch":
            self.batch(limit=1 + pick % 5, in_bytes=bool(pick % 3))
        for segment in self.layout.segments:
            self.records.setdefault(segment, [])

    def prune(self, segment: int) -> None:
        """Prune a segment that is acknowledged, which its reader may not know."""
        known, read = self.layout.segments[segment], self.position.positions.get(segment, 0)
        if known.state is SegmentState.SEALED and not known.parents and read == len(self.records[segment]):
            self.layout = self.layout.prune([segment])
            self.pruned_ends[segment] = len(self.records[segment])

    def batch(self, limit: int | None, *, in_bytes: bool = False) -> bool:
        """Read one batch, and check it; return whether it had records."""
        start, segments = self.position.positions, self.segments()
        assert self.position.lost(self.pruned_ends, segments) is None
        end = batch_end(start, segments, limit, in_bytes=in_bytes)
        complete = {each.segment for each in segments if is_complete(each, end)}
        parents = {each.segment: each.parents for each in segments}
        assert all(set(parents[segment]) <= complete for segment, at in end.items() if at)
        assert {segment for segment, at in end.items() if at} <= readable(end, segments).keys()
        batch = [
            record for segment in sorted(end) for record in self.records[segment][start.get(segment, 0) : end[segment]]
        ]
        for number, key in batch:
            assert number > self.newest.get(key, -1)
            self.newest[key] = number
        self.read += [number for number, _ in batch]
        if limit is not None:
            assert len(batch) <= max(1, limit // 7 if in_bytes else limit)
        waits = any(each.next_offset > start.get(each.segment, 0) for each in segments)
        assert waits == bool(batch), "a batch has a record if any waits"
        unfinished = [each.segment for each in segments if each.segment not in complete]
        self.position = msgspec.structs.replace(self.position, positions=end, unfinished=unfinished)
        return bool(batch)


@settings(max_examples=200)
@given(STEPS)
def test_every_record_is_in_one_batch_and_those_of_a_key_in_order(steps: list[tuple[str, int]]) -> None:
    world = World()
    for verb, pick in steps:
        world.step(verb, pick)
    while world.batch(limit=3):
        pass

    assert sorted(world.read) == list(range(next(world.numbers)))


def test_generations_without_records_cost_no_batch() -> None:
    world = World()
    for _ in range(12):
        world.step("split", 0)
    world.step("write", 0)

    assert world.batch(limit=1)
    assert [0] == world.read


def test_segments_share_a_limit_in_proportion_to_what_waits() -> None:
    world = World()
    world.records = {0: [(n, 0) for n in range(30)], 1: [(n, 50_000) for n in range(70)]}

    assert {0: 3, 1: 7} == batch_end({}, world.segments(), 10)
    assert {0: 1, 1: 4} == batch_end({}, world.segments(), 42, in_bytes=True)
    assert {0: 30, 1: 70} == batch_end({}, world.segments())


def after_a_restart(world: World, *pruned: int) -> str | None:
    """Return what was lost if ``pruned`` were pruned while the query was stopped; it knows segments 0 and 1."""
    known = world.position
    for segment in pruned:
        world.pruned_ends[segment] = len(world.records[segment])
        world.layout = world.layout.prune([segment])
    return known.lost(world.pruned_ends, world.segments())


def test_what_was_pruned_unread_is_named() -> None:
    world = World()
    for verb, pick in [("write", 0), ("split", 0), ("write", 0), ("split", 0)]:
        world.step(verb, pick)

    assert "segment 0 of topic 't' was pruned before the query read it: its records 0 to 0 are gone" in (
        after_a_restart(world, 0) or ""
    )
    world.position = msgspec.structs.replace(world.position, positions={0: 1, 1: 0})
    assert "segment 2 of topic 't' was pruned" in (after_a_restart(world, 2) or ""), "the query never saw it"
    del world.pruned_ends[0]
    assert "its records from 1 on are gone" in (after_a_restart(world) or ""), "its end is unknown"


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"ledger_id": "m"}, OtherHistoryError, "the ledger with the id m, .* the ledger with the id l: start a query"),
        ({"topic_id": 7}, PositionOutOfRangeError, "created again: .* id 7, and the present one has the id 1,"),
        ({"topic": "u"}, PositionOutOfRangeError, "of topic 'u', not of 't'"),
        ({"positions": {0: 5}}, OtherHistoryError, "segment 0 of topic 't' ends at 0, before position 5: an older"),
    ],
    ids=["ledger", "created again", "topic", "put back"],
)
def test_a_position_of_something_else_is_refused_with_both_names(change: dict, error: type, text: str) -> None:
    world = World()
    topic = TopicInfo(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=world.segments(), subscriptions=())
    restored = StreamPosition.of_json(msgspec.json.decode(msgspec.json.encode(world.position.to_json())))
    restored.require_present(topic, "l")

    assert world.position == restored
    with pytest.raises(error, match=text):
        msgspec.structs.replace(restored, **change).require_present(topic, "l")
