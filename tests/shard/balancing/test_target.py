"""The target by count, rule by rule: examples, random inputs, brute force, and other hash seeds."""

from itertools import product
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from shard.balancing.target import assign
from tests.support.samples.owners import draw_owners

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
        values = list(values)
        rng.shuffle(values)
        return values

    other = Case(
        shuffled(case.grantable),
        shuffled(case.consumers),
        dict(shuffled(case.holders.items())),
        dict(shuffled(case.preferred_owners.items())),
    )

    assert sorted(assign(*case).items()) == sorted(assign(*other).items())
