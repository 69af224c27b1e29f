"""Reports about many segments take small steps, and describe nothing twice."""

from __future__ import annotations

import pytest

from coordinator.decisions.gate import compute_gate
from coordinator.reporting.explanation import ExplanationContext, explain
from coordinator.reporting.steps import COST_PER_ITEM, ITEMS_PER_STEP, Steps, complete
from coordinator.state.subscription import Subscription
from headgate.model import entries as e
from headgate.protocol import messages as m
from tests.coordinator.conftest import Lead
from tests.support.imported_topic import imported_topic

pytestmark = pytest.mark.looptime

SEGMENTS = 4 * ITEMS_PER_STEP + 1


def costs(steps: Steps[object]) -> list[int]:
    return list(steps)


async def test_each_step_describes_a_limited_number_of_segments(lead: Lead) -> None:
    harness = lead("ada", segments=SEGMENTS)

    for steps in (
        harness.coordinator.describe_in_steps(),
        harness.coordinator.explain(m.ExplainSubscription(topic="orders", subscription="billing")),
    ):
        found = costs(steps)
        full = ITEMS_PER_STEP * COST_PER_ITEM
        assert 4 == found.count(full)
        assert max(found) <= max(full, 2 * (SEGMENTS + 1))


def test_an_ancestor_is_described_once_for_all_its_descendants() -> None:
    chain = [e.ImportedSegment(segment=n, label=f"s{n}", parents=[n - 1] if n else [], end_offset=9) for n in range(4)]
    topic = imported_topic(*chain)
    created = e.SubscriptionCreated(
        topic_id=1, subscription_id=2, subscription="s", subscription_type="STREAM", order="strict", positions={}
    )
    subscription = Subscription.created(created, "t")
    gate = compute_gate(topic.layout, set(), subscription.type, subscription.order)
    context = ExplanationContext(now_ms=0, revoke_timeout_seconds=30, grace_seconds=60, held={})
    steps = explain(subscription, topic, gate, context, segments=range(4), consumers=[])
    child, grandchild = complete(steps).segments[2:]

    assert child.blocked_by[0] is grandchild.blocked_by[1]
    assert child.sentences[1] is grandchild.sentences[2]
