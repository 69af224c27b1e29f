"""The target by load, rule by rule: examples, random inputs, brute force, and other hash seeds."""

from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shard.balancing.load_target import TOLERANCE_PERCENT, assign_by_load, fair_level
from tests.support.samples.owners import draw_owners

NAMES = ["ada", "bob", "cyd", "dan", "eve", "fay"]
EQUAL = {"ada": 100, "bob": 100}
TOLERANCE = Fraction(TOLERANCE_PERCENT, 100)


class Case(NamedTuple):
    """What the target is computed from."""

    grantable: Any
    capacities: dict[str, int]
    holders: dict[Any, str]
    weights: dict[Any, int]
    preferred_owners: Any = None


def loads(target: dict, case: Case) -> dict[str, int]:
    return {name: sum(case.weights[key] for key, owner in target.items() if owner == name) for name in case.capacities}


def levels(target: dict, case: Case) -> dict[str, Fraction]:
    return {name: Fraction(load, case.capacities[name]) for name, load in loads(target, case).items()}


def mean(case: Case) -> Fraction:
    """The fair level: each key heavier than a fair load is left out together with one consumer."""
    weights = sorted((case.weights[key] for key in case.grantable), reverse=True)
    capacities = sorted(case.capacities.values(), reverse=True)
    while (
        len(capacities) > 1
        and weights
        and Fraction(weights[0], capacities[0]) > Fraction(sum(weights), sum(capacities))
    ):
        weights, capacities = weights[1:], capacities[1:]
    return Fraction(sum(weights), sum(capacities))


def beyond(target: dict, case: Case) -> set[str]:
    fair = mean(case) if case.capacities else 0
    return {name for name, level in levels(target, case).items() if abs(level - fair) > fair * TOLERANCE}


def moved(target: dict, case: Case) -> set:
    return {
        key for key, owner in target.items() if case.holders.get(key) in case.capacities and case.holders[key] != owner
    }


WEIGHTS = st.one_of(st.integers(1, 5), st.integers(1, 100), st.sampled_from([16, 1000, 100_000]))
CAPACITIES = st.sampled_from([100, 100, 100, 50, 200, 37, 1])


@st.composite
def cases(draw: st.DrawFn, most_keys: int = 14, most_consumers: int = 6) -> Case:
    """Draw weights of several orders of magnitude, unequal capacities, removed holders, and preferences."""
    grantable = draw(st.sets(st.integers(0, 30), max_size=most_keys))
    names = draw(st.sets(st.sampled_from(NAMES), max_size=most_consumers))
    holders, preferred_owners = draw_owners(draw, sorted(grantable | {99}), sorted(names | {"removed"}))
    return Case(
        grantable=grantable,
        capacities={name: draw(CAPACITIES) for name in sorted(names)},
        holders=holders,
        weights={key: draw(WEIGHTS) for key in sorted(grantable)},
        preferred_owners=preferred_owners,
    )


@given(cases())
def test_rule_1_each_key_has_one_registered_owner(case: Case) -> None:
    target = assign_by_load(*case)

    assert set(target) == (set(case.grantable) if case.capacities else set())
    assert set(target.values()) <= set(case.capacities)


@given(cases())
def test_rule_2_nothing_moves_within_the_tolerance(case: Case) -> None:
    held = {
        key: case.holders[key] for key in case.grantable if case.holders.get(key) != "removed" and key in case.holders
    }
    settled = Case(set(held), case.capacities, held, {key: case.weights[key] for key in held})

    if not beyond(held, settled):
        assert held == assign_by_load(*settled)


@pytest.mark.parametrize(("beyond", "moves"), [(0, False), (1, True)])
@pytest.mark.parametrize("is_over", [True, False], ids=["overloaded", "underloaded"])
def test_rule_2_a_consumer_is_beyond_the_tolerance_by_more_than_a_fifth(is_over: bool, beyond: int, moves: bool):
    """The mean is 10000, and the others are within the tolerance. The first has 12000 or more, or the last 8000 or less."""
    given = (2000 + beyond, 8999, 1, 9000 - beyond) if is_over else (1000, 10_000, 1000 + beyond, 8000 - beyond)
    weights = dict(enumerate((10_000, *given), 1))
    holders = {1: "ada", 2: "ada", 3: "bob", 4: "bob", 5: "cyd"}

    target = assign_by_load(weights, dict.fromkeys(NAMES[:3], 100), holders, weights)

    assert moves == (target != holders)


def test_rule_2_an_overloaded_consumer_keeps_at_most_a_tenth_more_than_its_fair_load() -> None:
    """The mean is 10000. With one key less, ada would keep 11001."""
    weights = {1: 10_000, 2: 1001, 3: 1001, 4: 7998}
    target = assign_by_load(weights, EQUAL, {1: "ada", 2: "ada", 3: "ada", 4: "bob"}, weights)

    assert {1: "ada", 2: "bob", 3: "bob", 4: "bob"} == target


