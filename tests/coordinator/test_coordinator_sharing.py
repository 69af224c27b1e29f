"""One coordinator whose consumers share segments: bucket ranges, descriptions, idle reasons, affinity."""

import pytest

from headgate.model.layout import BucketRange
from headgate.protocol.replies import BucketStart
from shard.steps import complete
from tests.coordinator.conftest import Lead
from tests.support.worlds.subscription_environment import CoordinatorHarness

LOW, HIGH = BucketRange(0, 0, 8), BucketRange(0, 8, 16)


SHARING = {"supports_bucket_ranges": True}


@pytest.fixture
async def harness(request: pytest.FixtureRequest, lead: Lead) -> CoordinatorHarness:
    """Consumers ada and bob share a segment of ten records; the parameter is the subscription type."""
    harness = lead("ada", "bob", records=10, type=getattr(request, "param", "STREAM"), **SHARING)
    harness.confirm("ada", 0)
    harness.pushes.clear()
    return harness


def idle(harness: CoordinatorHarness) -> dict[str, str]:
    return {c.consumer: c.idle for c in complete(harness.coordinator.describe()).consumers if c.idle}


async def test_a_grant_of_a_joined_segment_names_the_start_of_each_bucket(harness: CoordinatorHarness) -> None:
    harness.acknowledge("ada", LOW, 10)
    harness.acknowledge("bob", HIGH, 4)
    harness.leave("bob")
    harness.confirm("ada", LOW)
    (grant,) = harness.take_pushes("ada")[-1].granted

    assert (4, [BucketStart(0, 8, 10)]) == (grant.start_offset, grant.starts)
    assert harness.acknowledge("ada", 0, 7) is None
    assert [10, 7] == [harness.subscription.progress.acknowledged_in(0, bucket).position for bucket in (0, 15)]
    assert harness.acknowledge("ada", 0, 10) is None
    assert {} == harness.subscription.progress.progress_by_bucket


async def test_the_idle_reason_of_a_seventeenth_consumer(lead: Lead) -> None:
    harness = lead()
    for number in range(17):
        harness.register(f"c{number:02d}", **SHARING)
        harness.confirm_all()

    assert {"c16": "each segment is already shared by 16 consumers"} == idle(harness)
