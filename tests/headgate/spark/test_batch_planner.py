"""Micro-batches over random histories of a topic: order, limits, progress, and what was pruned unread."""

from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import PositionOutOfRangeError
from headgate.model.layout import Layout, SegmentState
from headgate.model.positions import PositionToken
from headgate.reading.topic_position import continued, unfinished
from headgate.spark.micro_batches import StreamPosition, batch_end, is_complete, readable
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
        self.reached, self.newest_segment = {0: 0, 1: 0}, 1
        """What a position remembers: segments that are not read to their end, and the newest one."""
        self.newest: dict[int, int] = {}
        """Hash → the newest record of it that was in a batch."""
        self.read: list[int] = []

    def topic(self) -> TopicInfo:
        segments = tuple(
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
        return TopicInfo(topic="t", topic_id=1, shard=0, layout_epoch=1, segments=segments, subscriptions=())

    def segments(self) -> tuple[SegmentInfo, ...]:
        return self.topic().segments

    def start(self) -> dict[int, int]:
        """Return segment → first unread offset. Raises PositionOutOfRangeError: records were pruned unread."""
        ends = {each.segment: each.next_offset for each in self.segments()}
        return ends | continued(self.topic(), self.newest_segment, self.reached, pruned_ends=self.pruned_ends)

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
        known, read = self.layout.segments[segment], self.start()[segment]
        if known.state is SegmentState.SEALED and not known.parents and read == len(self.records[segment]):
            self.layout = self.layout.prune([segment])
            self.pruned_ends[segment] = len(self.records[segment])

    def batch(self, limit: int | None, *, in_bytes: bool = False) -> bool:
        """Read one batch, and check it; return whether it had records."""
        start, segments = self.start(), self.segments()
        end = batch_end(start, segments, limit, in_bytes=in_bytes)
        complete = {each.segment for each in segments if is_complete(each, end)}
        parents = {each.segment: each.parents for each in segments}
        assert all(set(parents[segment]) <= complete for segment, at in end.items() if at)
        assert {segment for segment, at in end.items() if at} <= readable(end, segments).keys()
        batch = [record for segment in sorted(end) for record in self.records[segment][start[segment] : end[segment]]]
        for number, key in batch:
            assert number > self.newest.get(key, -1)
            self.newest[key] = number
        self.read += [number for number, _ in batch]
        if limit is not None:
            assert len(batch) <= max(1, limit // 7 if in_bytes else limit)
        waits = any(each.next_offset > start[each.segment] for each in segments)
        assert waits == bool(batch), "a batch has a record if any waits"
        self.reached, self.newest_segment = unfinished(self.topic(), end), max(end)
        return bool(batch)


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


def test_what_was_pruned_unread_is_named_and_what_was_read_is_not() -> None:
    world = World()
    for verb, pick in [("write", 0), ("split", 0), ("write", 0), ("split", 0)]:
        world.step(verb, pick)
    world.layout, world.pruned_ends = world.layout.prune([0, 2]), {0: 1, 2: 1}

    with pytest.raises(
        PositionOutOfRangeError, match="segment 0 of topic 't' was read up to offset 0, and pruned since"
    ):
        world.start()
    world.reached[0] = 1
    with pytest.raises(PositionOutOfRangeError, match="segment 2 of topic 't' was read up to offset 0"):
        world.start()
    world.pruned_ends[2] = 0
    assert {1: 0, 3: 0, 4: 0, 5: 0} == world.start()


def test_every_point_of_a_position_token_is_compared() -> None:
    token = PositionToken("t", 1, "l", {0: 5}, [0], [(7, 70), (9, 90)])
    assert [(7, 70), (9, 90)] == [(each.chunk, each.term_id) for each in StreamPosition.of_token(token)]


def test_a_position_is_the_same_after_it_was_in_a_checkpoint() -> None:
    position = StreamPosition(
        topic="t", topic_id=1, ledger_id="l", newest=1, offsets={0: 0, 1: 0}, chunk=3, term_id=2**62 + 1
    )

    assert position == StreamPosition.of_json(msgspec.json.decode(msgspec.json.encode(position.to_json())))