def test_rule_2_an_underloaded_consumer_is_filled_to_nine_tenths_of_its_fair_load_and_no_further() -> None:
    """The fair load of bob is 10. As ada is within the tolerance, nothing else moves."""
    weights = dict.fromkeys(range(40), 1)
    holders = dict.fromkeys(range(33), "ada") | dict.fromkeys(range(33, 40), "bob")
    filled = Case(weights, {"ada": 300, "bob": 100}, holders, weights)

    assert {"ada": 31, "bob": 9} == loads(assign_by_load(*filled), filled)


def test_rule_2_an_underloaded_consumer_gets_the_keys_of_the_highest_level_not_of_the_highest_load() -> None:
    """The fair load of bob is three times that of ada."""
    weights = dict.fromkeys(range(100), 5)
    holders = {n: "ada" if n < 23 else "bob" if n < 85 else "cyd" for n in range(100)}
    filled = Case(weights, {"ada": 100, "bob": 300, "cyd": 100}, holders, weights)

    assert {"ada": 100, "bob": 310, "cyd": 90} == loads(assign_by_load(*filled), filled)


def test_rule_2_an_underloaded_consumer_gets_keys_although_none_is_overloaded() -> None:
    """The ten others are 10 % above the mean, which is tolerated."""
    names = {f"old-{n}": 100 for n in range(10)}
    holders = {n: f"old-{n % 10}" for n in range(100)}
    weights = dict.fromkeys(range(100), 7)

    joined = Case(range(100), names | {"new": 100}, holders, weights)
    target = assign_by_load(*joined)

    assert 9 == len(moved(target, joined))
    assert {"new"} == {target[key] for key in moved(target, joined)}


@given(cases())
def test_rule_2_recomputing_a_reached_target_moves_nothing(case: Case) -> None:
    """No oscillation, for any preferred owners."""
    target = assign_by_load(*case)

    assert target == assign_by_load(*case._replace(holders=target))


@given(cases())
def test_rule_3_no_single_move_helps_a_consumer_beyond_the_tolerance(case: Case) -> None:
    target = assign_by_load(*case)
    level, fair = levels(target, case), mean(case) if case.capacities else 0
    too_high = {name for name in level if level[name] > fair * (1 + TOLERANCE)}
    too_low = {name for name in level if level[name] < fair * (1 - TOLERANCE)}
    for key, giver in target.items():
        for receiver in case.capacities if giver in too_high else too_low:
            if receiver != giver:
                assert level[receiver] + Fraction(case.weights[key], case.capacities[receiver]) >= level[giver]


def test_a_key_heavier_than_a_fair_load_does_not_distort_the_mean() -> None:
    """With the heavy key, the mean would be 1006, and key 1 would move to cyd."""
    holders = {0: "ada", 1: "bob", 2: "bob", 3: "bob", 4: "cyd"}
    weights = {0: 3000, 1: 1, 2: 4, 3: 5, 4: 8}
    case = Case(weights, {"ada": 100, "bob": 100, "cyd": 100}, holders, weights)

    assert holders == assign_by_load(*case)


@given(cases(most_keys=12))
def test_rule_3_moves_do_not_raise_the_highest_level(case: Case) -> None:
    """Without free keys, the highest level does not rise."""
    held = {key: name for key, name in case.holders.items() if key in case.weights and name != "removed"}
    settled = Case(set(held), case.capacities, held, case.weights)
    if held:
        before, then = levels(held, settled), levels(assign_by_load(*settled), settled)
        assert max(then.values()) <= max(before.values())


@given(cases(most_keys=5, most_consumers=3))
def test_the_highest_level_stays_below_twice_the_best_or_within_the_tolerance(case: Case):
    """Compared with all possible assignments, for consumers of equal capacity."""
    if not case.capacities or not case.grantable:
        return
    same = Case(case.grantable, dict.fromkeys(case.capacities, 100), case.holders, case.weights)
    keys, names = sorted(same.grantable), sorted(same.capacities)
    best = min(
        max(levels(dict(zip(keys, owners, strict=True)), same).values()) for owners in product(names, repeat=len(keys))
    )

    highest = max(levels(assign_by_load(*same), same).values())
    assert highest <= max(2 * best, mean(same) * (1 + TOLERANCE))


def test_rule_4_the_heaviest_key_that_does_not_overshoot_moves() -> None:
    holders = dict.fromkeys(range(5), "ada") | {9: "bob"}
    case = Case([0, 1, 2, 3, 4, 9], EQUAL, holders, {0: 60, 1: 5, 2: 5, 3: 50, 4: 30, 9: 50})

    assert {3} == moved(assign_by_load(*case), case)


def test_rule_4_a_key_that_overshoots_moves_only_if_that_helps() -> None:
    two_heavy = Case([0, 1], EQUAL, {0: "ada", 1: "ada"}, {0: 70, 1: 90})
    one_heavy = Case([0], EQUAL, {0: "ada"}, {0: 90})

    assert {0: "ada", 1: "bob"} == assign_by_load(*two_heavy)
    assert {0: "ada"} == assign_by_load(*one_heavy)


