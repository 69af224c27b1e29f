"""The division of segments into bucket ranges, rule by rule, then with random joins and leaves."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of
from headgate.model.hashing import KEY_BUCKETS
from shard.balancing.bucket_split import Pool, pools
from shard.balancing.target import AssignmentInput, assign


def names(count: int, prefix: str = "c") -> list[str]:
    return [f"{prefix}{number:03d}" for number in range(count)]


def divide(segments: int, consumers: int, holders: dict[SegmentSlice, str] | None = None) -> list[SegmentSlice]:
    (pool,) = pools("STREAM", list(range(segments)), dict.fromkeys(names(consumers), True), holders or {})
    return list(pool.slices)


def halves(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, 0, 8), BucketRange(segment, 8, 16)]


def quarters(segment: int) -> list[BucketRange]:
    return [BucketRange(segment, first, first + 4) for first in range(0, 16, 4)]


def assigned(slices: list[SegmentSlice], consumers: int) -> dict[SegmentSlice, str]:
    return dict(zip(slices, names(consumers), strict=False))


@pytest.mark.parametrize("kind", ["CHECKPOINT", None])
def test_rule_1_checkpoint_and_unknown_types_are_never_shared(kind) -> None:
    assert [Pool([0], {"a": True, "b": True})] == pools(kind, [0], {"a": True, "b": True}, {})


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
def test_rule_1_stream_and_queue_are_shared(kind) -> None:
    assert [Pool(halves(0), ["a", "b"])] == pools(kind, [0], {"a": True, "b": True}, {})


def test_rule_2_no_segment_is_shared_while_there_are_enough() -> None:
    assert [0, 1, 2] == divide(3, 3)
    assert [0, 1, 2] == divide(3, 3, {BucketRange(0, 0, 8): "c000", BucketRange(0, 8, 16): "c001", 1: "c002"})


def test_rule_2_with_a_consumer_for_each_segment_all_get_whole_ones_from_one_pool() -> None:
    consumers = {"old": False, "new1": True, "new2": True}

    assert [Pool([0, 1, 2], consumers)] == pools("STREAM", [0, 1, 2], consumers, {})


def test_rule_2_without_segments_there_is_nothing_to_share() -> None:
    assert [Pool([], {"a": True, "b": True})] == pools("QUEUE", [], {"a": True, "b": True}, {})


def test_rule_3_there_are_as_many_slices_as_consumers_up_to_the_number_of_buckets() -> None:
    assert [*halves(0), 1, 2] == divide(3, 4)
    assert 32 == len(divide(2, 32)) == len(divide(2, 40))


def test_rule_4_the_largest_slice_is_halved_a_free_one_first() -> None:
    assert [*halves(0), *halves(1)] == divide(2, 4, {**dict.fromkeys(halves(0), "x"), 1: "y"})
    assert [0, *halves(1)] == divide(2, 3, {0: "c000"}), "the held one stays whole"


def test_rule_4_the_halves_of_a_free_slice_are_free() -> None:
    holders = assigned(quarters(0)[:2], 2)

    assert [*quarters(0)[:2], BucketRange(0, 8, 10), BucketRange(0, 10, 12), quarters(0)[3]] == divide(1, 5, holders)


@pytest.mark.parametrize("held", quarters(0)[2:], ids=["first half of a half", "second half of a half"])
def test_rule_4_a_held_range_stays_whole(held: BucketRange) -> None:
    assert [halves(0)[0], *quarters(0)[2:]] == divide(1, 3, {held: "c000"})


def test_rule_4_sizes_are_evened_out_by_as_few_joins_as_possible() -> None:
    """The held range is an eighth, so it is joined, and one of the halves is halved in return."""
    slices = divide(2, 6, {0: "c000", BucketRange(1, 10, 12): "c001"})

    assert [*quarters(0)[:2], halves(0)[1], halves(1)[0], *quarters(1)[2:]] == slices


def test_rule_5_the_smallest_pair_is_joined_first() -> None:
    holders = assigned([*quarters(0)[:2], BucketRange(0, 8, 16), *halves(1)], 5)

    assert [*halves(0), *halves(1)] == divide(2, 4, holders)


def test_rule_5_even_slices_stay_divided_until_there_are_two_per_consumer() -> None:
    holders = assigned(quarters(0), 4)

    assert quarters(0) == divide(1, 4, holders) == divide(1, 3, holders)
    assert halves(0) == divide(1, 2, holders)
    assert [0] == divide(1, 1, holders)


def test_rule_5_a_free_pair_is_joined_before_a_held_one() -> None:
    holders = assigned([*halves(0), BucketRange(1, 0, 8), 2], 4)

    assert [*halves(0), 1, 2] == divide(3, 4, holders)


def test_rule_6_a_consumer_that_cannot_share_gets_a_whole_segment() -> None:
    consumers = {"new1": True, "new2": True, "new3": True, "old": False}
    found = pools("STREAM", [0, 1], consumers, {0: "new1", 1: "old"})

    assert [
        Pool([BucketRange(0, 0, 4), BucketRange(0, 4, 8), BucketRange(0, 8, 16)], ["new1", "new2", "new3"]),
        Pool([1], ["old"]),
    ] == [Pool(sorted(pool.slices), pool.consumers) for pool in found]


def test_rule_6_consumers_that_can_share_come_first() -> None:
    found = pools("STREAM", [0], {"new1": True, "new2": True, "old": False}, {0: "old"})

    assert [Pool(halves(0), ["new1", "new2"])] == found


def test_rule_6_a_consumer_that_cannot_share_gets_a_segment_that_is_still_whole() -> None:
    consumers = {"new1": True, "new2": True, "old": False}
    found = pools("STREAM", [0, 1], consumers, {halves(0)[0]: "new1", halves(0)[1]: "new2"})

    assert [Pool(halves(0), ["new1", "new2"]), Pool([1], ["old"])] == found


@pytest.mark.parametrize("capable", [0, 1])
def test_rule_6_sharing_needs_two_consumers_that_can_share(capable: int) -> None:
    consumers = {name: index < capable for index, name in enumerate(names(3))}

    assert [Pool([0], consumers)] == pools("STREAM", [0], consumers, {})


MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 20)), max_size=12)


class AssignmentModel:
    """Consumers that join and leave, with immediate handovers."""

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
        holders = {held: name for held, name in self.held.items() if name in self.consumers}
        self.held = {}
        for pool in pools("QUEUE", self.segments, self.consumers, holders):
            self.held |= assign(AssignmentInput(pool.slices, pool.consumers, holders))


@given(st.integers(1, 6), MOVES)
def test_each_bucket_has_one_owner_and_sizes_stay_even(segments: int, moves: list) -> None:
    model = AssignmentModel(segments)
    for joins, pick, count in moves:
        model.step(joins, pick, count)
        if not model.consumers:
            assert {} == model.held
            continue
        buckets = sorted((segment_of(held), bucket) for held in model.held for bucket in buckets_of(held))
        assert buckets == [(segment, bucket) for segment in range(segments) for bucket in range(KEY_BUCKETS)]
        owned = [list(model.held.values()).count(name) for name in model.consumers]
        assert max(owned) - min(owned) <= 1
        if len(model.consumers) <= segments:
            assert set(range(segments)) == set(model.held)
        else:
            assert min(owned) == 1 or len(model.consumers) > segments * KEY_BUCKETS
            sizes = {len(buckets_of(held)) for held in model.held}
            assert max(sizes) <= 2 * min(sizes)


@given(st.integers(1, 6), st.integers(2, 60))
def test_a_joining_consumer_disturbs_one_holder_at_most(segments: int, consumers: int) -> None:
    model = AssignmentModel(segments)
    model.step(True, 0, segments + consumers)
    before = dict(model.held)
    model.step(True, 0, 1)

    assert len([held for held, name in before.items() if model.held.get(held) != name]) <= 1


@given(st.integers(1, 6), st.integers(2, 60), st.integers(0, 100))
def test_a_leaving_consumer_disturbs_two_holders_at_most(segments: int, consumers: int, pick: int) -> None:
    model = AssignmentModel(segments)
    model.step(True, 0, segments + consumers)
    before = dict(model.held)
    model.step(False, pick, 1)

    moved = [p for p, name in before.items() if name in model.consumers and model.held.get(p) != name]
    assert len(moved) <= 2


def test_the_result_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from shard.balancing.bucket_split import pools\n"
        "from headgate.model.bucket_ranges import BucketRange\n"
        "holders = {BucketRange(0, 0, 4): 'b', BucketRange(0, 4, 8): 'a', BucketRange(0, 8, 16): 'c', 1: 'd', 2: 'e'}\n"
        "for count in (4, 5, 9, 30):\n"
        "    consumers = {f'c{n}': n % 4 > 0 for n in range(count)}\n"
        "    print([(list(map(str, p.slices)), list(p.consumers)) for p in pools('STREAM', [0, 1, 2], consumers, holders)])\n"
    )
    environs = (os.environ | {"PYTHONHASHSEED": seed} for seed in "0123")
    outputs = {subprocess.check_output([sys.executable, "-c", program], env=each, text=True) for each in environs}

    assert 1 == len(outputs)
    assert "[0-3]" in outputs.pop()
