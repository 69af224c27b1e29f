"""A plan repeats, and a plan without some of its parts does the others as before."""

import pytest

from tests.simulation.fault_injector import FaultInjector
from tests.simulation.plan import OPERATIONS, RARE_OPERATIONS, plan_of
from tests.simulation.rare_faults import RareFaults


@pytest.mark.parametrize("operation", sorted({*OPERATIONS, *RARE_OPERATIONS}))
def test_every_operation_exists_and_is_drawn(operation: str) -> None:
    owner, seeds = (RareFaults, 1000) if operation in RARE_OPERATIONS else (FaultInjector, 100)
    assert callable(getattr(owner, f"_{operation}"))
    assert any(step.operation == operation for seed in range(1, seeds) for step in plan_of(seed).steps)