def test_rule_5_the_heaviest_free_key_comes_first() -> None:
    """It gets its preferred owner, and the light ones that prefer it too go elsewhere."""
    weights = {1: 10, 2: 10, 3: 10, 4: 10, 5: 40}
    preferred = {key: ["ada"] for key in weights}

    target = assign_by_load(weights, EQUAL, {}, weights, preferred)

    assert target == {1: "bob", 2: "bob", 3: "bob", 4: "bob", 5: "ada"}


def test_rule_5_a_free_key_goes_to_a_preferred_owner_within_the_tolerance() -> None:
    weights = {1: 50, 2: 60, 4: 10, 5: 60}
    holders = {1: "ada", 2: "bob"}

    assert "bob" == assign_by_load([1, 2, 4], EQUAL, holders, weights, {4: ["bob"]})[4]
    assert "ada" == assign_by_load([1, 2, 4], EQUAL, holders, weights)[4]
    assert {1: "ada", 2: "bob", 5: "ada"} == assign_by_load([1, 2, 5], EQUAL, holders, weights, {5: ["bob", "removed"]})


@given(cases())
def test_rule_5_a_free_key_stays_within_grahams_bound(case: Case) -> None:
    """Without holders and preferences, each level is below the mean plus the heaviest key over the mean capacity."""
    if not case.capacities or not case.grantable:
        return
    free = Case(case.grantable, case.capacities, {}, case.weights)
    heaviest = max(free.weights.values())
    one = Fraction(heaviest * len(free.capacities), sum(free.capacities.values()))

    total = Fraction(sum(free.weights.values()), sum(free.capacities.values()))
    assert max(levels(assign_by_load(*free), free).values()) < total + one


def test_a_key_that_is_exactly_a_fair_load_is_part_of_the_mean() -> None:
    assert (20, 200) == fair_level([10, 10], [100, 100])


def test_a_key_without_a_weight_weighs_the_mean() -> None:
    target = assign_by_load(*Case([1, 2, 3, 4], EQUAL, {}, {1: 100, 2: 60, 3: 60}))

    # It weighs 73, is assigned after the heaviest one, and to another consumer. One that weighs nothing would be the last.
    assert target[4] != target[1]
    assert target[2] != target[3]


@given(cases(), st.randoms(use_true_random=False))
def test_rule_6_the_input_order_does_not_matter(case: Case, rng) -> None:
    def shuffled(values):
        return rng.sample([*values], len(values))

    other = Case(
        shuffled(case.grantable),
        dict(shuffled(case.capacities.items())),
        dict(shuffled(case.holders.items())),
        dict(shuffled(case.weights.items())),
        dict(shuffled(case.preferred_owners.items())),
    )

    assert sorted(assign_by_load(*case).items()) == sorted(assign_by_load(*other).items())


@given(st.lists(st.integers(70, 130), min_size=4, max_size=30))
@example([130, 70] * 10)
def test_scaling_all_weights_moves_nothing(factors: list[int]) -> None:
    """Traffic that changes by the same factor everywhere moves nothing."""
    base = {key: 10 + key for key in range(12)}
    held = assign_by_load(base, EQUAL, {}, base)
    for factor in factors:
        case = Case(base, EQUAL, held, {key: weight * factor for key, weight in base.items()})
        assert held == assign_by_load(*case)


def test_fewer_segments_than_consumers_leave_a_level_of_nothing() -> None:
    assert (0, 200) == fair_level([7], [100, 100, 100])


def test_the_heaviest_key_is_left_out_of_the_mean_with_the_largest_consumer() -> None:
    assert (20, 100) == fair_level([10, 100, 10], [100, 200])


def test_of_two_underloaded_consumers_the_larger_one_is_filled_first() -> None:
    weights = {0: 50, 1: 10, 2: 10}
    capacities = {"ada": 200, "bob": 200, "cyd": 100}
    target = assign_by_load(weights, capacities, {0: "cyd", 1: "bob", 2: "bob"}, weights)

    assert {0: "ada", 1: "bob", 2: "bob"} == target


def test_a_consumer_that_has_received_or_given_keys_may_give_at_its_new_level() -> None:
    """Otherwise cyd would stay at half of a fair load."""
    weights = {0: 10, 1: 5, 2: 5, 3: 10, 4: 40, 5: 5}
    capacities = {"ada": 100, "bob": 200, "cyd": 100, "dan": 200}
    holders = {0: "bob", 1: "ada", 2: "dan", 3: "dan", 4: "dan", 5: "dan"}
    target = assign_by_load(weights, capacities, holders, weights)

    assert {0: "ada", 1: "cyd", 2: "cyd", 3: "dan", 4: "bob", 5: "dan"} == target
