"""Reports about many segments take small steps, and describe nothing twice."""

import pytest

from headgate.protocol.requests import ExplainSubscription, PlanChanges
from shard.steps import ITEMS_PER_STEP, complete
from tests.coordinator.conftest import Lead

SEGMENTS = 4 * ITEMS_PER_STEP + 1


async def test_the_costs_of_a_description_and_of_an_explanation_are_those_of_what_they_look_at(lead: Lead) -> None:
    """An item costs 8 to describe and 24 to explain, at most 32 of them in one step, and 2 to encode."""
    harness = lead("ada", segments=200)
    explanation = harness.coordinator.explain(ExplainSubscription(topic="orders", subscription="billing"))
    [_copy, *described] = list(harness.coordinator.describe())
    [_copy, *explained] = list(explanation)

    consumer, encoded = [8], [402]
    assert [200, 200 + 1, *[256] * 6, 64, *encoded] == described
    assert [200, *[768] * 6, 192, *consumer, *encoded] == explained


async def test_a_plan_lets_others_go_first_before_each_of_its_computations(lead: Lead) -> None:
    harness = lead("ada", "bob", segments=SEGMENTS)
    split = PlanChanges(topic="orders", subscription="billing", splits=[1])

    [_copy, *computations] = list(harness.coordinator.plan(split))

    children, consumers = 2, 2
    gates, targets, lists_of_moves, report = 2, 2, 2, 1
    expected = (gates + targets + lists_of_moves + report) * [SEGMENTS + children + consumers]
    assert expected == computations


@pytest.mark.parametrize("taken", range(1, 6))
async def test_a_report_describes_one_moment_although_its_subscription_changes(lead: Lead, taken: int) -> None:
    harness = lead("ada", "bob", segments=SEGMENTS)
    where = {"topic": "orders", "subscription": "billing"}
    description = harness.coordinator.describe()
    explanation = harness.coordinator.explain(ExplainSubscription(**where))
    plan = harness.coordinator.plan(PlanChanges(**where, splits=[1]))
    for steps in (description, explanation, plan):
        for _ in range(taken):
            next(steps)
    harness.split(0)
    harness.seek({1: 0})
    harness.leave("ada")
    before = {"ada", "bob"} if taken > 1 else {"bob"}

    described, explained, planned = complete(description), complete(explanation), complete(plan)

    assert before == {each.consumer for each in described.consumers}
    assert before == {each.consumer for each in explained.explanation.consumers}
    assert before == {each.consumer for each in planned.plan.consumers}
    assert SEGMENTS + 2 * (taken == 1) == len(described.segments) == len(explained.explanation.segments)
