"""A plan repeats, and a plan without some of its parts does the others as before."""

import pytest

from tests.simulation.fault_injector import FaultInjector
from tests.simulation.plan import (
    BUSY,
    BUSY_EVERY,
    FIRST_SMALL_SEED,
    OPERATIONS,
    OPTIONAL,
    RARE_CLIENTS,
    RARE_OPERATIONS,
    RARELY,
    SMALL,
    SMALL_SHARE,
    SPARSE,
    plan_of,
)
from tests.simulation.rare_faults import RareFaults


def test_a_seed_has_one_plan() -> None:
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


def test_some_worlds_are_busy() -> None:
    assert [plan_of(seed).scale is BUSY for seed in range(BUSY_EVERY + 1)] == [True, *[False] * (BUSY_EVERY - 1), True]


def test_a_part_that_is_left_out_changes_no_other() -> None:
    plan = plan_of(5, BUSY)
    left = plan.only(plan.parts[1:])

    assert left.steps == plan.steps[1:]
    assert left.programs == plan.programs
    assert left.rng("broker").random() == plan.rng("broker").random()


def test_a_salt_changes_what_the_plan_leaves_open() -> None:
    plan = plan_of(5)
    salted = plan.only(plan.parts, salt=1)

    assert salted.steps == plan.steps
    assert salted.rng("broker").random() != plan.rng("broker").random()


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match="seed 5 has no 99:split; its parts: "):
        plan_of(5, SPARSE).only(["99:split", "devices"])


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS)))
def test_every_operation_exists_and_is_drawn(operation: str) -> None:
    assert callable(getattr(FaultInjector, f"_{operation}"))
    assert any(step.operation == operation for seed in range(1, 100) for step in plan_of(seed).steps)


@pytest.mark.parametrize("operation", sorted(set(RARE_OPERATIONS)))
def test_every_rare_operation_exists_and_is_drawn(operation: str) -> None:
    assert callable(getattr(RareFaults, f"_{operation}"))
    assert any(step.operation == operation for seed in range(1, 1000) for step in plan_of(seed).steps)


def test_some_worlds_have_one_rare_operation_between_the_others() -> None:
    plans = [plan_of(seed) for seed in range(1, 1000)]
    rare = [[step for step in plan.steps if step.operation in RARE_OPERATIONS] for plan in plans]

    assert {len(steps) for steps in rare} == {0, 1}
    assert sum(map(len, rare)) == pytest.approx(RARELY * len(plans), rel=0.3)
    assert all(sorted(plan.steps, key=lambda step: step.at_seconds) == list(plan.steps) for plan in plans)


def test_the_parts_of_a_seed_that_was_known_before_rare_operations_are_the_same() -> None:
    """So a seed that found a bug still has the parts that found it."""
    assert plan_of(3, SPARSE).parts[:4] == (
        "1:crash_leader",
        "2:consumer_vanishes",
        "3:zookeeper_outage",
        "4:zookeeper_outage",
    )
    assert [round(step.at_seconds, 3) for step in plan_of(3, SPARSE).steps] == [2.077, 5.721, 6.089, 6.239]


def test_three_of_four_fresh_seeds_are_small_and_leave_out_programs() -> None:
    plans = [plan_of(FIRST_SMALL_SEED + number) for number in range(1000)]
    small = [plan for plan in plans if plan.scale is SMALL]

    assert len(small) == pytest.approx(SMALL_SHARE * len(plans), rel=0.1)
    for program in OPTIONAL:
        assert sum(program in plan.programs for plan in small) == pytest.approx(len(small) / 2, rel=0.2)
    assert sum(plan.scale is BUSY for plan in plans) == 4
    assert {plan_of(seed).scale.optional for seed in range(1, FIRST_SMALL_SEED)} == {1.0}


def test_one_of_five_sparse_seeds_encodes_its_chunks_whatever_else_it_is() -> None:
    plans = [plan_of(seed) for seed in range(1, 2000)]

    assert {plan.chunks for plan in plans if plan.scale is BUSY} == {"parquet"}
    for scale in (SPARSE, SMALL):
        same = [plan for plan in plans if plan.scale is scale]
        encoded = [plan for plan in same if plan.chunks == "shared"]
        assert len(encoded) == pytest.approx(len(same) / 5, rel=0.2)
        assert {plan.clustered for plan in encoded} == {True, False}


@pytest.mark.parametrize("program", sorted(RARE_CLIENTS))
def test_rare_clients_are_drawn_and_change_no_other_part(program: str) -> None:
    plans = [plan_of(seed, SPARSE) for seed in range(1, 3000)]
    found = [plan for plan in plans if program in plan.programs]

    assert len(found) == pytest.approx(RARE_CLIENTS[program] * len(plans), rel=0.6)
    assert {plan.programs[-1] for plan in plans if set(plan.programs) & set(RARE_CLIENTS)} <= set(RARE_CLIENTS)
