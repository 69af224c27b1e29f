"""Into how many shares segments are cut, rule by rule, then through random joins and leaves."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.balancing.bucket_split import Pool, pools
from coordinator.balancing.target import AssignmentInput, assign
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS


def names(count: int, prefix: str = "c") -> list[str]:
    return [f"{prefix}{number:03d}" for number in range(count)]


def cut(segments: int, consumers: int, standing: dict[SegmentSlice, str] | None = None) -> list[SegmentSlice]:
    (pool,) = pools("STREAM", list(range(segments)), dict.fromkeys(names(consumers), True), standing or {})
    return list(pool.slices)


def halves(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, 0, 8), BucketRange(segment, 8, 16)]


def quarters(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, first, first + 4) for first in range(0, 16, 4)]


def settled(slices: list[SegmentSlice], consumers: int) -> dict[SegmentSlice, str]:
    return dict(zip(slices, names(consumers), strict=False))


@pytest.mark.parametrize("kind", ["CHECKPOINT", None])
def test_rule_1_what_keeps_no_positions_here_is_never_shared(kind) -> None:
    assert [Pool([0], {"a": True, "b": True})] == pools(kind, [0], {"a": True, "b": True}, {})


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
def test_rule_1_stream_and_queue_are_shared(kind) -> None:
    assert [Pool(halves(0), ["a", "b"])] == pools(kind, [0], {"a": True, "b": True}, {})


def test_rule_2_nothing_is_shared_while_there_are_enough_segments() -> None:
    assert [0, 1, 2] == cut(3, 3)
    assert [0, 1, 2] == cut(3, 3, {BucketRange(0, 0, 8): "c000", BucketRange(0, 8, 16): "c001", 1: "c002"})


def test_rule_3_there_are_as_many_places_as_consumers_and_no_more_than_buckets() -> None:
    assert [*halves(0), 1, 2] == cut(3, 4)
    assert 32 == len(cut(2, 32)) == len(cut(2, 40))


def test_rule_4_the_largest_is_cut_and_a_free_one_rather_than_a_held_one() -> None:
    assert [*halves(0), *halves(1)] == cut(2, 4, {**dict.fromkeys(halves(0), "x"), 1: "y"})
    assert [0, *halves(1)] == cut(2, 3, {0: "c000"})
    assert [0, *halves(1)] == cut(2, 3, {0: "c000"}), "the other one waits for its holder to confirm"


def test_rule_5_the_smallest_are_joined() -> None:
    standing = settled([*quarters(0)[:2], BucketRange(0, 8, 16), *halves(1)], 5)

    assert [*halves(0), *halves(1)] == cut(2, 4, standing)


def test_rule_5_what_is_even_stays_cut_until_twice_as_much_as_needed() -> None:
    standing = settled(quarters(0), 4)

    assert quarters(0) == cut(1, 4, standing) == cut(1, 3, standing)
    assert halves(0) == cut(1, 2, standing)
    assert [0] == cut(1, 1, standing)


def test_rule_5_a_free_pair_is_joined_before_a_held_one() -> None:
    standing = settled([*halves(0), BucketRange(1, 0, 8), 2], 4)

    assert [*halves(0), 1, 2] == cut(3, 4, standing)


def test_rule_6_who_cannot_share_gets_whole_segments() -> None:
    consumers = {"new1": True, "new2": True, "new3": True, "old": False}
    found = pools("STREAM", [0, 1], consumers, {0: "new1", 1: "old"})

    assert [
        Pool([BucketRange(0, 0, 4), BucketRange(0, 4, 8), BucketRange(0, 8, 16)], ["new1", "new2", "new3"]),
        Pool([1], ["old"]),
    ] == [Pool(sorted(pool.slices), pool.consumers) for pool in found]


def test_rule_6_those_who_can_share_are_not_left_out_for_one_who_cannot() -> None:
    found = pools("STREAM", [0], {"new1": True, "new2": True, "old": False}, {0: "old"})

    assert [Pool(halves(0), ["new1", "new2"])] == found


@pytest.mark.parametrize("able", [0, 1])
def test_rule_6_sharing_takes_two_who_can(able: int) -> None:
    consumers = {name: index < able for index, name in enumerate(names(3))}

    assert [Pool([0], consumers)] == pools("STREAM", [0], consumers, {})


MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 20)), max_size=12)


class AssignmentModel:
    """Consumers that join and leave; every move is carried out at once."""

    def __init__(self, segments: int) -> None:
        self.segments = list(range(segments))
        self.consumers: dict[str, bool] = {}
        self.held: dict[SegmentSlice, str] = {}
        self.joined = 0

    def step(self, joins: bool, pick: int, count: int) -> None:
        for _ in range(count):
            if joins:
                self.consumers[f"c{self.joined:04d}"] = True
                self.joined += 1
            elif self.consumers:
                del self.consumers[sorted(self.consumers)[pick % len(self.consumers)]]
        self.settle()

    def settle(self) -> None:
        standing = {place: name for place, name in self.held.items() if name in self.consumers}
        self.held = {}
        for pool in pools("QUEUE", self.segments, self.consumers, standing):
            self.held |= assign(AssignmentInput(pool.slices, pool.consumers, standing))


@given(st.integers(1, 6), MOVES)
def test_every_bucket_has_one_owner_and_shares_are_even_whoever_comes_and_goes(segments: int, moves: list) -> None:
    model = AssignmentModel(segments)
    for joins, pick, count in moves:
        model.step(joins, pick, count)
        if not model.consumers:
            assert {} == model.held
            continue
        buckets = sorted((segment_of(place), bucket) for place in model.held for bucket in buckets_of(place))
        assert buckets == [(segment, bucket) for segment in range(segments) for bucket in range(KEY_BUCKETS)]
        owned = [list(model.held.values()).count(name) for name in model.consumers]
        assert max(owned) - min(owned) <= 1
        if len(model.consumers) <= segments:
            assert set(range(segments)) == set(model.held)
        else:
            assert min(owned) == 1 or len(model.consumers) > segments * KEY_BUCKETS
            sizes = {len(buckets_of(place)) for place in model.held}
            assert max(sizes) <= 2 * min(sizes)


@given(st.integers(1, 6), st.integers(2, 60))
def test_one_more_consumer_takes_from_one_holder(segments: int, consumers: int) -> None:
    model = AssignmentModel(segments)
    model.step(True, 0, segments + consumers)
    before = dict(model.held)
    model.step(True, 0, 1)

    assert len([place for place, name in before.items() if model.held.get(place) != name]) <= 1


@given(st.integers(1, 6), st.integers(2, 60), st.integers(0, 100))
def test_one_consumer_less_takes_from_two_holders_at_most(segments: int, consumers: int, pick: int) -> None:
    model = AssignmentModel(segments)
    model.step(True, 0, segments + consumers)
    before = dict(model.held)
    model.step(False, pick, 1)

    moved = [p for p, name in before.items() if name in model.consumers and model.held.get(p) != name]
    assert len(moved) <= 2


def test_what_is_decided_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from coordinator.balancing.bucket_split import pools\n"
        "from headgate.model.bucket_ranges import BucketRange\n"
        "standing = {BucketRange(0, 0, 4): 'b', BucketRange(0, 4, 8): 'a', BucketRange(0, 8, 16): 'c', 1: 'd', 2: 'e'}\n"
        "for count in (4, 5, 9, 30):\n"
        "    consumers = {f'c{n}': n % 4 > 0 for n in range(count)}\n"
        "    print([(list(map(str, p.slices)), list(p.consumers)) for p in pools('STREAM', [0, 1, 2], consumers, standing)])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert 1 == len(outputs)
    assert "[0-3]" in outputs.pop()
