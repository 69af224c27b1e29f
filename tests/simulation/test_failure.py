"""A failure is reduced only to failures of the same kind, and its command plays it again."""

import pytest

from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.failure import SALTS, Failure, shrunk
from tests.simulation.invariant_checker import InvariantChecker
from tests.simulation.plan import Plan, plan_of

PLAN = plan_of(7)
NEEDED = {PLAN.parts[1], "devices"}


def failed(plan: Plan, text: str = "key b'a' #3 stored after #4") -> Failure:
    return Failure(plan, BrokenPromiseError(text), InvariantChecker())


def test_only_parts_that_matter_remain() -> None:
    found = shrunk(failed(PLAN), 500, print, lambda plan: failed(plan) if set(plan.parts) >= NEEDED else None)

    assert set(found.plan.parts) == NEEDED
    assert found.command == f"python -m tests.simulation --seed 7 --parts {','.join(found.plan.parts)}"


def test_another_failure_does_not_count() -> None:
    others = (failed(PLAN, "a record was lost"), Failure(PLAN, KeyError(3), InvariantChecker()))
    for other in others:
        assert shrunk(failed(PLAN), 500, print, lambda _, other=other: other).plan.parts == PLAN.parts


def test_values_do_not_distinguish_failures_and_the_text_between_them_does() -> None:
    group = BaseExceptionGroup("a group", [OSError("x"), BrokenPromiseError("key b'z' #77 stored after #1")])

    assert failed(PLAN).kind == Failure(PLAN, group, InvariantChecker()).kind
    failure = failed(PLAN, "daemon 'd1' leads shards [2], and {'d2'} could: b'a/1' of 'd3'")
    assert failure.kind == "BrokenPromiseError: daemon # leads shards #, and # could: # of #"


def test_a_part_is_kept_only_if_no_salt_fails_without_it() -> None:
    last = SALTS - 1
    found = shrunk(failed(PLAN), 500, print, lambda plan: failed(plan) if plan.salt == last else None)

    assert found.plan.parts == ()
    assert f"--salt {last}" in found.command


@pytest.mark.parametrize("most_runs", [0, 1, 5])
def test_runs_are_limited(most_runs: int) -> None:
    runs = []

    def run(plan: Plan) -> Failure | None:
        runs.append(plan)
        return failed(plan) if len(plan.parts) > 3 else None

    shrunk(failed(PLAN), most_runs, print, run)

    assert len(runs) == most_runs
