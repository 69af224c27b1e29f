"""The target by count, rule by rule: examples, random inputs, brute force, and other hash seeds."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shard.balancing.target import AssignmentInput, assign
from tests.support.samples.owners import draw_owners

NAMES = ["ada", "bob", "cyd", "dan", "eve", "fay"]


def counts(target: dict[int, str], consumers: set[str]) -> list[int]:
    return sorted(list(target.values()).count(name) for name in consumers)


def moved(target: dict[int, str], assignment_input: AssignmentInput) -> set[int]:
    """Return the segments taken from a registered holder."""
    return {
        segment
        for segment, owner in target.items()
        if assignment_input.holders.get(segment) in assignment_input.consumers
        and assignment_input.holders[segment] != owner
    }


@st.composite
def assignment_inputs(draw: st.DrawFn, most_segments: int = 12, most_consumers: int = 6) -> AssignmentInput:
    """Draw holders and preferred owners from registered and removed consumers, so that they overlap."""
    grantable = draw(st.sets(st.integers(0, 20), max_size=most_segments))
    consumers = draw(st.sets(st.sampled_from(NAMES), max_size=most_consumers))
    holders, preferred_owners = draw_owners(draw, sorted(grantable | {99}), sorted(consumers | {"removed"}))
    return AssignmentInput(grantable, consumers, holders, preferred_owners)


@given(assignment_inputs())
def test_rule_1_each_segment_has_one_registered_owner(assignment_input: AssignmentInput) -> None:
    target = assign(assignment_input)

    assert set(target) == (set(assignment_input.grantable) if assignment_input.consumers else set())
    assert set(target.values()) <= set(assignment_input.consumers)


@given(assignment_inputs())
def test_rule_2_counts_differ_by_one_at_most(assignment_input: AssignmentInput) -> None:
    owned = counts(assign(assignment_input), set(assignment_input.consumers))

    assert not owned or owned[-1] - owned[0] <= 1


@given(assignment_inputs(most_segments=6, most_consumers=3))
def test_rule_3_fewest_moves_of_all_balanced_assignments(assignment_input: AssignmentInput) -> None:
    """Compared with all balanced assignments."""
    if not assignment_input.consumers:
        return
    segments, consumers = sorted(assignment_input.grantable), sorted(assignment_input.consumers)
    fewest = min(
        len(moved(dict(zip(segments, owners, strict=True)), assignment_input))
        for owners in product(consumers, repeat=len(segments))
        if max(map(owners.count, consumers)) - min(map(owners.count, consumers)) <= 1
    )

    assert fewest == len(moved(assign(assignment_input), assignment_input))


@given(assignment_inputs())
def test_rule_3_recomputing_a_reached_target_moves_nothing(assignment_input: AssignmentInput) -> None:
    """No oscillation, for any preferred owners."""
    target = assign(assignment_input)

    assert target == assign(
        AssignmentInput(
            assignment_input.grantable, assignment_input.consumers, target, assignment_input.preferred_owners
        )
    )


def test_rule_4_children_go_to_the_parents_holder_and_no_other_segment_moves() -> None:
    """A round-robin assignor would move all three other segments."""
    holders = {0: "ada", 1: "bob", 2: "ada", 3: "bob"}
    preferred_owners = {4: ["ada"], 5: ["ada"]}

    target = assign(AssignmentInput([1, 2, 3, 4, 5], ["ada", "bob"], holders, preferred_owners))

    assert {1: "bob", 2: "ada", 3: "bob", 4: "ada", 5: "ada"} == target


@given(assignment_inputs())
def test_rule_4_a_preferred_owner_is_skipped_only_for_balance(assignment_input: AssignmentInput) -> None:
    """Assigning the segment to its preferred owner would break the balance."""
    target = assign(assignment_input)
    consumers = set(assignment_input.consumers)
    for segment, owner in target.items():
        preferred_owners = [name for name in assignment_input.preferred_owners.get(segment, ()) if name in consumers]
        if assignment_input.holders.get(segment) in consumers or owner in preferred_owners:
            continue
        for name in preferred_owners:
            owned = counts(target | {segment: name}, consumers)
            assert owned[-1] - owned[0] > 1


def test_rule_5_of_two_equal_holders_the_first_by_name_keeps_one_more() -> None:
    holders = dict.fromkeys(range(3), "ada") | dict.fromkeys(range(3, 6), "bob")
    for consumers in (["ada", "bob", "cyd"], ["cyd", "bob", "ada"]):
        target = assign(AssignmentInput(range(7), consumers, holders))

        assert {0: "ada", 1: "ada", 2: "ada", 3: "bob", 4: "bob", 5: "cyd", 6: "cyd"} == target


@given(assignment_inputs(), st.randoms(use_true_random=False))
def test_rule_5_the_input_order_does_not_matter(assignment_input: AssignmentInput, rng) -> None:
    def shuffled(values):
        values = list(values)
        rng.shuffle(values)
        return values

    other = AssignmentInput(
        shuffled(assignment_input.grantable),
        shuffled(assignment_input.consumers),
        dict(shuffled(assignment_input.holders.items())),
        dict(shuffled(assignment_input.preferred_owners.items())),
    )

    assert sorted(assign(assignment_input).items()) == sorted(assign(other).items())
