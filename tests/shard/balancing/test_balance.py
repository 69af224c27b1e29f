"""Bucket ranges and weights together: segments divided among more consumers, and balanced by load."""

from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import KEY_BUCKETS, BucketRange, Layout, SegmentSlice, buckets_of, segment_of
from shard.balancing.balance import assign, compute_target
from shard.balancing.load_target import TOLERANCE_PERCENT
from shard.state.consumers import RegisteredConsumer
from shard.state.subscription import Subscription
from tests.support.samples.owners import draw_owners

SEGMENTS = st.integers(1, 5)
WEIGHTS = st.dictionaries(st.integers(0, 4), st.integers(16, 5000), max_size=5)
STEPS = st.lists(st.tuples(st.integers(-9, 20), st.integers(25, 400), WEIGHTS), min_size=1, max_size=8)
"""(Joining or leaving consumers, their capacity, new weights)."""


class AssignmentModel:
    """One subscription balanced by load, with immediate handovers."""

    def __init__(self, segments: int) -> None:
        self.segments = list(range(segments))
        self.layout = Layout.initial(segments, 0)
        self.known = Subscription(1, "orders", 2, "billing", "QUEUE", "none", balance="load")
        self.held: dict[SegmentSlice, str] = {}
        self.joined = 0

    def step(self, change: int, capacity: int, weights: dict[int, int]) -> None:
        for _ in range(change):
            name = f"c{self.joined:04d}"
            self.known.consumers[name] = RegisteredConsumer(
                name, 1, name, supports_bucket_ranges=True, capacity=capacity
            )
            self.joined += 1
        for name in sorted(self.known.consumers)[: max(0, -change)]:
            del self.known.consumers[name]
        self.known.weights.update({segment: weight for segment, weight in weights.items() if segment in self.segments})
        self.held = self.target()

    def target(self, *, turned: bool = False) -> dict[SegmentSlice, str]:
        """Return the target; ``turned``: from inputs in reverse order."""
        consumers = self.known.consumers
        names = {name: consumers[name].supports_bucket_ranges for name in sorted(consumers, reverse=turned)}
        holders = {held: name for held, name in sorted(self.held.items(), reverse=turned) if name in consumers}
        return compute_target(self.known, self.layout, self.segments, names, holders)

    def weight(self, held: SegmentSlice) -> int:
        known = self.known.weights.get(segment_of(held))
        return 0 if known is None else max(1, known * len(buckets_of(held)) // KEY_BUCKETS)


@given(SEGMENTS, STEPS)
def test_each_bucket_has_one_owner_and_recomputing_moves_nothing(segments: int, steps: list) -> None:
    model = AssignmentModel(segments)
    for step in steps:
        model.step(*step)
        if not model.known.consumers:
            assert {} == model.held
            continue
        buckets = sorted((segment_of(held), bucket) for held in model.held for bucket in buckets_of(held))
        assert buckets == [(segment, bucket) for segment in range(segments) for bucket in range(KEY_BUCKETS)]
        assert set(model.held.values()) <= set(model.known.consumers)
        assert model.held == model.target() == model.target(turned=True)


@given(SEGMENTS, STEPS)
def test_an_overloaded_consumer_has_no_range_that_could_move(segments: int, steps: list) -> None:
    """Its lightest slice would raise the least loaded consumer above it."""
    model = AssignmentModel(segments)
    model.step(0, 100, dict.fromkeys(range(segments), 100))
    for step in steps:
        model.step(*step)
        if len(model.known.consumers) < 2:
            continue
        capacities = {name: known.capacity for name, known in model.known.consumers.items()}
        weights: dict[str, list[int]] = {name: [] for name in capacities}
        for held, name in model.held.items():
            weights[name].append(model.weight(held))
        level = {name: Fraction(sum(carried), capacities[name]) for name, carried in weights.items()}
        most, least = max(level, key=lambda name: level[name]), min(level, key=lambda name: level[name])
        mean = Fraction(sum(map(sum, weights.values())), sum(capacities.values()))
        if level[most] * 100 > mean * (100 + TOLERANCE_PERCENT):
            assert level[most] - level[least] <= Fraction(min(weights[most]), capacities[least])


def test_the_hot_segment_is_shared_by_more_consumers_than_the_others() -> None:
    model = AssignmentModel(2)
    model.step(4, 100, {0: 3000, 1: 100})

    readers = {
        segment: {name for held, name in model.held.items() if segment_of(held) == segment} for segment in (0, 1)
    }
    assert {BucketRange(0, 0, 8), BucketRange(0, 8, 16), BucketRange(1, 0, 8), BucketRange(1, 8, 16)} == set(model.held)
    assert len(readers[0]) == 2
    assert not readers[0] & readers[1]


def test_the_smallest_weight_is_one_unit_in_each_key_bucket() -> None:
    """The buckets of segment 1 weigh two units, so the first of them is assigned first."""
    model = AssignmentModel(2)
    model.step(32, 100, {0: 16, 1: 32})

    assert "c0000" == model.held[BucketRange(1, 0, 1)]


@pytest.mark.parametrize(("name", "owner"), [("ada", "ada"), ("cyd", "bob")])
def test_a_hypothetical_consumer_has_the_capacity_of_a_standard_one(name: str, owner: str) -> None:
    """Of two equal consumers the first by name gets the only segment; a larger one would get it in any case."""
    model = AssignmentModel(1)
    model.known.consumers["bob"] = RegisteredConsumer("bob", 1, "client")

    assert {0: owner} == compute_target(model.known, model.layout, [0], {"bob": False, name: False}, {})


def test_a_bucket_range_weighs_its_part_of_the_segment_in_whole_units() -> None:
    """Half of 39 weighs 19, as much as segment 1, so ada is as loaded with two of them as cyd would be with one."""
    model = AssignmentModel(2)
    for name, capacity in {"ada": 200, "bob": 200, "cyd": 100}.items():
        model.known.consumers[name] = RegisteredConsumer(name, 1, name, supports_bucket_ranges=True, capacity=capacity)
    model.known.weights.update({0: 39, 1: 19})

    assert {BucketRange(0, 0, 8): "ada", BucketRange(0, 8, 16): "bob", 1: "ada"} == model.target()


NAMES = ["ada", "bob", "cyd", "dan", "eve", "fay"]


class Case(NamedTuple):
    """What the target is computed from."""

    grantable: Any
    consumers: Any
    holders: dict[int, str]
    preferred_owners: Any = None


def counts(target: dict[int, str], consumers: set[str]) -> list[int]:
    return sorted(list(target.values()).count(name) for name in consumers)


def moved(target: dict[int, str], case: Case) -> set[int]:
    """Return the segments taken from a registered holder."""
    return {
        segment
        for segment, owner in target.items()
        if case.holders.get(segment) in case.consumers and case.holders[segment] != owner
    }


@st.composite
def cases(draw: st.DrawFn, most_segments: int = 12, most_consumers: int = 6) -> Case:
    """Draw holders and preferred owners from registered and removed consumers, so that they overlap."""
    grantable = draw(st.sets(st.integers(0, 20), max_size=most_segments))
    consumers = draw(st.sets(st.sampled_from(NAMES), max_size=most_consumers))
    holders, preferred_owners = draw_owners(draw, sorted(grantable | {99}), sorted(consumers | {"removed"}))
    return Case(grantable, consumers, holders, preferred_owners)


@given(cases())
def test_rule_1_each_segment_has_one_registered_owner(case: Case) -> None:
    target = assign(*case)

    assert set(target) == (set(case.grantable) if case.consumers else set())
    assert set(target.values()) <= set(case.consumers)


@given(cases())
def test_rule_2_counts_differ_by_one_at_most(case: Case) -> None:
    owned = counts(assign(*case), set(case.consumers))

    assert not owned or owned[-1] - owned[0] <= 1


@given(cases(most_segments=6, most_consumers=3))
def test_rule_3_fewest_moves_of_all_balanced_assignments(case: Case) -> None:
    """Compared with all balanced assignments."""
    if not case.consumers:
        return
    segments, consumers = sorted(case.grantable), sorted(case.consumers)
    fewest = min(
        len(moved(dict(zip(segments, owners, strict=True)), case))
        for owners in product(consumers, repeat=len(segments))
        if max(map(owners.count, consumers)) - min(map(owners.count, consumers)) <= 1
    )

    assert fewest == len(moved(assign(*case), case))


@given(cases())
def test_rule_3_recomputing_a_reached_target_moves_nothing(case: Case) -> None:
    """No oscillation, for any preferred owners."""
    target = assign(*case)

    assert target == assign(case.grantable, case.consumers, target, case.preferred_owners)


def test_rule_4_children_go_to_the_parents_holder_and_no_other_segment_moves() -> None:
    """A round-robin assignor would move all three other segments."""
    holders = {0: "ada", 1: "bob", 2: "ada", 3: "bob"}
    preferred_owners = {4: ["ada"], 5: ["ada"]}

    target = assign([1, 2, 3, 4, 5], ["ada", "bob"], holders, preferred_owners)

    assert {1: "bob", 2: "ada", 3: "bob", 4: "ada", 5: "ada"} == target


@given(cases())
def test_rule_4_a_preferred_owner_is_skipped_only_for_balance(case: Case) -> None:
    """Assigning the segment to its preferred owner would break the balance."""
    target = assign(*case)
    consumers = set(case.consumers)
    for segment, owner in target.items():
        preferred_owners = [name for name in case.preferred_owners.get(segment, ()) if name in consumers]
        if case.holders.get(segment) in consumers or owner in preferred_owners:
            continue
        for name in preferred_owners:
            owned = counts(target | {segment: name}, consumers)
            assert owned[-1] - owned[0] > 1


def test_rule_5_of_two_equal_holders_the_first_by_name_keeps_one_more() -> None:
    holders = dict.fromkeys(range(3), "ada") | dict.fromkeys(range(3, 6), "bob")
    for consumers in (["ada", "bob", "cyd"], ["cyd", "bob", "ada"]):
        target = assign(range(7), consumers, holders)

        assert {0: "ada", 1: "ada", 2: "ada", 3: "bob", 4: "bob", 5: "cyd", 6: "cyd"} == target


@given(cases(), st.randoms(use_true_random=False))
def test_rule_5_the_input_order_does_not_matter(case: Case, rng) -> None:
    def shuffled(values):
        return rng.sample([*values], len(values))

    other = Case(
        shuffled(case.grantable),
        shuffled(case.consumers),
        dict(shuffled(case.holders.items())),
        dict(shuffled(case.preferred_owners.items())),
    )

    assert sorted(assign(*case).items()) == sorted(assign(*other).items())
