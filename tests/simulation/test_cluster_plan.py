"""Some worlds have several shards, more daemons and operations on leaders; all others are what they were."""

import pytest

from headgate.model.hashing import shard_of
from tests.simulation.cluster_plan import CLUSTERED_EVERY, CUT, FAULTS, GRACEFUL, OPERATIONS, is_clustered, topic_on
from tests.simulation.operators import Operators
from tests.simulation.plan import RARE_OPERATIONS, SOMETIMES, SPARSE, plan_of

SEEDS = range(1, 500)
CLUSTERED = [plan_of(seed) for seed in SEEDS if plan_of(seed).clustered]


def test_most_worlds_have_one_shard_and_the_plan_that_they_had_before() -> None:
    others = [seed for seed in SEEDS if not plan_of(seed).clustered]

    assert len(CLUSTERED) == pytest.approx(len(SEEDS) / CLUSTERED_EVERY, rel=0.05)
    assert all(plan_of(seed).shards == 1 for seed in others)
    assert all(plan_of(seed) == plan_of(seed, plan_of(seed).scale) for seed in others)


def test_a_clustered_world_repeats_and_keeps_the_steps_of_its_seed() -> None:
    for plan in CLUSTERED:
        assert plan_of(plan.seed) == plan
        before = {step.number: step for step in plan_of(plan.seed, SPARSE).steps}
        assert all(step.seed == before[step.number].seed for step in plan.steps)
        assert {step.number for step in plan.steps} >= before.keys() - {0}


def test_worlds_of_every_size_are_drawn() -> None:
    daemons = {2 + sum(part.startswith("daemon-") for part in plan.programs) for plan in CLUSTERED}

    assert {plan.shards for plan in CLUSTERED} == {1, 2, 3, 4}
    assert daemons == {2, 3, 4}
    assert {plan.calm for plan in CLUSTERED} == {True, False}
    assert all(sum(part.startswith("shard-") for part in plan.programs) == plan.shards - 1 for plan in CLUSTERED)
    # Whatever else depends on the remainder of a seed.
    assert {seed % 12 for seed in SEEDS if is_clustered(seed)} == set(range(12))


def test_a_calm_world_disturbs_no_client() -> None:
    for plan in CLUSTERED:
        if plan.calm:
            assert {step.operation for step in plan.steps} <= GRACEFUL
            assert not set(plan.programs) & set(SOMETIMES)
            assert not {step.operation for step in plan.steps} & set(RARE_OPERATIONS)


def test_in_some_worlds_nothing_but_cuts_from_the_broker_disturbs() -> None:
    cut = [plan for plan in CLUSTERED if plan.cuts_only and not plan.calm]

    assert len(cut) > len(CLUSTERED) / 20
    assert all(CUT in {step.operation for step in plan.steps} for plan in cut if plan.programs)


@pytest.mark.parametrize("operation", sorted({*OPERATIONS, *FAULTS, CUT}))
def test_every_operation_on_leaders_exists_and_is_drawn(operation: str) -> None:
    assert callable(getattr(Operators, operation))
    assert any(step.operation == operation for plan in CLUSTERED for step in plan.steps)


def test_shards_and_daemons_can_be_left_out() -> None:
    plan = next(each for each in CLUSTERED if each.shards == 4)
    left = plan.only([part for part in plan.parts if not part.startswith(("shard-", "daemon-"))])

    assert left.steps == plan.steps
    assert left.shards == plan.shards, "topics keep their shards"


@pytest.mark.parametrize("shards", range(1, 5))
def test_each_shard_has_a_topic(shards: int) -> None:
    assert [shard_of(topic_on(shard, shards), shards) for shard in range(shards)] == list(range(shards))
