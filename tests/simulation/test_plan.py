"""A plan repeats, and a plan without some of its parts does the others as before."""

import pytest

from tests.simulation.fault_injector import FaultInjector
from tests.simulation.plan import BUSY, OPERATIONS, RARE_OPERATIONS, SPARSE, plan_of
from tests.simulation.rare_faults import RareFaults


def test_a_seed_has_one_plan() -> None:
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


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
