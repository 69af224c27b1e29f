"""A plan repeats, and a plan without some of its parts does the others as before."""

import pytest

from tests.simulation.fault_injector import FaultInjector
from tests.simulation.plan import OPERATIONS, RARE_OPERATIONS, plan_of
from tests.simulation.rare_faults import RareFaults


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS)))
def test_every_operation_exists_and_is_drawn(operation: str) -> None:
    assert callable(getattr(FaultInjector, f"_{operation}"))
    assert any(step.operation == operation for seed in range(1, 100) for step in plan_of(seed).steps)


@pytest.mark.parametrize("operation", sorted(set(RARE_OPERATIONS)))
def test_every_rare_operation_exists_and_is_drawn(operation: str) -> None:
    assert callable(getattr(RareFaults, f"_{operation}"))
    assert any(step.operation == operation for seed in range(1, 1000) for step in plan_of(seed).steps)
